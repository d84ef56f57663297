// Queues, schedules, workers, outbox, audit, system: one module, because they share much and each is small.
import { html, useEffect, useRef } from "../../vendor/preact.js";
import { bytes, change, count, dur, local, moment, now, num, plural, rate, route, search, seconds, setQuery, T, term, useData, write } from "../lib.js";
import { follow } from "./lists.js";
import { Bars } from "../charts.js";
import { Bar, Button, Code, Empty, Figure, Glyph, Head, Id, Json, kindOf, Legend, Link, Loaded, Panel, Ring, Segment, Status, Table, Tabs, Time } from "../ui.js";

const to = encodeURIComponent;
const pairs = (...names) => names.map(name => [name, name]);
const To = props => html`<${Link} class="" ...${props} />`;
const Machine = ({ name }) => html`<${To} to=${`/m/${to(name)}`}>${name}<//>`;
const Chips = ({ of }) => html`<div class="wrap">${of.map(([name, value]) => html`<span class="chip">${name} <b>${value}</b></span>`)}</div>`;
const Use = ({ n, of }) => html`<${Bar} value=${n} max=${of} label="Capacity in use" /><span>${num(n)} / ${num(of)}</span>`;
const Paused = ({ is, subject }) => html`<${To} class="chip c-retry" to=${`/audit?who=all&subject=${subject}:${to(is.name)}`}>paused${is.paused_by && ` by ${is.paused_by}`}, <${Time} at=${is.paused_at} form="age" /><//>`;

/** Fields of an answer, each as its type wants. */
const shown = value => (typeof value === "boolean" ? (value ? "yes" : "no") : typeof value === "object" ? html`<${Json} value=${value} />` : /^\d{4}-\d\d-\d\dT/.test(value) ? html`${moment(value, { ms: true })} (<${Time} at=${value} form=${T(value) > now() ? "until" : "ago"} />)` : /^PT?\d/.test(value) ? dur(value) : `${value}`);
const Facts = one => html`<dl class="facts">${Object.entries(one).map(([name, value]) => value != null && html`<dt>${name === "postgresql" ? "PostgreSQL" : name.replaceAll("_", " ")}</dt><dd>${shown(value)}</dd>`)}</dl>`;

const Act = ({ path, icon, verb, of, need = "operate", text, kind, ...rest }) => html`<${Button} small=${!kind} kind=${kind} icon=${icon} need=${need} label=${`${verb} ${of}`} onClick=${() => change(path, { title: `${verb} ${of}${rest.fields ? "" : "?"}`, verb, ...rest })}>${text}<//>`;

/** A field that keeps what is typed while the page changes. */
const Filter = ({ name, value = "" }) => {
  const field = useRef();
  useEffect(() => void (field.current.value = value), [value]);
  return html`<input ref=${field} type="search" aria-label=${name} placeholder=${name} onChange=${event => setQuery({ [name]: event.target.value, before: "" })} />`;
};

/** A list of events by pages: tabs, filters, table. */
const Log = ({ path, query, by, tabs, filters, columns, icon, empty, head }) => {
  const params = { [by]: tabs[0][0], ...Object.fromEntries(query) };
  const answer = useData(path, params, { every: params.before ? 0 : 5 });
  return html`${head?.(answer.data ?? {})}<${Panel} flush class="log"><${Tabs} label="Show" value=${params[by]} onPick=${value => setQuery({ [by]: value, before: "" })} items=${tabs.map(([id, text, kind]) => ({ id, text, kind }))} />
    <div class="filters">${filters.map(name => html`<${Filter} key=${name} name=${name} value=${params[name]} />`)}</div>
    <${Loaded} from=${answer}>${({ items, next }) => html`${items.length ? html`<${Table} caption="Events" columns=${columns} rows=${items} keyOf=${one => one.number} more=${Facts} />` : html`<${Empty} icon=${icon} title="No events">${empty}<//>`}
      <div class="actions">${params.before && html`<${Button} icon="left" onClick=${() => setQuery({ before: "" })}>Newest<//>`}${next && html`<${Button} onClick=${() => setQuery({ before: next }, { push: true })}>Older<//>`}</div>`}<//><//>`;
};

// Queues and limits
const idle = queue => !queue.workers && !queue.is_paused && queue.due > 0;
const QueueAct = ({ queue: { name, due }, verb, ...rest }) => html`<${Act} verb=${verb} of=${`queue ${name}`} path=${`/queues/${to(name)}/${verb.toLowerCase()}`} text=${verb} preview=${() => `${count(due)} due`} ...${rest} />`;
const counted = (title, name, is, rest) => ({ title, num: true, ...rest, cell: queue => html`<${To} class=${queue[name] ? "" : "dim"} to=${search(`${term("queue", queue.name)} status:${is}`)}>${count(queue[name])}<//>` });
const queueColumns = [
  { title: "Queue", cell: queue => html`<span class="row"><${Glyph} kind=${queue.is_paused ? "wait" : idle(queue) ? "fail" : "run"} label=${queue.is_paused ? "Paused" : idle(queue) ? "Not served" : "Active"} />
    <span class="wrap"><b class="mono">${queue.name}</b>${queue.is_paused && html`<${Paused} is=${queue} subject="queue" />`}${idle(queue) && html`<span class="chip c-fail">no live worker</span>`}${queue.concurrency != null && html`<span class="chip">${num(queue.concurrency)} per worker</span>`}</span></span>` },
  counted("Due", "due", "due"),
  { title: "Oldest due", num: true, cell: queue => html`<span class=${idle(queue) ? "c-fail" : queue.oldest ? "" : "dim"}>${dur(queue.oldest)}</span>` },
  { title: "Capacity in use", width: "180px", wide: true, cell: queue => html`<${To} class="row" to=${search(`${term("queue", queue.name)} status:executing`)}><${Use} n=${queue.executing} of=${queue.capacity} /><//>` },
  counted("Later", "future", "later", { class: "wide wider" }),
  counted("Gated", "gated", "gated", { class: "wide wider" }),
  { title: "Workers", num: true, wide: true, cell: queue => html`<${To} to=${`/workers?queue=${to(queue.name)}`}>${num(queue.workers)}<//>` },
  { title: "", cell: queue => html`<div class="actions">
    ${queue.is_paused ? html`<${QueueAct} queue=${queue} icon="play" verb="Resume" />` : html`<${QueueAct} queue=${queue} icon="pause" verb="Pause" what="Workers start nothing from it until it is resumed. Running steps finish." />`}
    <${QueueAct} queue=${queue} icon="edit" verb="Limit" shows_changes text="" path=${`/queues/${to(queue.name)}/concurrency`} what="How many of its instances each worker runs at a time." fields=${[{ name: "concurrency", label: "Per worker", type: "number", value: queue.concurrency, hint: "Empty: the setting of the worker." }]} /></div>` },
];

const LIMITS = {
  rate: ["Rate limits", "across all workers", "Instances with the limit wait until it is set.", one => `${num(one.allowed)} per ${dur(one.per).replace(".0", "")}, burst ${num(one.burst)}`, ["allowed", "Starts per period"], ["per", "Period in seconds", "seconds"], ["burst", "Burst"]],
  concurrency: ["Concurrency limits", "executions at a time, of each key", "Each key then has one slot.", one => `${plural(one.slots, "slot")} for each key`, ["slots", "Slots of each key"]],
};
const SetLimit = ({ one = {}, kind, name = one.name }) => html`<${Act} icon=${name ? "edit" : "plus"} shows_changes=${name} verb="Set" of=${name ? `limit ${name}` : `${kind} limit`} path=${values => `/limits/${kind}/${to(name ?? values.name)}`}
  fields=${[...(name ? [] : [{ name: "name", label: "Name", required: true, inPath: true }]), ...LIMITS[kind].slice(4).map(([field, label, type = "number"]) => ({ name: field, label, type, value: type === "number" ? one[field] : seconds(one[field]) ?? 1, required: field !== "burst" }))]} />`;
const Limits = ({ kind, limits }) => html`<${Panel} title=${LIMITS[kind][0]} aside=${html`${LIMITS[kind][1]}<${SetLimit} kind=${kind} />`} flush><div class="list">${limits.filter(one => one.kind === kind).map(one => html`<div key=${one.name}>
  <div class="grow"><b class="mono">${one.name}</b><div class="soft small">${LIMITS[kind][3](one)}</div></div><${SetLimit} one=${one} kind=${kind} /><${Act} icon="trash" danger verb="Remove" of=${`limit ${one.name}`} path=${`/limits/${kind}/${to(one.name)}/remove`} what=${LIMITS[kind][2]} /></div>`)}</div><//>`;

const Queues = () => html`<${Head} title="Queues & limits" sub="A paused queue starts nothing in any worker. Running steps finish." />
  <${Loaded} from=${useData("/queues", null, { topic: "queues" })}>${({ queues, limits }) => html`<${Panel} title="Queues" flush>${queues.length
    ? html`<${Table} caption="Queues" columns=${queueColumns} rows=${queues} keyOf=${queue => queue.name} />`
    : html`<${Empty} icon="queues" title="No queues yet">A queue appears when a worker serves it, or when an instance is inserted into it.<//>`}<//>
    <div class="cols2 start">${Object.keys(LIMITS).map(kind => html`<${Limits} kind=${kind} limits=${limits} />`)}</div>`}<//>`;

// Schedules
const MOST = 48;
const ScheduleAct = ({ one: { name }, verb, ...rest }) => html`<${Act} verb=${verb} of=${name} path=${`/schedules/${to(name)}/${verb.toLowerCase()}`} ...${rest} />`;
const Edit = ({ one = {}, name = one.name }) => html`<${Act} icon=${name ? "edit" : "plus"} shows_changes=${name} text=${name ? "" : "Add"} kind=${name ? "" : "primary"} verb=${name ? "Edit" : "Add"} of=${name ?? "a schedule"} path=${values => `/schedules/${to(name ?? values.name)}`}
  what="A worker whose code declares the schedule stores that definition when it starts." fields=${[
    ...(name ? [] : [{ name: "name", label: "Name", required: true, inPath: true }]),
    { name: "machine", label: "Machine", value: one.machine, required: true },
    { name: "cron", label: "Cron", value: one.cron, hint: "30 2 * * MON-FRI: minute, hour, day, month, weekday" },
    { name: "every", label: "Or interval in seconds", type: "seconds", value: seconds(one.every) },
    { name: "tz", label: "Time zone", value: one.tz ?? "UTC" },
    { name: "missed", label: "Missed fire times", value: one.missed ?? "once", options: pairs("once", "skip", "all") },
    { name: "overlap", label: "While an instance is live", value: one.overlap ?? "allow", options: pairs("allow", "skip") },
    { name: "state", label: "State", type: "json", rows: 4, value: write(one.state ?? {}, 2) },
    { name: "options", label: "Options", type: "json", rows: 2, value: write(one.options ?? {}), hint: "queue, priority, correlation_key, rate_limit …" },
  ]} />`;

const Strip = ({ times, from, full = times.length >= MOST }) => html`<span class=${full ? "strip full" : "strip"} role="img" aria-label=${`${times.length}${full ? " or more" : ""} fire times`}>
  ${full || times.map(time => html`<i style=${{ left: `${(T(time) - from) / 864}%` }} />`)}</span>`;

const Runs = ({ runs, last_error: error }) => html`<span class="runs">${runs.toReversed().map(({ id, status }) => html`<${Link} to=${`/i/${id}`} title=${`#${id} ${status}`}><${Glyph} kind=${kindOf(status)} label=${`#${id} ${status}`} /><//>`)}</span>
  ${error && html`<small class="c-retry cut" title=${error}>not inserted: ${error}</small>`}`;

const scheduleColumns = from => [
  { title: "Schedule", cell: one => html`<b>${one.name}</b><small><${Machine} name=${one.machine} /></small>` },
  { title: "When", wide: true, cell: one => html`${one.when}<small>${one.cron && html`<span class="mono">${one.cron}</span> ${one.tz}`}</small>` },
  { title: "Next", class: "note", cell: one => (one.paused_at ? html`<${Paused} is=${one} subject="schedule" /><small class="cut">${one.pause_reason}</small>` : html`<${Time} at=${one.next_at} form="until" /><small>${moment(one.next_at)}</small>`) },
  { title: "Next 24 hours", class: "wide wider", width: "22%", cell: one => html`<${Strip} times=${one.upcoming} from=${from} />` },
  { title: "Last runs", class: "note wide wider", cell: Runs },
  { title: "Fired", wide: true, num: true, cell: one => html`<${To} to=${search(term("schedule", one.name))}>${num(one.fired_count)}<//>` },
  { title: "", cell: one => html`<div class="actions"><${ScheduleAct} one=${one} icon="bolt" verb="Trigger" what="Inserts an instance now. The fire times stay the same." done=${({ id, is_new: isNew }) => [isNew ? `Inserted #${id}` : `#${id} already has the key`, isNew ? "done" : "notice", `/i/${id}`]} />
    ${one.paused_at ? html`<${ScheduleAct} one=${one} icon="play" verb="Resume" />` : html`<${ScheduleAct} one=${one} icon="pause" verb="Pause" what="Fire times during the pause are skipped." />`}<${Edit} one=${one} />
    <${ScheduleAct} one=${one} icon="trash" verb="Delete" need="admin" danger what="Its instances stay. A worker whose code declares the schedule adds it again when it starts." /></div>` },
];
const scheduleFacts = ({ runs, upcoming, name, ...one }) => html`<${Runs} runs=${runs} /><${Facts} ...${one} />`;

const Schedules = () => html`<${Head} title="Schedules" sub="Each fire time inserts one instance, however many workers run."><${Edit} /><//>
  <${Loaded} from=${useData("/schedules", null, { every: 5 })}>${({ schedules, at }) => html`<${Panel} flush>${schedules.length
    ? html`<${Table} caption="Schedules" columns=${scheduleColumns(T(at))} rows=${schedules} keyOf=${one => one.name} more=${scheduleFacts} />`
    : html`<${Empty} icon="schedules" title="No schedules yet">Declare schedules in the code of a worker, or add one here.<//>`}<//>`}<//>`;

// Workers
const STATES = { live: "run", draining: "retry", blocked: "fail", silent: "fail" };
const Worker = ({ name, state, capacity, executing, serves, running, machines, blocked, rate: speed, history, seen_at: seen, started_at: started, ...rest }) => html`<${Panel} title=${html`<span class="row mono"><${Glyph} kind=${STATES[state]} />${name}</span>`}
  aside=${html`<span class=${`chip c-${STATES[state]}`}>${state}</span>`}><div class="stack">
  <div class="row"><${Ring} value=${executing} max=${capacity} kind=${STATES[state]} label="Capacity in use" /><div class="grow"><${To} to=${search(`${term("worker", name)} status:executing`)}><b>${num(executing)}</b> of ${num(capacity)} running<//>, ${rate(speed)}
    <div class="small dim">heartbeat <${Time} at=${seen} />, up <${Time} at=${started} form="age" /></div></div><div class="mini"><${Bars} values=${history} kind=${STATES[state]} label="Executions per 20 s" height=${30} /></div></div>
  ${blocked && html`<div class="c-fail">${blocked.machine ? html`<${Id} id=${blocked.id} /> ${blocked.machine}, step ${blocked.step},` : "Code outside of its steps"} blocks the event loop, <${Time} at=${blocked.since} form="age" /></div>`}
  <div class="serves">${serves.map(one => html`<${To} to=${search(term(one.is_prefix ? "machine" : "queue", one.name))}>${one.name}<//><${Use} n=${one.executing} of=${one.concurrency ?? one.capacity} />`)}</div>
  <${Facts} ...${rest} /><div class="wrap">${machines.map(([one, version]) => html`<span class="chip"><${Machine} name=${one} /> v${version}</span>`)}</div>
  ${running.length > 0 && html`<div><h3>Running now</h3>${running.map(one => html`<div class="row"><${Id} id=${one.id} /><span class="soft cut grow">${one.correlation_key ?? one.machine} · ${one.step}${one.attempt > 0 && ` · attempt ${one.attempt + 1}`}</span><${Time} at=${one.leased_at} form="age" /></div>`)}</div>`}</div><//>`;

const Workers = ({ query }) => {
  const queue = query.get("queue");
  return html`<${Head} title="Workers" sub="Workers that stopped without a clean shutdown stay here for 10 minutes." badge=${queue && html`<${Button} small icon="close" onClick=${() => setQuery({ queue: "" })}>queue ${queue}<//>`} />
    <${Loaded} from=${useData("/workers", null, { topic: "workers" })}>${({ workers }) => {
      const found = workers.filter(one => !queue || one.serves.some(each => each.name === queue));
      return found.length ? html`<div class="cards">${found.map(one => html`<${Worker} key=${one.name} ...${one} />`)}</div>` : html`<${Panel}><${Empty} icon="workers" title="No worker runs"><${Code} text="gen-durable worker app.py" /><//><//>`;
    }}<//>`;
};

// Outbox
const Replay = props => html`<${Act} icon="retry" verb="Replay" what="The sink gets them again, under the same ids." ...${props} />`;
const eventColumns = [
  { title: "Event", cell: one => html`${one.type}<small class="mono">${one.id}</small>` },
  { title: "Subject", class: "note", cell: one => html`<${Id} id=${one.instance_id}>${one.subject}<//>` },
  { title: "Sink", wide: true, cell: one => one.sink },
  { title: "State", cell: ({ state }) => html`<${Status} kind=${{ pending: "due", dead: "fail" }[state] ?? "done"}>${state}<//>` },
  { title: "Last error", wide: true, class: "cut", cell: one => html`<span class="c-fail">${one.last_error}</span>` },
  { title: "Emitted", wide: true, num: true, cell: one => html`<${Time} at=${one.created_at} />` },
  { title: "", cell: one => one.state !== "pending" && html`<${Replay} of=${`event ${one.id}`} path="/outbox/replay" body=${{ numbers: [one.number] }} />` },
];

const Outbox = ({ query }) => html`<${Head} title="Outbox" sub="Events commit with the outcome that emits them. Sinks get them afterwards, at least once, in order for each instance." />
  <${Loaded} from=${useData("/outbox", null, { topic: "outbox" })}>${({ sinks, period }) => sinks.map(({ sink, ...one }) => {
    const list = state => `/outbox?state=${state}&sink=${to(sink)}`;
    return html`<${Panel} title=${sink} flush aside=${one.dead > 0 && html`<${Replay} of=${`dead letters of ${sink}`} text="Replay dead letters" path="/outbox/replay-dead" done=${follow} preview=${() => plural(one.dead, "dead letter", count(one.dead))} body=${{ sink }} />`}>
      <div class="figures"><${Figure} label="Published" value=${rate(one.published / seconds(period))} note=${`${dur(one.p50)} after commit, p95 ${dur(one.p95)}`} to=${list("published")} />
        <${Figure} label="Pending" value=${count(one.pending)} note=${one.oldest && html`oldest <${Time} at=${one.oldest} />, ${plural(one.attempts, "failure")}`} to=${list("pending")} />
        <${Figure} label="Dead letters" kind=${one.dead && "fail"} value=${count(one.dead)} note=${one.dead_at && html`last <${Time} at=${one.dead_at} />: ${one.last_error}`} to=${list("dead")} /></div><//>`;
  })}<//>
  <${Log} path="/outbox/events" query=${query} by="state" tabs=${[["", "All"], ["pending", "Pending", "due"], ["dead", "Dead", "fail"], ["published", "Published", "done"]]} filters=${["sink", "type", "instance"]} columns=${eventColumns} icon="outbox" empty="Steps emit events with their outcome." />`;

// Audit
const KINDS = { failed: "fail", crashed: "fail", retried: "retry", paused: "retry", expired: "wait", signalled: "wait", cancelled: "cancel", deleted: "deleted", removed: "deleted", succeeded: "done", restored: "done", finished: "done", started: "run", triggered: "run", resumed: "run", replayed: "retry" };
const PAGES = { schedule: "schedules", audit: "audit", schema: "system" };
const auditColumns = [
  { title: "At", cell: one => moment(one.at) },
  { title: "Event", cell: ({ event }) => html`<${Status} kind=${KINDS[event] ?? "due"}>${event.replace("_", " ")}<//>` },
  { title: "Actor", cell: one => one.actor ?? html`<span class="dim">engine</span>` },
  { title: "Subject", cell: ({ instance_id: id, subject }) => (id ? html`<${Id} id=${id} />` : html`<${To} to=${`/${PAGES[subject.split(":")[0]] ?? (subject.startsWith("batch:") ? `batches?id=${subject.slice(6)}` : "queues")}`}>${subject}<//>`) },
  { title: "Reason", wide: true, class: "cut", cell: ({ reason, data }) => reason ?? [data.step, data.error].filter(Boolean).join(": ") },
];
const auditHead = ({ level }) => html`<${Head} title="Audit" sub="The statement that makes a change also writes its event.">${level && html`Level <${Segment} label="Level" need="admin" value=${level} items=${pairs("off", "failures", "all")}
  onPick=${level => change("/audit/level", { title: `Set the audit level to ${level}?`, verb: "Set", what: level === "off" ? "Later changes are not recorded: neither who made them nor why. This one is." : "It applies to all clients and workers.", body: { level } })} />`}<//>`;
const Audit = ({ query }) => html`<${Log} path="/audit" query=${query} by="who" tabs=${[["people", "What people did"], ["trouble", "What went wrong"], ["all", "All"]]} filters=${["actor", "event", "subject", "instance"]} columns=${auditColumns} icon="audit" head=${auditHead} empty="Changes of instances, queues, limits and schedules appear here." />`;

// System
const Finding = ({ severity, what, fix }) => html`<div><${Glyph} kind=${severity === "problem" ? "fail" : "notice"} label=${severity} /><div class="grow stack"><b>${local(what)}</b>${fix.split(/[;`]? ?(gen-durable [^;`]+)[;`]? ?/).map((text, i) => (i % 2 ? html`<${Code} text=${text} />` : text && html`<span>${text}</span>`))}</div></div>`;
const size = one => one.bytes + one.index_bytes;
const tableColumns = max => [
  { title: "Table", cell: one => one.name },
  { title: "Rows", num: true, cell: one => num(one.live) },
  { title: "Dead", num: true, cell: one => html`<span class=${one.dead > 2000 && one.dead > one.live * .3 ? "c-retry" : "dim"}>${num(one.dead)}</span>` },
  { title: "Vacuumed", num: true, class: "wide wider", cell: one => html`<${Time} at=${one.vacuumed_at} />` },
  { title: "Size", width: "25%", class: "wide wider", cell: one => html`<${Bar} max=${max} parts=${[{ kind: "run", value: one.bytes }, { kind: "wait", value: one.index_bytes }]} label=${`indexes ${bytes(one.index_bytes)}`} />` },
  { title: "Total", num: true, cell: one => bytes(size(one)) },
];
const System = () => {
  const answer = useData("/system", null, { every: 30 });
  return html`<${Head} title="System"><${Button} icon="retry" busy=${answer.loading} onClick=${answer.reload}>Check again<//><//>
    <${Loaded} from=${answer}>${({ findings, passed, tables, retention, settings, at, bytes: total, is_standby: standby, ...server }) => html`<div class="cols2 start"><div class="stack"><${Panel} title="Doctor" aside=${plural(findings.length, "finding")} flush><div class="list findings">${findings.map(Finding)}
        <div><${Glyph} kind="done" label="passed" /><div class="wrap">${passed.map(code => html`<span class="chip mono">${code}</span>`)}</div></div></div><//>
      <${Panel} title="Server"><${Facts} ...${server} size=${bytes(total)} standby=${standby} /><//>
      <${Panel} title="Settings"><div class="stack"><${Chips} of=${Object.entries(settings)} /><h3>Retention (settings of the dashboard process)</h3><${Chips} of=${Object.entries(retention).map(([name, time]) => [name.slice(10), dur(time)])} /></div><//></div>
      <${Panel} title="Tables" aside=${html`<${Legend} items=${[["run", "rows"], ["wait", "indexes"]]} />`} flush><${Table} caption="Tables" columns=${tableColumns(size(tables[0]))} rows=${tables} keyOf=${one => one.name} more=${Facts} /><//></div>`}<//>`;
};

const ALL = { queues: Queues, schedules: Schedules, workers: Workers, outbox: Outbox, audit: Audit, system: System };
export default props => html`<${ALL[route.value.parts[0]]} ...${props} />`;
