// All machines, as cards with their picture in small.
import { html, useState } from "../../vendor/preact.js";
import { count, num, plural, rate, search, seconds, term, useData } from "../lib.js";
import { Button, Code, Empty, Glyph, Head, Link, Loaded, Panel } from "../ui.js";
import { Mini } from "../graph.js";

// Of each step and version the server counts at most these many live and done instances.
const MOST = 500, MOST_DONE = 100;
export const STATES = { executing: "run", due: "due", later: "later", gated: "gated", retrying: "retry", awaiting_signal: "wait", awaiting_children: "kids", failed: "fail" };
const WAITS = { signal: ["awaiting_signal"], children: ["awaiting_children"], delay: ["later"] };

/** Counts by state, of all steps. */
export const totals = (steps = {}) => {
  const sum = {};
  for (const states of Object.values(steps)) for (const [state, n] of Object.entries(states)) sum[state] = (sum[state] ?? 0) + n;
  return sum;
};

/** What `Mini` shows: running and due steps are coloured, those with failed instances are red. */
const heats = (picture, steps, ends) => Object.fromEntries(picture.nodes.map(({ id, kind, tabs }) => {
  const n = steps[id] ?? {}, busy = (n.executing ?? 0) + (n.due ?? 0) + (n.retrying ?? 0);
  return [id, { heat: busy ? ["run", .35 + Math.min(.5, Math.log10(1 + busy) / 4)] : n.failed ? ["fail", .8] : ["run", ends[kind] ? 1 : 0], tabs: tabs.map(tab => ({ n: (WAITS[tab.kind] ?? []).reduce((sum, state) => sum + (n[state] ?? 0), 0) })) }];
}));

/** A machine: name, version, picture, and where its instances are. */
export const Card = ({ machine, steps = {}, figures }) => {
  const { name, version, picture, workers } = machine, sum = totals(steps);
  const shown = Object.entries(STATES).filter(([state]) => sum[state]);
  return html`<article class="card"><header><h3><${Link} class="whole" to=${`/m/${encodeURIComponent(name)}`}>${name}<//></h3><span class="dim">v${version}</span>
      ${!workers ? html`<span class="chip c-retry">no worker</span>` : figures?.started > 0 && html`<${Link} class="rate" to=${search(`${term("machine", name)} age:<${figures.range ?? "15m"}`)} title="Started">${rate(figures.started)}<//>`}</header>
    <div class="paper">${picture ? html`<${Mini} layout=${picture} nodes=${heats(picture, steps, sum)} />` : html`<span class="dim small">no picture</span>`}</div>
    <footer>${shown.length ? shown.map(([state, kind]) => html`<${Link} class=${`c-${kind}`} to=${search(`${term("machine", name)} status:${state}`)} title=${state.replace("_", " ")}><${Glyph} kind=${kind} size=${11} label=${state.replace("_", " ")} />${count(sum[state], MOST)}<//>`)
      : html`<span class="dim">no live instances</span>`}${sum.done > 0 && html`<${Link} class="c-done" to=${search(`${term("machine", name)} status:done`)}><${Glyph} kind="done" size=${11} label="done" />${count(sum.done, MOST_DONE)}<//>`}</footer></article>`;
};

/** What a new installation shows. */
export const FirstRun = () => html`<${Panel}><${Empty} icon="machines" title="No machines yet"><p>A machine appears here when a worker that has it starts:</p><${Code} text="gen-durable worker app.py" /><//><//>`;

export default function Machines() {
  const answer = useData("/machines", null, { every: 10 });
  const population = useData("/population", null, { topic: "population" }).data;
  const rates = useData("/overview", null, { every: 30 }).data;
  const [text, setText] = useState("");
  return html`<${Head} title="Machines" sub=${answer.data && `${plural(answer.data.machines.length, "machine")}; figures of all versions`}>
      <div class="filters"><input type="search" aria-label="Filter machines" placeholder="Filter by name" value=${text} data-search onInput=${event => setText(event.target.value)} /></div><//>
    <${Loaded} from=${answer}>${({ machines }) => {
      const shown = machines.filter(one => one.name.toLowerCase().includes(text.trim().toLowerCase()));
      return !machines.length ? html`<${FirstRun} />` : !shown.length ? html`<${Empty} icon="search" title="No machine has this name"><${Button} onClick=${() => setText("")}>Show all ${num(machines.length)}<//><//>`
        : html`<div class="cards">${shown.map(one => html`<${Card} key=${one.name} machine=${one} steps=${population?.machines[one.name]} figures=${rates && { started: (rates.machines[one.name]?.started ?? 0) / seconds(rates.period) }} />`)}</div>`;
    }}<//>`;
}
