// One machine: its picture with figures, what happens at each step, and where to look first.
import { html, useMemo, useRef } from "../../vendor/preact.js";
import { change, count, dur, go, num, pct, plural, rate, search, seconds, setQuery, term, useData } from "../lib.js";
import { Bar, Button, Empty, Figure, Glyph, Icon, KINDS, Link, Head, Loaded, Menu, Panel, Range, rangeOf, Segment } from "../ui.js";
import { Bars, Spark } from "../charts.js";
import { Graph } from "../graph.js";
import { STATES } from "./machines.js";

const MODES = [["flow", "Flow"], ["failures", "Failures"], ["age", "Age"], ["time", "Time"]];
const ENDS = { "(done)": "done", "(failed)": "failed", "(cancelled)": "cancelled" };
const NONE = { counts: {}, others: {}, tabs: [] };
const sum = (values, of) => Object.entries(values).reduce((total, [key, value]) => total + (of(value, key) || 0), 0);
const highest = values => values.reduce((most, value) => Math.max(most, value), 0);
const HEATS = {
  failures: (here, step) => ["fail", (step?.share ?? 0) * 3],
  age: here => ["retry", Math.log1p(seconds(here.oldest) / 20) / 22],
  time: (here, step) => ["run", Math.log1p(seconds(step?.p95) * 30) / 18],
};
const NOTES = {
  failures: (here, step) => step?.share > 0 && `${pct(step.share)} fail`,
  age: here => here.oldest && `${dur(here.oldest)} old`,
};

function describe(drawing, steps, rates, by) {
  const per = n => rates && rate(n / rates.period), into = id => sum(rates.flow, (one, key) => key.endsWith(`>${id}`) && one.count);
  return Object.fromEntries(drawing.nodes.map(({ id, kind, name, tabs }) => {
    if (kind === "start") return [id, { right: per(rates?.total.started) }];
    const n = rates && into(id);
    if (ENDS[id]) return [id, { right: n && per(n), label: `${name}: ${rates ? `${num(n)} in ${dur(rates.period)}; ` : ""}list them` }];
    const here = steps[id] ?? NONE, step = rates?.steps[id];
    const figures = Object.entries(STATES).filter(([state]) => here.others[state]).map(([state, kind]) => [kind, here.others[state], `${count(here.others[state])} ${KINDS[kind][0].toLowerCase()}`]);
    const waits = tabs.map((tab, i) => here.tabs[i] ?? { count: 0 });
    return [id, {
      figures, left: kind === "step" && "idle", tabs: waits.map(({ count: n, oldest }) => ({ n: count(n), title: `${count(n)} waiting${oldest ? `, the oldest for ${dur(oldest)}` : ""}` })),
      right: step && per(step.executions), bar: step?.share, heat: HEATS[by]?.(here, step), note: NOTES[by] ? NOTES[by](here, step) : step?.p95 && `p95 ${dur(step.p95)}`,
      label: `${id}: ${[...figures.map(one => one[2]), ...tabs.flatMap((tab, i) => (waits[i].count ? `${count(waits[i].count)} waiting for ${tab.lines[0]}` : []))].join(", ") || "no instances"}${step ? `; ${per(step.executions)}, ${pct(step.share)} failed` : ""}`,
    }];
  }));
}

// An edge that was not taken is dotted.
function traffic(drawing, rates) {
  const most = rates && highest(Object.values(rates.flow).map(one => one.count));
  return rates ? Object.fromEntries([...drawing.edges, ...drawing.nodes.map(({ id }) => ({ key: `${id}>${id}` }))].map(({ key, kind }) => {
    const { count, share } = rates.flow[key] ?? { count: 0 }, isSeen = kind === "observed";
    return [key, {
      width: count / most, tone: isSeen ? "seen" : !count ? "never" : kind === "stop" ? "bad" : "", share: share && share < 1 && pct(share),
      title: `${key.replace(">", " → ").replace(/[()]/g, "")}: ${num(count)} in ${dur(rates.period)}${isSeen ? "; not in the code of this version" : ""}`,
    }];
  })) : {};
}

// The transitions since the last frame: the counts rise, and begin again every minute.
function useFlow(counts) {
  const last = useRef();
  return useMemo(() => {
    const before = last.current;
    last.current = counts ?? before;
    return counts && before && Object.fromEntries(Object.entries(counts).map(([key, n]) => [key, n - (n < before[key] ? 0 : before[key] ?? 0)]));
  }, [counts]);
}

// ---- Inspector ----------------------------------------------------------------------------------------------------
const Rows = ({ title, aside, children }) => html`<div><h3>${title}${aside && html`<span>${aside}</span>`}</h3><div class="rows">${children}</div></div>`;
const Top = ({ title, of = {}, value, kind, text, onPick }) => {
  const items = Object.entries(of).map(([step, one]) => [step, value(one)]).filter(one => one[1] > 0).sort((a, b) => b[1] - a[1]).slice(0, 5);
  return items.length > 0 && html`<${Rows} title=${title}>${items.map(([step, value]) => html`<button type="button" class="measured" key=${step} onClick=${() => onPick(step)}><b class="cut">${step}</b>
    <${Bar} value=${value} max=${items[0][1]} kind=${kind} label=${text(value)} /><span class="value">${text(value)}</span></button>`)}<//>`;
};

const HotSpots = ({ steps, rates, onPick }) => html`<${Panel} title="Hot spots"><div class="inspect">
  <${Top} title="Most failures" of=${rates?.steps} value=${one => one.share} kind="fail" text=${pct} onPick=${onPick} />
  <${Top} title="Longest waits" of=${steps} value=${one => seconds(one.waiting)} kind="wait" text=${dur} onPick=${onPick} />
  <${Top} title="Slowest (p95)" of=${rates?.steps} value=${one => seconds(one.p95)} kind="run" text=${dur} onPick=${onPick} />
  <p class="dim small">Select a step in the picture to see its figures, errors and instances.</p></div><//>`;

const Histogram = ({ counts }) => {
  const from = Math.max(0, counts.findIndex(n => n > 0) - 1), shown = Array.from({ length: Math.max(8, counts.length - from) }, (_, i) => counts[from + i] ?? 0);
  const bound = i => (i < 0 ? "0" : dur(2 ** i / 1000));
  return html`<div class="histogram" role="img" aria-label=${`Run times up to ${bound(counts.length - 1)}`}>${shown.map((n, i) => html`<i style=${{ height: `${(100 * n) / highest(shown)}%` }} title=${`up to ${bound(from + i)}: ${num(n)}`} />`)}</div>
    <div class="scale">${[-1, shown.length >> 1, shown.length - 1].map(i => html`<span>${bound(from + i)}</span>`)}</div>`;
};

const WAITS = { signal: ["wait", names => names.slice(0, 1).map(name => term("awaits", name))], children: ["kids", () => "status:awaiting_children"], delay: ["later", () => "status:later"] };
const Inspector = ({ machine, node, now: { counts, tabs }, rates, mine, errors = [] }) => {
  const step = rates?.steps[node.id], here = `${mine} ${term("step", node.id)}`;
  const flows = Object.entries(rates?.flow ?? {}).filter(([key]) => key.split(">")[0] === node.id);
  const waiting = node.tabs.map((tab, i) => [tab, tabs[i]]).filter(one => one[1]?.count), found = errors.filter(one => one.step === node.id);
  return html`<${Panel} title=${node.id} aside=${html`${node.line > 0 && html`<code>${machine.file}:${node.line}</code>`}<${Button} icon="close" kind="ghost" small label="Close" onClick=${() => setQuery({ step: null })} />`}><div class="inspect">
    ${node.doc && html`<p class="soft">${node.doc}</p>`}
    <div class="counts">${Object.entries(STATES).filter(([state], i) => counts[state] || i < 2 || /ret|fa/.test(state)).map(([state, kind]) => html`<${Link} class=${counts[state] ? "" : "dim"} to=${search(`${here} status:${state}`)} key=${state}><b>${count(counts[state] ?? 0)}</b><span><${Glyph} kind=${kind} size=${11} />${KINDS[kind][0]}</span><//>`)}</div>
    ${waiting.length > 0 && html`<${Rows} title="Waits">${waiting.map(([{ kind, names, lines }, { count: n, oldest }]) => html`<${Link} class="" to=${search(`${here} ${WAITS[kind][1](names)}`)}>
      <span class="line"><${Glyph} kind=${WAITS[kind][0]} size=${11} /><span class="mono cut">${names.join(", ") || lines[0]}</span></span><span class="value"><b>${count(n)}</b>${oldest && html` <small>oldest ${dur(oldest)}</small>`}</span><//>`)}<//>`}
    ${step && html`<div><h3>Executions<span>${rate(step.executions / rates.period)}</span></h3><${Bars} values=${rates.history} label=${`Executions of ${node.id} per minute`} height=${36} /></div>`}
    ${step?.p50 && html`<div><h3>Run time<span>p50 ${dur(step.p50)} · p95 ${dur(step.p95)} · p99 ${dur(step.p99)}</span></h3><${Histogram} counts=${step.run} /></div>`}
    ${flows.length > 0 && html`<${Rows} title="Where it goes" aside=${`${num(sum(flows, one => one[1].count))} in ${dur(rates.period)}`}>${flows.map(([key, { count: n, part, share }]) => html`<div key=${key}><span class="line">${share == null ? html`<${Glyph} kind="retry" size=${11} />again` : html`<${Icon} name="right" size=${11} />${key.split(">")[1].replace(/[()]/g, "")}`}</span><span class="value"><b>${pct(part)}</b> <small>${num(n)}</small></span></div>`)}<//>`}
    ${found.length > 0 && html`<${Rows} title="Failed instances" aside=${step?.share > 0 && html`<span class="c-fail">${pct(step.share)} of executions</span>`}>${found.map(one => html`<${Link} class="" key=${one.fingerprint} to=${search(one.q)} title=${one.example}><code class="cut">${one.message || "No message"}</code><b class="value c-fail">${num(one.count)}</b><//>`)}<//>`}
    <div class="actions"><${Button} icon="instances" small to=${search(here)}>Instances here<//><${RetryFailed} q=${`${here} status:failed`} n=${counts.failed} where=${`${machine.name} v${machine.version} at ${node.id}`} small /></div></div><//>`;
};

const RetryFailed = ({ q, n, where, small }) => n > 0 && html`<${Button} icon="retry" small=${small} need="operate" onClick=${async () => (await import("./lists.js")).batch("retry", { q }, `${count(n)} failed of ${where}`)}>Retry failed<//>`;

// ---- Page ---------------------------------------------------------------------------------------------------------
const Versions = ({ machine, live, mine }) => {
  const text = version => `v${version}`;
  if (machine.versions.length < 2) return html`<${Link} class="chip" to=${search(`${mine} status:live`)}>${text(machine.version)} <b>${count(live[machine.version] ?? 0)} live</b><//>`;
  return html`<${Menu} label="Version" icon="down" items=${machine.versions.map(({ version, workers }) => ({ text: `${text(version)} · ${count(live[version] ?? 0)} live · ${workers ? plural(workers, "worker") : "no worker"}`, onPick: () => setQuery({ version: version === machine.versions[0].version ? null : version, step: null }, { push: true }) }))}>${text(machine.version)} · ${count(live[machine.version] ?? 0)} live<//>`;
};

const Strip = ({ steps, rates, range, known, mine }) => {
  const of = (...states) => sum(steps, one => sum(states, state => one.counts[state])), list = q => search(`${mine} ${q}`), oldest = highest(Object.values(steps).map(one => seconds(one.waiting)));
  const shown = n => (known ? count(n) : "–"), { total, period, series } = rates ?? {}, ended = rates && total.done + total.failed + total.cancelled, retrying = of("retrying");
  const rated = (label, name, kind, q) => html`<${Figure} label=${label} value=${rate(rates && total[name] / period)} spark=${series && html`<${Spark} values=${series[name]} kind=${kind} label=${`${label} per minute`} />`} to=${list(q)} />`;
  return html`<div class="figures slim">${rated("Started", "started", "due", `age:<${range}`)}${rated("Done", "done", "done", `status:done ended:<${range}`)}
    <${Figure} label="Failed" value=${pct(rates ? ended && total.failed / ended : null)} unit=${rates && num(total.failed)} kind=${total?.failed ? "fail" : undefined} spark=${series && html`<${Spark} values=${series.failed} kind="fail" label="Failed per minute" />`} to=${list(`status:failed ended:<${range}`)} />
    <${Figure} label="Running, due" value=${shown(of("executing"))} unit=${known && `${count(of("due"))} due`} note=${retrying > 0 && html`<b class="c-retry">${count(retrying)}</b> between attempts`} to=${list("status:executing,due,retrying")} />
    <${Figure} label="Waiting" value=${shown(of("awaiting_signal", "awaiting_children"))} note=${oldest > 0 && `the oldest for ${dur(oldest)}`} to=${list("status:waiting")} />
    <${Figure} label="Queue wait" value=${dur(total?.wait.p50)} unit="p50" note=${total && `p95 ${dur(total.wait.p95)}`} to="/queues" /></div>`;
};

const Machine = ({ machine, query }) => {
  const at = `/machines/${encodeURIComponent(machine.name)}`, { name, version, picture, insert } = machine, range = rangeOf(query), mine = `${term("machine", name)} version:${version}`;
  const now = useData(`${at}/census`, { version }, { topic: `machine:${name}@${version}` }).data, { steps = {}, live = {} } = now ?? {};
  const { groups } = useData(`${at}/errors`, { version }, { every: 10 }).data ?? {};
  const figures = useData(`${at}/rates`, { range, version, step: query.get("step") }, { every: range === "15m" ? 5 : 30 }).data, rates = figures && { ...figures, period: seconds(figures.period) };
  const flow = useFlow(now?.flow), by = MODES.find(([id]) => id === query.get("by"))?.[0] ?? "flow";
  const nodes = picture?.down.nodes ?? [], node = nodes.find(one => one.id === query.get("step") && !ENDS[one.id] && one.kind !== "start");
  const pick = id => (ENDS[id] ? go(search(`${mine} status:${ENDS[id]} ended:<${range}`)) : setQuery({ step: id === node?.id ? null : id }));
  const lost = picture ? Object.entries(steps).filter(([step]) => !nodes.some(one => one.id === step)) : [];
  return html`<${Head} title=${name} sub=${html`${machine.doc} ${machine.file && html`<code class="dim">${machine.file}</code>`}`}>
      <${Range} value=${range} /><${Versions} machine=${machine} live=${live} mine=${mine} /><${Link} class="chip" to="/queues">queue <b class="mono">${machine.queue}</b><//>
      ${!machine.versions.find(one => one.version === version).workers && html`<span class="chip c-retry">no live worker</span>`}
      <${Button} icon="instances" to=${search(mine)}>Instances<//><${RetryFailed} q=${`${mine} status:failed`} n=${sum(steps, one => one.counts.failed)} where=${`${name} v${version}`} />
      <${Button} icon=${insert.icon} need=${insert.need} onClick=${() => change(insert.path, { ...insert, done: ({ id, text }) => (go(`/i/${id}`), text) })}>${insert.text}<//><//>
    <${Strip} known=${now} mine=${mine} steps=${steps} rates=${rates} range=${range} />
    <div class="split"><${Panel} flush>${picture
      ? html`<${Graph} layout=${picture} nodes=${describe(picture.down, steps, rates, by)} edges=${traffic(picture.down, rates)} selected=${node?.id} onSelect=${id => (id ? pick(id) : setQuery({ step: null }))} legend label=${`Picture of ${name}`} flow=${flow} over=${2000}
          tools=${html`<${Segment} label="Colour" items=${MODES} value=${by} onPick=${id => setQuery({ by: id === "flow" ? null : id })} />`} />`
      : html`<${Empty} icon="machines" title="No picture">The worker could not read the graph from the code of this version.<//>`}<//>
      <div class="stack">${node ? html`<${Inspector} machine=${machine} node=${node} now=${steps[node.id] ?? NONE} rates=${rates} mine=${mine} errors=${groups} />` : html`<${HotSpots} steps=${steps} rates=${rates} onPick=${pick} />`}
        ${lost.length > 0 && html`<${Panel} title="Not in the code"><p class="soft">Instances are at steps that version ${version} does not have:</p><div class="rows">${lost.map(([step, { counts }]) => html`<${Link} class="" to=${search(`${mine} ${term("step", step)}`)}><b>${step}</b><span class="value">${count(sum(counts, n => n))}</span><//>`)}</div><//>`}</div></div>`;
};

export default function MachineView({ params, query }) {
  const version = query.get("version");
  const answer = useData(`/machines/${encodeURIComponent(params.name)}`, version ? { version } : null, { every: 30 });
  if (answer.problem?.status === 404 && !answer.data) return html`<${Head} title=${params.name} /><${Panel}><${Empty} icon="machines" title=${version ? `Version ${version} is not registered` : "This machine is not registered"}><p>${answer.problem.detail} ${answer.problem.fix}</p><${Button} icon="instances" to=${search(term("machine", params.name))}>Its instances<//><//><//>`;
  return html`<${Loaded} from=${answer}>${machine => html`<${Machine} key=${machine.version} machine=${machine} query=${query} />`}<//>`;
}
