// Overview: what needs attention, what was executed, and all machines.
import { html, useState } from "../../vendor/preact.js";
import { change, count, dur, local, num, pct, plural, rate, search, seconds, setQuery, T, useData } from "../lib.js";
import { Button, Figure, Glyph, Head, Legend, Link, Loaded, Panel, Range, rangeOf, Segment, Time } from "../ui.js";
import { Chart, Spark } from "../charts.js";
import { Card, FirstRun } from "./machines.js";

const FEW = 6, MOST_CARDS = 12;
const strong = (text, [name, ...rest]) => {
  const at = name ? text.indexOf(name) : -1;
  return at < 0 ? text : html`${text.slice(0, at)}<b>${name}</b>${strong(text.slice(at + name.length), rest)}`;
};

const Attention = ({ items }) => {
  const [all, setAll] = useState(items.length <= FEW + 1);
  return html`<${Panel} title="Needs attention" flush aside=${html`<${Link} to="/system">All checks<//>`}><div class="list attention">
    ${items.slice(0, all ? undefined : FEW).map(item => html`<div key=${item.what}><${Glyph} kind=${item.severity === "problem" ? "fail" : "notice"} size=${14} label=${item.severity} />
      <p><span class="what">${strong(local(item.what), item.names)}</span><span class="small cut" title=${item.detail}>${local(item.detail)}</span></p>${item.since && html`<span class="dim small wide">${item.code === "failures" ? html`last <${Time} at=${item.since} />` : html`for <${Time} at=${item.since} form="age" />`}</span>`}
      ${item.action ? html`<${Button} small need=${item.action.need} onClick=${() => change(item.action.path, item.action)}>${item.action.text}<//>` : html`<${Button} small to=${item.page}>${item.title}<//>`}</div>`)}
    ${!all && html`<button type="button" class="more" onClick=${() => setAll(true)}>${num(items.length - FEW)} more</button>`}
    ${!items.length && html`<div><${Glyph} kind="done" /><p class="soft">All checks passed, no queue is paused, nothing failed.</p></div>`}</div><//>`;
};

const Figures = ({ data, range }) => {
  const { total } = data, per = name => rate(total[name] / seconds(data.period)), ended = total.done + total.failed + total.cancelled;
  return html`<div class="figures">${[
    ["Started", per("started"), num(total.started), search(`age:<${range}`), data.started, "due"],
    ["Done", per("done"), num(total.done), search(`status:done ended:<${range}`), data.done, "done"],
    ["Failed", pct(ended ? total.failed / ended : 0), num(total.failed), search(`status:failed ended:<${range}`), data.failed, "fail", total.failed && "fail"],
    ["Queue wait p95", dur(total.wait.p95), `p50 ${dur(total.wait.p50)}`, "/queues", data.wait.p95.map(seconds), "run"],
    ["Due now", count(data.due_now), `${num(data.executing_now)} running`, search("status:due"), data.due, "retry"],
    ["Waiting", count(data.waiting_now), "", search("status:waiting"), data.waiting, "wait"],
  ].map(([label, value, unit, to, values, kind, alarm]) => html`<${Figure} label=${label} value=${value} unit=${unit} to=${to} kind=${alarm} spark=${html`<${Spark} values=${values} kind=${kind} label=${label} height=${28} />`} />`)}</div>`;
};

const Charts = ({ data, of }) => {
  const x = data.started.map((_, i) => T(data.since) + (i + 0.5) * seconds(data.width));
  const keys = [["done", "Done", "bar"], ["fail", "Failed", "bar"], ["due", "Started"]], latencies = [["done", "p50"], ["run", "p95", "area"], ["wait", "p99"]];
  const drawn = (keys, values) => keys.map(([kind, name, type]) => ({ kind, name, type, dash: kind === "due", values: values(name) })).reverse();
  return html`<div class="cols2">
    <${Panel} title="Throughput per minute" aside=${html`<${Legend} items=${keys} />`}><${Chart} x=${x} label="Throughput per minute" series=${drawn(keys, name => data[name.toLowerCase()])} /><//>
    <${Panel} title="Latency" aside=${html`<${Legend} items=${latencies} /><${Segment} label="Latency of" items=${[["wait", "Queue wait"], ["run", "Step run"]]} value=${of} onPick=${id => setQuery({ latency: id === "wait" ? null : id })} />`}>
      <${Chart} x=${x} log text=${dur} label="Latency" series=${drawn(latencies, name => data[of][name].map(seconds))} /><//></div>`;
};

export default function Overview({ query }) {
  const range = rangeOf(query);
  const figures = useData("/overview", { range }, /m|1h/.test(range) ? { topic: `overview:${range}` } : { every: 60 });
  const attention = useData("/attention", null, { every: 15 }), items = attention.data?.items;
  const answer = useData("/machines", null, { every: 30 });
  const population = useData("/population", null, { topic: "population" }).data?.machines;
  const started = name => figures.data?.machines[name]?.started ?? 0;
  return html`<${Loaded} from=${answer}>${({ machines }) => html`<${Head} title="Overview" sub=${plural(machines.length, "machine")}><${Range} value=${range} /><//>
    ${(machines.length > 0 || items?.length > 0) && html`<${Loaded} from=${attention} rows=${2}>${() => html`<${Attention} items=${items} />`}<//>`}
    ${!machines.length ? html`<${FirstRun} />` : html`<${Loaded} from=${figures}>${data => html`<${Figures} data=${data} range=${range} /><${Charts} data=${data} of=${query.get("latency") === "run" ? "run" : "wait"} />`}<//>
      <div class="head"><h2>Machines</h2><div class="tools"><${Link} to="/machines">All machines<//></div></div>
      <div class="cards">${machines.toSorted((a, b) => started(b.name) - started(a.name)).slice(0, MOST_CARDS).map(one => html`<${Card} key=${one.name} machine=${one} steps=${population?.[one.name]} figures=${figures.data && { range, started: started(one.name) / seconds(figures.data.period) }} />`)}</div>`}`}<//>`;
}
