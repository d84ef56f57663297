// Instances, failures and batches: lists of instances, and changes of many of them.
import { html, useEffect, useState } from "../../vendor/preact.js";
import { api, change, changes, confirm, count, moment, num, plural, route, search, setQuery, useData } from "../lib.js";
import { Bar, Bulk, Button, Code, Empty, Head, Icon, Id, kindOf, Link, Loaded, Panel, Search, Status, Table, Tabs, Time } from "../ui.js";
import { Bars } from "../charts.js";

// Changes of many instances: title, icon, role.
const VERBS = { retry: ["Retry", "retry", "operate"], cancel: ["Cancel", "close", "operate"], delete: ["Delete", "trash", "admin"], restore: ["Restore", "retry", "admin"], replay: ["Replay", "retry", "operate"] };
const path = (id, verb = "") => `/batches/${id}${verb}`;
const checkbox = (name, label, value = false) => ({ name, label, type: "checkbox", value });
const FIELDS = {
  cancel: [checkbox("cascade", "Also cancel all descendants"), checkbox("force", "Also while a step runs; discard its outcome"), checkbox("undo", "Run undo steps first", true)],
  retry: [{ name: "step", label: "Step", hint: "Empty: the step where each ended." }, { name: "state", label: "State", type: "json", rows: 3, hint: "Empty: each keeps its own." }],
};

/** Ask for a change of the instances `{q}` or `{ids}`, start it as a batch and follow it. */
export function batch(verb, chosen, whom, onDone) {
  const [title] = VERBS[verb];
  let expected;
  confirm({
    title: `${title} ${whom}?`, verb: `${title} instances`, danger: verb === "cancel" || verb === "delete",
    fields: FIELDS[verb],
    preview: async ({ step, state, ...values }) => {
      const found = await api.get("/batches/preview", { params: { verb, ...chosen, ...values } });
      expected = found.count;
      return { count: expected + found.descendants, text: `${found.text}. ${found.effect}` };
    },
    onYes: async (reason, values, report, key) => {
      const answer = await follow(await api.post("/batches", { verb, ...chosen, expected, reason, ...values }, key), report);
      onDone?.();
      return answer;
    },
  });
}

/** Report the progress of a started batch until it has ended; return what a toast says. */
export async function follow({ id, ...now }, report) {
  while (!now.finished_at) {
    report({ done: now.visited, total: now.total, stop: () => api.post(path(id, "/stop")), to: `/batches?id=${id}`, name: `Batch ${id}` });
    await new Promise(next => setTimeout(next, 400));
    now = await api.get(path(id));
  }
  changes.value++;
  return [`${VERBS[now.verb][0]}: ${now.result}`, now.last_error ? "notice" : "done", `/batches?id=${id}`];
}

const Change = ({ verb, onPick, text = VERBS[verb][0] }) => html`<${Button} small icon=${VERBS[verb][1]} need=${VERBS[verb][2]} data-retry=${verb === "retry" || undefined} onClick=${onPick}>${text}<//>`;
const Nothing = ({ icon, title, children }) => html`<${Empty} icon=${icon} level="h2" title=${title}>${children}<//>`;
const pick = q => setQuery({ q, before: null }, { push: true });
const atLeast = one => num(one.count) + (one.is_exact ? "" : "+");

// Instances
const VIEWS = [["Failed, last 24 h", "status:failed age:<24h"], ["Stuck", "status:executing,due stuck:>10m"], ["Retrying", "status:retrying"], ["Waiting for over 1 day", "status:waiting stuck:>1d"]];
const stored = () => {
  try {
    return JSON.parse(localStorage.views).map(one => one.map(String));
  } catch {
    return [];
  }
};

const Views = ({ q }) => {
  const [own, setOwn] = useState(stored);
  const store = (name, ...added) => {
    const all = [...own.filter(one => one[0] !== name), ...added];
    localStorage.views = JSON.stringify(all);
    setOwn(all);
  };
  const save = () => confirm({
    title: "Save view", verb: "Save", asks: false, what: "This browser keeps it. To share it, send the address of the page.",
    fields: [{ name: "name", label: "Name", required: true }], onYes: (_, { name }) => store(name, [name, q]),
  });
  return html`<nav class="wrap views" aria-label="Views">${[...VIEWS, ...own].map(([name, text], i) => html`<span key=${name + i}><${Link} class="view" to=${search(text)} aria-current=${text === q}>${name}<//>
      ${!VIEWS[i] && html`<${Button} icon="close" kind="ghost" small label=${`Remove view ${name}`} onClick=${() => store(name)} />`}</span>`)}
    ${q && html`<button type="button" class="view" onClick=${save}><${Icon} name="plus" size=${12} />Save view</button>`}</nav>`;
};

const About = ({ about, is_error, until, progress }) => html`<div class=${is_error ? "cut c-fail" : "cut soft"} title=${about}>
  ${progress?.total && html`<${Bar} value=${progress.done} max=${progress.total} label="Progress" />`}${about}${until && html` <${Time} at=${until} form="until" />`}</div>`;
const wide = true;

const INSTANCE = [
  { title: "Instance", class: "what", cell: row => html`<${Id} id=${row.id}><code>${row.key ?? `#${row.id}`}</code><//><small>${row.machine}${row.key && html` <code>#${row.id}</code>`}</small><div class="folded"><${About} ...${row} /></div>` },
  { title: "Status", cell: row => html`<${Status} row=${row} /><small class="folded">${row.step}</small>` },
  { title: "Step", wide, class: "name", cell: row => html`<code>${row.step}</code>` },
  { title: "Details", wide, class: "cut", cell: About },
  { title: "Queue", wide, class: "name wider", cell: row => row.queue },
  { title: "Attempt", wide, class: "wider", num: true, cell: row => html`<span class=${row.attempt ? "c-retry" : "dim"}>${num(row.attempt + 1)}</span>` },
  { title: "In this state", wide, num: true, cell: row => html`<${Time} at=${row.since} form="age" />` },
  { title: "Age", num: true, cell: row => html`<${Time} at=${row.inserted_at} form="age" />` },
];

const Instances = ({ query }) => {
  const q = query.get("q") ?? "", before = query.get("before");
  const [ids, setIds] = useState(new Set());
  const [isAll, setAll] = useState(false);
  const select = (set = new Set()) => {
    setIds(set);
    setAll(false);
  };
  useEffect(() => select(), [q]);
  // Rows do not move while some are selected, or on later pages.
  const answer = useData("/instances", { q, before }, { every: before || ids.size ? 0 : 5 });
  const { items: tabs, ...all } = useData("/instances/counts", { q }, { every: 15 }).data ?? { items: [] };
  const wrong = answer.problem?.status === 422 && answer.problem;
  const act = verb => batch(verb, isAll ? { q } : { ids: [...ids] }, isAll ? "all that match" : plural(ids.size, "instance"), select);
  return html`<${Head} title="Instances" sub=${q && !wrong && answer.data?.words} />
    <${Search} value=${q} problem=${wrong} onSearch=${pick} /><${Views} q=${q} />
    ${!wrong && html`<${Panel} flush>${tabs[0] && html`<${Tabs} label="Status" value=${all.selected} onPick=${id => pick(tabs.find(one => one.status === id).q)}
        items=${tabs.map(one => ({ id: one.status, text: one.text, count: atLeast(one), kind: one.status && kindOf(one.status) }))} />`}
      <${Loaded} from=${answer} rows=${12}>${({ items, next, bounded }) => html`${items[0] ? html`<${Table} caption="Instances" columns=${INSTANCE} rows=${items} selected=${ids} onSelect=${select} />`
        : q ? html`<${Nothing} icon="search" title="Nothing matches"><p>Remove a term, or see <${Link} to="/instances">all instances<//> or <${Link} to=${search("status:deleted")}>deleted ones<//>.</p><//>`
          : html`<${Nothing} icon="instances" title="No instances yet"><${Code} text="gen-durable insert MACHINE STATE" /><//>`}
        ${(before || next) && html`<footer class="row"><span class="dim grow">${bounded && `A term has no index: ${num(bounded)} instances were checked.`}</span>
          ${before && html`<${Button} small icon="left" onClick=${() => pick(q)}>Newest<//>`}
          ${next && html`<${Button} small onClick=${() => setQuery({ before: next }, { push: true })}>${bounded ? "Look further" : "Older"}<//>`}</footer>`}`}<//><//>`}
    <${Bulk} count=${ids.size} text=${isAll ? `All ${atLeast(all)}` : undefined} total=${all.count} all=${atLeast(all)} onAll=${!isAll && (() => setAll(true))} onClear=${() => select()}>
      ${(all.selected === "deleted" ? ["restore"] : ["retry", "cancel", "delete"]).map(verb => html`<${Change} verb=${verb} onPick=${() => act(verb)} />`)}<//>`;
};

// Failures
const Group = ({ kind, message, example, machine, step, q, samples, versions, ...group }) => {
  const list = search(q), where = `${machine} · ${step}`, n = num(group.count);
  return html`<div class="group" data-row tabindex="-1"><${Status} kind=${kind}>${""}<//><div><${Link} class="message" to=${list} title=${example}>${message || "No message"}<//>
      <div class="wrap small dim"><${Link} to=${`/m/${encodeURIComponent(machine)}?step=${encodeURIComponent(step)}`}>${where}<//><code>${group.fingerprint}</code>${versions[1] && `versions ${versions.join(", ")}`}<span>e.g. ${samples.map(id => html`<${Id} id=${id} /> `)}</span></div></div>
    <${Bars} values=${group.counts} kind=${kind} height=${26} label=${`${where} over time`} />
    <div class="seen"><${Time} at=${group.last_at} /><small>first <${Time} at=${group.first_at} /></small></div>
    ${kind === "fail" ? html`<${Link} class="n" to=${list}>${n}<//>` : html`<span class="n">${n}</span>`}
    ${kind === "fail" ? html`<${Change} verb="retry" onPick=${() => batch("retry", { q }, `failures of ${where}`)} />` : html`<${Button} small to=${list}>${plural(group.instances, "instance")}<//>`}</div>`;
};

const Failures = ({ query }) => {
  const kind = query.get("tab") ?? "fail";
  const all = { fail: useData("/failures", null, { every: 10 }), retry: useData("/failures/raised", null, { every: 10 }) };
  const tab = (id, text) => ({ id, text, kind: id, count: all[id].data && count(all[id].data.total) });
  return html`<${Head} title="Failures" sub=${`Grouped by step and message, without numbers, ids and quoted values.${all[kind].data?.total ? ` The bars begin at ${moment(all[kind].data.since)}.` : ""}`}>${all.fail.data?.total > 0 && html`<${Change} verb="retry" text="Retry all" onPick=${() => batch("retry", { q: "status:failed" }, "all failed instances")} />`}<//>
    <${Panel} flush><${Tabs} label="Failures" value=${kind} onPick=${tab => setQuery({ tab })} items=${[tab("fail", "Failed"), tab("retry", "Tried again")]} />
      <${Loaded} from=${all[kind]}>${page => (page.groups[0] ? html`${page.groups.map(group => html`<${Group} key=${group.fingerprint} kind=${kind} ...${group} />`)}
        ${page.grouped < page.total && html`<footer class="dim">The newest ${num(page.grouped)} of ${count(page.total)} are grouped.</footer>`}`
        : html`<${Nothing} title="Nothing has failed">Failures appear here until retention removes them.<//>`)}<//><//>`;
};

// Batches
const BATCH = [
  { title: "Batch", class: "what", cell: ({ id, verb, q, words }) => html`${VERBS[verb][0]} #${id}<small>${q == null ? words : html`<${Link} to=${search(q)}>${words}<//>`}</small>` },
  { title: "State", cell: ({ status }) => html`<${Status} kind=${{ pending: "due", running: "run", stopped: "cancel", finished: "done" }[status]}>${status}<//>` },
  { title: "Progress", cell: ({ done, visited, total }) => html`<div class="share"><${Bar} max=${total} parts=${[{ value: done, kind: "run" }, { value: visited - done, kind: "retry" }]} label="Progress" /><small>${num(visited)} of ${num(total)}</small></div>` },
  { title: "Outcome", wide, class: "cut", cell: one => html`<div class=${one.last_error ? "cut c-retry" : "cut soft"}>${one.result}</div>` },
  { title: "By", wide, class: "name", cell: one => html`${one.actor}<small>${one.reason}</small>` },
  { title: "Created", wide, num: true, cell: one => html`<${Time} at=${one.created_at} />` },
  { title: "", cell: ({ id, verb, status, finished_at }) => !finished_at && html`<div class="actions">
    ${status === "pending" && html`<${Button} icon="play" small need=${VERBS[verb][2]} onClick=${() => api.post(path(id, "/run"))}>Continue<//>`}
    <${Button} icon="close" small need="operate" onClick=${() => change(path(id, "/stop"), { title: `Stop batch ${id}?`, verb: "Stop", what: "What it has changed stays changed." })}>Stop<//></div>` },
];
const details = ({ details, reason, options, finished_at, stopped_by, last_error }) => html`<dl class="facts">
  ${details.map(one => html`<dt class="num">${num(one.count)}</dt><dd class=${one.is_change ? "" : "c-retry"}>${one.text}</dd>`)}
  ${Object.entries({ reason, ...options, ended: finished_at && html`<${Time} at=${finished_at} />`, stopped_by, last_error }).map(([name, value]) => value && html`<dt>${name.replace("_", " ")}</dt><dd>${value}</dd>`)}</dl>`;

const Batches = ({ query }) => html`<${Head} title="Batches" sub="Changes of many instances. A batch can be stopped, and continues if its process ends." />
  <${Panel} flush class="log"><${Loaded} from=${useData("/batches", null, { topic: "batches" })}>${({ items }) => (items[0] ? html`<${Table} caption="Batches" columns=${BATCH} rows=${items} more=${details} opened=${+query.get("id")} />`
    : html`<${Nothing} icon="batches" title="No batches yet"><p>Select <${Link} to="/instances">instances<//> to retry, cancel or delete them.</p><//>`)}<//><//>`;

const ALL = { instances: Instances, failures: Failures, batches: Batches };
export default props => html`<${ALL[route.value.parts[0]]} ...${props} />`;
