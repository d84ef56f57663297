// One instance: why it does not run, its path, its timeline, what belongs to it, and the changes that the server offers.
import { html, useEffect, useMemo, useRef, useState } from "../../vendor/preact.js";
import { ago, api, clock, confirm, count, dur, go, moment, now, num, plural, search, seconds, setQuery, T, time, toast, until, useData, useTopic, write } from "../lib.js";
import { Bar, Button, Code, Diff, Empty, Glyph, Head, Id, Json, kindOf, Link, Loaded, Menu, Panel, Segment, Status, Table, Tabs, Time } from "../ui.js";
import { Graph } from "../graph.js";

async function act({ instance }, { fields, body, path, reads_state, preview, ...action }, at) {
  let state;
  try {
    state = reads_state && await api.get(`/instances/${instance.id}/state`);
  } catch (problem) {
    return toast(problem.message, "fail");
  }
  const given = { at, state: state.text };
  const count = async values => {
    const { count, descendants, text, effect } = await api.get("/batches/preview", { params: { ...preview, ...values } });
    return { count: count + descendants, text: `${text}. ${effect}` };
  };
  confirm({ ...action, preview: preview && count, fields: fields.map(field => ({ ...field, value: given[field.name] ?? field.value })), onYes: async (reason, values, _, key) => {
    const sent = { ...body, reason };
    for (const { name, type } of fields) if (values[name] !== "" && (name !== "state" || values.state !== state.text)) sent[name] = type === "number" ? +values[name] : values[name];
    if (sent.expected_step_seq != null && state) sent.expected_step_seq = state.step_seq;
    const { id, outcome, text } = await api.post(path, sent, key);
    if (outcome === "forked") go(`/i/${id}`);
    return text;
  } });
}

// ---- Why it does not run ------------------------------------------------------------------------------------------
const stamp = (at, options) => moment(at, options).replace(`${moment(now()).split(" ")[0]} `, ""); // without the date of today
const When = ({ at }) => {
  clock.value;
  return html`<time datetime=${at} title=${moment(at)}>${stamp(at)}</time> <span class="soft">(${T(at) > now() ? until(at) : ago(at)})</span>`;
};

const Piece = ({ part: { text, at, id, to } }) => (at ? html`<${When} at=${at} />` : id ? html`<${Id} id=${id} />` : to ? html`<${Link} to=${to}>${text}<//>` : text);

const Answer = ({ page, page: { instance: { progress }, answer: { kind, title, sentences, action, link } } }) => html`<section class=${`answer c-${kind}`} aria-labelledby="why"><${Glyph} kind=${kind} size=${18} />
  <div class="grow"><h2 id="why">${title}</h2>${sentences.map(({ parts, command }) => html`<p>${parts.map(part => html`<${Piece} part=${part} />`)}</p>${command && html`<${Code} text=${command} />`}`)}${progress?.total > 0 && html`<${Bar} value=${progress.done} max=${progress.total} label=${`Progress: ${progress.done} of ${progress.total}`} />`}</div>
  ${action && html`<${Button} icon=${action.icon} kind="primary" need=${action.need} onClick=${() => act(page, action)}>${action.text}<//>`}
  ${link && html`<${Button} icon=${link.icon} to=${link.to}>${link.text}<//>`}</section>`;

// ---- The path -----------------------------------------------------------------------------------------------------
const ENDS = { "(done)": "done", "(failed)": "fail", "(cancelled)": "cancel" };
const target = one => one.to ?? (one.outcome === "done" ? "(done)" : one.cause || one.outcome === "stop" ? "(failed)" : "(cancelled)");
const began = one => one.started_at ?? one.leased_at;
const ranFor = s => dur(s || 1e-4);
const ran = one => (began(one) ? T(one.finished_at ?? now()) - T(began(one)) : null);

function pathOf({ instance, transitions, executions }, { nodes, edges }, index) {
  const path = transitions.slice(0, index + 1), last = path.at(-1), end = target(last), here = nodes.some(node => node.id === end) ? end : last.step, times = {}, took = {};
  const walked = Object.fromEntries([...edges.map(edge => edge.key), ...nodes.map(({ id }) => `${id}>${id}`)].map(key => [key, { tone: "ahead" }]));
  for (const one of path) {
    (times[target(one)] ??= []).push(one.step_seq + 1);
    for (const { key } of [{ key: `${one.step ?? "(start)"}>${target(one)}` }, ...edges.filter(edge => edge.kind === "undo" && /^undo/.test(one.outcome) && edge.target === one.to)]) walked[key] = { tone: "path" };
    if (one.executions > 1) walked[`${one.step}>${one.step}`] = { tone: "path", share: `×${one.executions}` };
  }
  for (const one of executions) if (one.step_seq <= last.step_seq) took[one.step] = (took[one.step] ?? 0) + ran(one);
  return { edges: walked, nodes: Object.fromEntries(nodes.map(({ id }) => {
    const all = times[id], left = took[id] == null ? "" : `ran ${ranFor(took[id])}`;
    return [id, {
      left, dim: !all && id !== "(start)" && id !== here, badge: all && !ENDS[id] ? (all[1] ? `×${all.length}` : String(all[0])) : undefined,
      here: id === here && (ENDS[end] ?? (one => (one ? "run" : kindOf(instance)))(transitions[index + 1])), label: `${id}: ${all ? `reached by transition ${all.map(seq => seq - 1).join(", ")} ${left}` : "not reached"}`,
    }];
  })) };
}

const Path = ({ page, index, onMove }) => {
  const { instance, transitions } = page, last = transitions.length - 1, one = transitions[index], [playing, setPlaying] = useState(false);
  const machine = useData(`/machines/${encodeURIComponent(instance.machine)}`, { version: instance.version }), picture = machine.data?.picture;
  const path = useMemo(() => picture && pathOf(page, picture.down, index), [page, picture, index]);
  useEffect(() => {
    const timer = playing && setTimeout(() => (index < last ? onMove(index + 1) : setPlaying(false)), 700);
    return () => clearTimeout(timer);
  }, [playing, index]);
  useEffect(() => {
    const press = event => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || event.defaultPrevented || event.altKey || event.metaKey || event.target.closest("input, textarea, dialog")) return;
      event.preventDefault();
      onMove(index + by);
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
  const go = (by, icon, label) => html`<${Button} icon=${icon} kind="ghost" small label=${label} disabled=${!transitions[index + by]} onClick=${() => onMove(index + by)} />`;
  return html`<${Panel} class="path" title="Path" flush aside=${html`<span>${num(one.step_seq)} of ${plural(transitions[last].step_seq, "transition")}</span>
      <${Button} icon=${playing ? "pause" : "play"} small disabled=${!last} onClick=${() => (playing || index < last || onMove(0), setPlaying(!playing))}>${playing ? "Stop" : "Play"}<//>`}>
    ${path ? html`<${Graph} layout=${picture} ...${path} onSelect=${id => onMove(transitions.findLastIndex(one => target(one) === id))} label="Path" />` : html`<p class="none dim">${machine.loading ? "" : "This version of the machine has no picture."}</p>`}
    <div class="scrub">${go(-1, "left", "Previous transition")}<input type="range" max=${last} value=${index} disabled=${!last} aria-label="Transition" aria-valuetext=${`${one.step_seq}: ${target(one)}`} onInput=${event => onMove(+event.target.value)} />${go(1, "right", "Next transition")}<span>${stamp(one.finished_at, { ms: true })}</span></div><//>`;
};

/** A list that scrolls to the selected transition. */
function useScroll(index) {
  const box = useRef();
  useEffect(() => {
    const list = box.current, one = list.querySelector("[aria-current=true], .on");
    if (one) list.scrollTop = one.offsetTop - list.clientHeight / 2;
  }, [index]);
  return box;
}

const Steps = ({ page: { transitions }, index, onMove }) => html`<${Panel} title="Steps" flush aside=${html`<span><kbd>←</kbd> <kbd>→</kbd></span>`}><ol class="hops" ref=${useScroll(index)}>${transitions.map((one, i) => {
  const { signals = [], outcome, executions, ...next } = transitions[i + 1] ?? {};
  return html`<li key=${i}><button type="button" aria-current=${i === index} onClick=${() => onMove(i)}><span class="dim">${one.to && one.step_seq + 1}</span>${one.to ?? html`<${Status} kind=${ENDS[target(one)]} />`}
    <span class="cut soft">${signals.length > 0 && `after ${signals.join(", ")}`}${outcome === "edit" ? "edited" : outcome && !one.to && "retried"} ${executions > 1 && html`<span class="c-retry">×${executions}</span>`}</span><span class="dim">${ran(next) != null && ranFor(ran(next))}</span></button></li>`;
})}</ol><//>`;

const State = ({ page: { instance, transitions, is_collected: isCollected }, index }) => {
  const [all, setAll] = useState(false), one = transitions[index], isLast = !transitions[index + 1], before = transitions[index - 1];
  const isKept = isLast ? !isCollected : one.has_state, state = isLast ? instance.state : one.state, isKnown = isKept && before?.has_state, differs = isKnown && write(before.state) !== write(state);
  return html`<${Panel} title="State" flush=${differs && !all} aside=${html`<span>${one.to ? `on arrival at ${one.to}` : "at the end"}${isKnown && !differs && ", unchanged"}</span>${differs && html`<${Segment} label="State" items=${[[false, "Changes"], [true, "All"]]} value=${all} onPick=${setAll} />`}`}>
    ${!isKept ? html`<p class="dim">${isLast ? html`State and result were removed <${Time} at=${instance.collected_at} />, by retention or keep=False.` : 'It was not kept, or is too large for this page. Machines with history="all" keep the state of every transition.'}</p>`
      : differs && !all ? html`<${Diff} key=${index} before=${before.state} after=${state} />` : html`<${Json} key=${index} value=${state} />`}<//>`;
};

// ---- The timeline -------------------------------------------------------------------------------------------------
const place = ([from, to]) => ({ left: `${from * 100}%`, width: `${(to - from) * 100}%` });

const Timeline = ({ timeline: { rows, marks, folds, at, duration, running, legend }, seq, onPick }) => {
  const [by, setBy] = useState("folded"), folded = by === "folded" && folds.length > 0;
  return html`<${Panel} title="Timeline" flush aside=${html`<span>${dur(running)} running in ${dur(duration)}</span><${Segment} label="Time axis" items=${[["folded", "Folded"], ["true", "True to time"]]} value=${by} onPick=${setBy} />`}>
    <div class="gantt" ref=${useScroll(seq)}><div><div class="back">${folded ? folds.map(fold => html`<i class="fold" style=${place(fold.folded)}>${dur(fold.duration).replace(/ \d+ .$/, "")}</i>`)
        : [.25, .5, .75].map(part => html`<i class="tick" style=${place([part, part])}>+${dur(seconds(duration) * part)}</i>`)}
        ${marks.map(mark => html`<i class=${`mark c-${mark.kind}`} style=${place([mark[by], mark[by]])} title=${mark.text}><span class="hidden">${time(mark.at)} ${mark.text}</span></i>`)}</div>
      <table aria-label=${`Timeline from ${moment(at)}`}><tbody>${rows.map(row => html`<tr class=${row.first != null && row.first <= seq + 1 && seq < row.last ? "on" : ""} onClick=${() => row.last && onPick(row.last - 1)}>
          <th scope="row" title=${row.name}>${row.last ? html`<span class="dim">${row.first}</span>${row.name}${row.times > 1 && ` ×${row.times}`}` : row.child ? html`<${Glyph} kind=${kindOf(row.status)} size=${10} /><${Id} id=${row.child} />` : row.name}</th>
          <td><div>${row.bars.map(bar => html`<i class=${`c-${bar.kind}${bar.is_wait ? " wait" : ""}`} style=${place(bar[by])} title=${`${bar.text}; ${dur(bar.duration)} from ${time(bar.at, { ms: true })}`}><span class="hidden">${bar.text}, ${dur(bar.duration)}; </span></i>`)}</div></td>
          <td>${dur(row.duration)}</td></tr>`)}</tbody></table></div></div>
    <div class="legend">${legend.map(([kind, word]) => html`<span><i class=${`bg-${kind}`} />${word}</span>`)}${marks.length > 0 && html`<span><i class="mark c-wait" />signal or change</span>`}${folded && html`<span><i class="fold" />nothing ran</span>`}</div><//>`;
};

// ---- What belongs to it -------------------------------------------------------------------------------------------
const OUTCOMES = { done: "done", await: "wait", schedule_children: "kids", retry: "retry", lease: "retry", cancelled: "cancel", published: "done", dead: "fail", pending: "due" };
const spaced = text => text.replaceAll("_", " ");
const column = (title, cell, rest) => ({ title, cell, ...rest });
const figure = { num: true };
const text = (title, of) => column(title, one => html`<span title=${of(one)}>${of(one)}</span>`, { class: "cut", of });
const bold = (title, of, small = () => "") => column(title, one => html`<b>${of(one)}</b><small>${small(one)}</small>`);
const when = (of, small = () => "") => column("Time", one => html`${stamp(of(one), { ms: true })}<small>${small(one)}</small>`, figure);
const outcome = (title, of) => column(title, one => html`<${Status} kind=${one.error || one.cause ? "fail" : OUTCOMES[of(one)] ?? "run"}>${spaced(of(one))}<//>`);
const json = value => (value == null ? "" : write(value));

const TABS = {
  executions: ["Executions", "It has not run yet. Its first execution appears here when a worker leases it.", [
    column("#", one => one.attempt, { ...figure, width: "1%" }), bold("Step", one => one.step, one => one.step_attempt > 0 && `attempt ${one.step_attempt + 1}`), outcome("Outcome", one => one.outcome ?? "running"), text("Error", one => one.error ?? ""),
    column("Ran", one => (ran(one) == null ? "–" : ranFor(ran(one))), figure), when(one => began(one) ?? one.finished_at, one => one.lease_owner)]],
  inbox: ["Inbox", "The inbox is empty. Signals that no step has consumed wait here.", [
    bold("Signal", one => one.name, one => (one.is_awaited ? "awaited" : "not awaited")), text("Payload", one => json(one.payload)), when(one => one.received_at)]],
  children: ["Children", "It has scheduled no children.", [
    column("Child", one => html`<${Id} id=${one.id} /><small>${one.machine}</small>`), column("Status", one => html`<${Status} kind=${kindOf(one.status)} />`), column("Step", one => one.step), text("Error", one => one.last_error ?? ""),
    column("Took", one => dur(T(one.finished_at ?? now()) - T(one.inserted_at)), figure)]],
  events: ["Events", "It has emitted no events.", [
    bold("Event", one => one.type, one => one.sink), outcome("Delivery", one => one.state), text("Data", one => one.last_error ?? json(one.data)), column("Failed", one => one.attempts, { ...figure, wide: true }), when(one => one.created_at)]],
  audit: ["Audit", "Nothing is recorded. Failures, and changes by people, appear here.", [
    bold("Event", one => spaced(one.event), one => one.actor ?? "engine"), text("Reason", one => one.reason ?? ""), text("Details", one => json(one.data)), when(one => one.at)]],
};

const Records = ({ page, tab }) => {
  const id = TABS[tab] ? tab : "executions", [title, none, columns] = TABS[id], rows = page[id], all = page.totals[id];
  return html`<${Panel} flush><${Tabs} label="Records" value=${id} onPick=${id => setQuery({ tab: id })} items=${Object.entries(TABS).map(([id, [text]]) => ({ id, text, count: count(page.totals[id]) }))} />
    ${id === "children" && all > 0 && html`<p class="wrap note">${Object.entries(page.children_counts).map(([status, n]) => html`<${Link} class="chip" to=${search(`parent:${page.instance.id} status:${status}`)}><${Glyph} kind=${kindOf(status)} size=${11} /><b>${count(n)}</b> ${spaced(status)}<//>`)}</p>`}
    ${rows.length ? html`<${Table} caption=${title} columns=${columns.filter(({ of }) => !of || rows.some(of))} rows=${rows.toReversed()} keyOf=${one => one.exec_id ?? one.number ?? one.id} />` : html`<p class="note dim">${none}</p>`}
    ${rows.length >= page.limit && html`<p class="note dim">The newest ${rows.length}${all > rows.length && ` of ${count(all)}`}.</p>`}<//>`;
};

// ---- Page ---------------------------------------------------------------------------------------------------------
const Body = ({ page, query }) => {
  const { instance, transitions, actions } = page, { error, compensation, checkpoint } = instance, last = transitions.length - 1;
  // An undo ends as the transition that began it.
  transitions.forEach((one, i) => one.outcome === "undone" && (one.cause = transitions.slice(0, i).findLast(each => each.outcome === "undo")?.cause));
  const found = transitions.findIndex(one => String(one.step_seq) === query.get("t")), index = found < 0 ? last : found, seq = transitions[index].step_seq;
  const move = i => transitions[i] && setQuery({ t: i < last && transitions[i].step_seq });
  const at = { page, index, onMove: move }, sides = [
    error && html`<${Panel} title="Error" aside=${html`<code>${error.type}</code>`}><p class="c-fail mono">${error.message}</p><pre class="soft">${error.traceback.join("\n")}</pre><//>`,
    compensation && html`<${Panel} title="Undo">Undone: ${compensation.undone.join(", ") || "none"}. Left: ${compensation.pending.join(", ") || "none"}.<//>`,
    ...[["Result", instance.stored_result], ["Checkpoint", checkpoint]].map(([title, value]) => value != null && html`<${Panel} title=${title}><${Json} value=${value} /><//>`),
  ];
  return html`<${Head} title=${`${instance.machine} #${instance.id}`} badge=${html`<${Status} row=${instance} big />`} sub=${html`<span class="wrap facts-of">${page.facts.map(part => html`<span><i>${part.name}</i> <${Piece} part=${part} /></span>`)}</span>`}>
      ${actions.map(one => !one.is_rare && html`<${Button} icon=${one.icon} kind=${one.kind} need=${one.need} data-retry=${one.text === "Retry" || undefined} onClick=${() => act(page, one)}>${one.text}<//>`)}
      <${Menu} items=${actions.filter(one => one.is_rare).map(one => ({ ...one, onPick: () => act(page, one, seq) }))} /><//>
    <${Answer} page=${page} />
    <div class="inst"><div class="stack"><${Path} ...${at} /><${Steps} ...${at} /></div><div class="stack">
      <${Timeline} timeline=${page.timeline} seq=${seq} onPick=${seq => move(transitions.findIndex(one => one.step_seq === seq))} />
      <div class=${sides.some(Boolean) ? "cols2 start" : ""}><${State} ...${at} /><div class="stack">${sides}</div></div>
      <${Records} page=${page} tab=${query.get("tab")} /></div></div>`;
};

export default function Page({ params: { id }, query }) {
  const from = useData(`/instances/${encodeURIComponent(id)}`, null, { every: 10 }), last = useTopic(`instance:${id}`).value;
  useEffect(() => {
    if (last !== undefined) from.reload();
  }, [last]);
  if (from.problem?.status === 404) return html`<${Empty} icon="search" level="h1" title=${`There is no instance ${id}`}><p>It has never existed, or retention has removed it.</p><${Button} to="/instances">Instances<//><//>`;
  return html`<${Loaded} from=${from} rows=${12}>${page => html`<${Body} page=${page} query=${query} />`}<//>`;
}
