// The shell: navigation, top bar, dialogs, and the page that belongs to the address.
import { html, render, useEffect, useErrorBoundary, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { age, api, clock, count, dialog, down, go, href, live, loadSession, num, parse, pause, retry, route, search, session, theme, toast, toasts, useData, write } from "./lib.js";
import { Button, Diff, Empty, Glyph, Icon, Link, Modal, Skeleton, Trouble, useChoice } from "./ui.js";

// [path, icon, title, key, count of the shell]; a group starts with its title.
const ROUTES = [
  ["", "overview", "Overview", "o"],
  ["machines", "machines", "Machines", "m", shell => [shell.machines]],
  ["instances", "instances", "Instances", "i"],
  ["failures", "failures", "Failures", "f", shell => [shell.failures, "fail"]],
  "Operate",
  ["queues", "queues", "Queues & limits", "q", shell => [shell.queues_paused, "retry", "paused"]],
  ["schedules", "schedules", "Schedules", "s"],
  ["workers", "workers", "Workers", "w", shell => [shell.workers, shell.workers ? "" : "fail"]],
  ["outbox", "outbox", "Outbox", "b", shell => [shell.dead_events, "fail", "dead letters"]],
  "History",
  ["audit", "audit", "Audit", "a"],
  ["batches", "batches", "Batches", "t"],
  ["system", "system", "System", "y", shell => [shell.findings, "fail", "findings"]],
];
const PAGES = ROUTES.filter(Array.isArray);
const INNER = { m: ["machine", "machines"], i: ["instance", "instances"] };
const MODULES = { instances: "lists", failures: "lists", batches: "lists", queues: "operate", schedules: "operate", workers: "operate", outbox: "operate", audit: "operate", system: "operate" };
const MARK = new URL("../img/mark.svg", import.meta.url).href;

function find([head = "", name, ...rest]) {
  const isInner = Object.hasOwn(INNER, head);
  const [page, path] = isInner ? INNER[head] : [head || "overview", head];
  const entry = PAGES.find(one => one[0] === path);
  const known = entry && !rest.length && !!name === isInner;
  return { page: known ? MODULES[page] ?? page : null, entry: known ? entry : null, name };
}

// Navigation
const Side = ({ shell, entry, open, onClose }) => html`<nav class=${open ? "side open" : "side"} aria-label="Pages">
  <a class="brand" href=${href("/")}><img src=${MARK} alt="" width="22" height="22" />gen_durable${session.value.environment && html`<span class="env">${session.value.environment}</span>`}</a>
  <div class="pages" onClick=${onClose}>${ROUTES.map(one => {
    if (typeof one === "string") return html`<p>${one}</p>`;
    const [n, kind, word] = (shell && one[4]?.(shell)) ?? [];
    return html`<a href=${href(`/${one[0]}`)} aria-current=${one === entry ? "page" : undefined}><${Icon} name=${one[1]} />${one[2]} ${n != null && (n > 0 || !word) && html`<span class=${`n ${n && kind ? `c-${kind}` : ""}`} title=${word && `${num(n)} ${word}`}>${count(n)}</span>`}</a>`;
  })}</div>
  <footer><span class="small">Times in ${Intl.DateTimeFormat().resolvedOptions().timeZone}</span><span class="row"><i class=${`beat ${live.value}`} />${live.value === "down" ? WORDS.down : `Version ${session.value.version}`}</span>
    <span class="row who"><span class="grow" title=${`role ${session.value.role}`}>${session.value.user} · ${session.value.role}</span>
      <${Button} icon="theme" kind="ghost" small label=${`Theme: ${theme.value}`} onClick=${() => setTheme()} />
      ${session.value.can_log_out && html`<${Button} icon="exit" kind="ghost" small label="Log out" onClick=${logOut} />`}</span></footer></nav>`;

function setTheme(name = { auto: "light", light: "dark", dark: "auto" }[theme.value]) {
  theme.value = name;
  toast(`Theme: ${name}`, "info");
}

async function logOut() {
  await api.post("/logout");
  session.value = null;
}

const WORDS = { connecting: "Connecting", live: "Live", paused: "Paused", reconnecting: "Reconnecting", down: "Offline" };
const Top = ({ entry, name, onMenu, onFind }) => html`<header class="top">
  <${Button} icon="menu" kind="ghost" label="Menu" class="burger" onClick=${onMenu} />
  <div class="crumbs">${entry && (name ? html`<a href=${href(`/${entry[0]}`)}>${entry[2]}</a><${Icon} name="right" size=${12} /><b>${name}</b>` : html`<b>${entry[2]}</b>`)}</div>
  <button type="button" class="find" aria-label="Search or jump to … ⌘K" onClick=${onFind}><${Icon} name="search" /><span>Search or jump to …</span><kbd>⌘K</kbd></button>
  <button type="button" class="pill" aria-pressed=${live.value === "paused"} aria-label=${`${WORDS[live.value]}; ${live.value === "paused" ? "resume" : "pause"} live updates`} title=${live.value === "paused" ? "Resume live updates (p)" : "Pause live updates (p)"} onClick=${() => pause()}>
    <i class=${`beat ${live.value}`} /><span>${WORDS[live.value]}</span><${Icon} name=${live.value === "paused" ? "play" : "pause"} size=${14} /></button></header>`;

const Banner = () => {
  const why = down.value;
  if (!why) return null;
  clock.value;
  return html`<div class="banner" role="alert"><${Glyph} kind="fail" size=${16} /><p><b>${why.title}.</b> Data as of ${age(why.since)} ago; the dashboard tries again every 3 s. ${why.detail && html`<code>${why.detail}</code>`}</p>
    <${Button} icon="retry" small onClick=${retry}>Try now<//></div>`;
};

// Pages
const modules = new Map();
const load = async page => {
  if (!modules.has(page)) modules.set(page, (await import(`./pages/${page}.js`)).default);
  return modules.get(page);
};

const Guarded = ({ page: Page, ...props }) => {
  const [error] = useErrorBoundary(error => console.error(error));
  return error ? html`<${Trouble} problem=${{ title: "This page has a bug", detail: String(error), fix: "Please report it." }} onRetry=${() => location.reload()} />` : html`<${Page} ...${props} />`;
};

const Missing = () => html`<${Empty} icon="search" level="h1" title="Page not found"><p>There is nothing at <code>${route.value.path}</code>.</p><${Button} to="/">Overview<//><//>`;

const View = ({ page, name }) => {
  const [shown, setShown] = useState({});
  useEffect(() => {
    let here = true;
    if (page) load(page).then(found => here && setShown({ page, found }), error => here && setShown({ page, error }));
    return () => (here = false);
  }, [page]);
  if (!page) return html`<${Missing} />`;
  if (shown.page !== page) return shown.found ? null : html`<${Skeleton} />`;
  if (shown.error) return html`<${Trouble} problem=${{ title: "The page did not load", detail: String(shown.error) }} onRetry=${() => location.reload()} />`;
  return html`<${Guarded} key=${route.value.path} page=${shown.found} params=${{ name, id: name }} query=${route.value.query} />`;
};

// Dialogs
const Field = ({ field: { name, label, type = "text", hint, options, required, rows, min, max }, value, onInput, autofocus, error }) => {
  const props = { name, value, required, autofocus, min, max, "aria-invalid": error ? "true" : null, onInput: event => onInput(type === "checkbox" ? event.target.checked : event.target.value), autocomplete: "off" };
  const control = options ? html`<select ...${props}>${options.map(([id, text]) => html`<option value=${id} selected=${id === value}>${text}</option>`)}</select>`
    : type === "json" || rows ? html`<textarea ...${props} rows=${rows ?? 6} spellcheck=${false} class=${type === "json" && "mono"} />`
      : html`<input ...${props} type=${type === "seconds" ? "number" : type} step=${type === "number" ? 1 : "any"} checked=${type === "checkbox" ? value : undefined} />`;
  return html`<label class=${type === "checkbox" ? "field check" : "field"}><span>${label}</span>${control}${hint && html`<small>${hint}</small>`}${error && html`<small class="c-fail">${error}</small>`}</label>`;
};

const typed = (values, fields) => Object.fromEntries(fields.map(({ name, type }) => {
  const value = values[name];
  try {
    return [name, type === "json" ? parse(value) : /num|sec/.test(type) && value !== "" ? +value : value];
  } catch {
    return [name, value];
  }
}));
const Confirm = ({ title, what, verb, danger, preview, fields = [], asks = true, isOff, shows_changes: differs, onYes }) => {
  const first = () => Object.fromEntries(fields.map(field => [field.name, field.value ?? ""])), [before] = useState(first), [values, setValues] = useState(before), old = typed(before, fields), next = typed(values, fields);
  const [reason, setReason] = useState("");
  const [seen, setSeen] = useState(preview ? null : {});
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  const [progress, report] = useState(null);
  const [turn, setTurn] = useState(0);
  const own = useRef(dialog.value).current, key = useRef(crypto.getRandomValues(new Uint32Array(4)).join("-")).current;
  useEffect(() => {
    Promise.resolve(preview?.(values)).then(found => setSeen(typeof found === "object" ? found ?? {} : typeof found === "number" ? { count: found } : { text: found }), setProblem);
  }, [JSON.stringify(values), turn]);
  const leave = () => dialog.value === own && (dialog.value = null);
  // The field that the server has refused.
  const wrong = problem?.facts?.field, rest = fields.filter(one => one.is_advanced);
  useEffect(() => document.querySelector("dialog [aria-invalid]")?.focus(), [problem]);
  const draw = field => html`<${Field} key=${field.name} field=${field} autofocus=${field === fields[0]} error=${field.name === wrong && problem.message} value=${values[field.name]} onInput=${value => setValues({ ...values, ...field.sets?.[value], [field.name]: value })} />`;
  const shut = () => (busy && !progress?.to) || leave();
  const submit = async event => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      const text = await onYes(reason.trim(), values, report, key);
      leave();
      toast(...(Array.isArray(text) ? text : [typeof text === "string" ? text : `${title.replace(/\?$/, "")}: done`]));
    } catch (error) {
      setProblem(error);
      report(null);
      setBusy(false);
      // After a lost answer the same request is sent again, so its preview stays.
      if (error.status) setTurn(turn + 1);
    }
  };
  return html`<${Modal} title=${title} onClose=${shut}><form class="stack" onSubmit=${submit}>
    ${what && html`<p class="soft">${what}</p>`}
    ${preview && html`<p class="preview" role="status">${!seen ? "Counting …" : seen.count != null ? html`<b>${count(seen.count)}</b> instance${seen.count === 1 ? "" : "s"} ${seen.text}` : seen.text}</p>`}
    ${fields.filter(one => !one.is_advanced).map(draw)}
    ${rest[0] && html`<details open=${rest.some(one => one.name === wrong)} onInvalidCapture=${event => (event.currentTarget.open = true)}><summary>More options</summary>${rest.map(draw)}</details>`}
    ${differs && write(old) !== write(next) && html`<section aria-label="Changes"><${Diff} before=${old} after=${next} /></section>`}
    ${asks && html`<${Field} field=${{ name: "reason", label: "Reason", hint: isOff ? "Not recorded: the audit level is off." : "Recorded in the audit log." }} value=${reason} onInput=${setReason} autofocus=${!fields.length} />`}
    <div class="foot">${progress && html`<div class="progress"><progress value=${progress.done} max=${progress.total || 1} aria-label="Progress" /><span role="status">${progress.text ?? `${num(progress.done)} of ${num(progress.total)}`}</span>
      ${progress.to && html`<${Link} to=${progress.to} onClick=${leave}>${progress.name}<//>`}${progress.stop && html`<${Button} small onClick=${progress.stop}>Stop<//>`}</div>`}
    ${problem && html`<${Trouble} problem=${problem} />`}
      <div class="actions"><${Button} disabled=${busy && !progress?.to} onClick=${shut}>Close<//><button class=${danger ? "button danger solid" : "button primary"} disabled=${busy || !seen || seen.count === 0} aria-busy=${busy}>${verb ?? "Apply"}</button></div></div></form><//>`;
};

const jump = path => () => go(path);
const COMMANDS = [
  ...PAGES.map(([path, icon, text]) => ({ icon, text, group: "Page", run: jump(`/${path}`) })),
  ...["light", "dark", "auto"].map(name => ({ icon: "theme", text: `Theme: ${name}`, group: "Command", run: () => setTheme(name) })),
  { icon: "pause", text: "Pause or resume live updates", group: "Command", run: () => pause() },
  { icon: "help", text: "Keyboard shortcuts", group: "Command", run: () => (panel.open = "help") },
];
const panel = { set open(name) { this.show?.(name); } };

const Palette = ({ onClose }) => {
  const [text, setText] = useState("");
  const [found, setFound] = useState([]);
  const asked = useRef(0);
  const type = async value => {
    setText(value);
    const turn = ++asked.current;
    const answer = value.trim() && (await api.get("/jump", { params: { q: value.trim() } }).catch(() => null));
    if (turn === asked.current) setFound((answer?.items ?? []).map(({ path, ...item }) => ({ icon: item.group === "Machine" ? "machines" : "instances", ...item, run: jump(path) })));
  };
  const q = text.trim(), id = /^#?(\d+)$/.exec(q)?.[1];
  const items = [
    ...COMMANDS.filter(one => (q ? one.text.toLowerCase().includes(q.toLowerCase()) : one.group === "Page")),
    ...(id && !found.some(one => one.text === `#${id}`) ? [{ icon: "instances", text: `#${id}`, group: "Instance", run: jump(`/i/${id}`) }] : []),
    ...found,
    ...(q ? [{ icon: "search", text: `Search instances for “${q}”`, group: "Search", run: jump(search(q)) }] : []),
  ];
  const pick = item => {
    onClose();
    item.run();
  };
  const choice = useChoice(items, pick);
  return html`<${Modal} class="palette" label="Search or jump to" onClose=${onClose}>
    <input autofocus value=${text} placeholder="Page, machine, instance, key …" aria-label="Search or jump to" ...${choice.input} onInput=${event => type(event.target.value)} onKeyDown=${choice.keys} />
    <ul ...${choice.list} aria-label="Results">${items.map((item, i) => html`<li ...${choice.option(i)}><${Icon} name=${item.icon} /><b>${item.text}</b><span>${item.detail}</span><small>${item.group}</small></li>`)}</ul><//>`;
};

const KEYS = [
  ["⌘K", "Search or jump to"], ["/", "Search instances"], ["?", "Keyboard shortcuts"], ["p", "Pause or resume live updates"], ["t", "Change the theme"],
  ["j k", "Next or previous row"], ["x", "Select the row"], ["⇧ x", "Select all rows up to it"], ["↵", "Open the row"], ["r", "Retry"], ["← →", "Transitions of an instance"], ["Esc", "Close"],
];
const Help = ({ onClose }) => html`<${Modal} title="Keyboard shortcuts" class="help" onClose=${onClose}><div class="columns">
  <dl>${KEYS.map(([keys, text]) => html`<div><dt>${text}</dt><dd>${keys.split(" ").map(key => html`<kbd>${key}</kbd>`)}</dd></div>`)}</dl>
  <dl>${PAGES.map(([, , text, key]) => html`<div><dt>${text}</dt><dd><kbd>g</kbd><kbd>${key}</kbd></dd></div>`)}</dl></div><//>`;

const Toasts = () => html`<div class="toasts" role="status" aria-live="polite">${toasts.value.map(({ id, text, kind, to }) => html`<div key=${id} class="toast">${kind !== "info" && html`<${Glyph} kind=${kind} />`}${to ? html`<${Link} to=${to}>${text}<//>` : text}
  <button type="button" class="copy" aria-label="Close" onClick=${() => (toasts.value = toasts.value.filter(one => one.id !== id))}><${Icon} name="close" size=${14} /></button></div>`)}</div>`;

// Keyboard
let prefix = 0;
function step(by) {
  const rows = [...document.querySelectorAll("main tbody tr[tabindex], main [data-row]")];
  const at = rows.indexOf(document.activeElement.closest("tr, [data-row]"));
  rows[Math.max(0, Math.min(rows.length - 1, at + by))]?.focus();
}
const inRow = (selector, shiftKey) => document.activeElement.querySelector(selector)?.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true, shiftKey }));
const SHORTCUTS = {
  "?": () => (panel.open = "help"),
  "/": () => {
    const field = document.querySelector("[data-search]");
    if (field) field.focus();
    else panel.open = "palette";
  },
  p: () => pause(), t: () => setTheme(), j: () => step(1), k: () => step(-1), r: () => (document.activeElement.querySelector("[data-retry]") ?? document.querySelector("main [data-retry]"))?.click(), x: () => inRow("input[type=checkbox]"), X: () => inRow("input[type=checkbox]", true), Enter: () => inRow("a"),
  g: () => (prefix = Date.now()),
};
function press(event) {
  const { key, target } = event;
  const isJump = (event.metaKey || event.ctrlKey) && key.toLowerCase() === "k";
  if (!isJump && (event.metaKey || event.ctrlKey || event.altKey || event.defaultPrevented || target.closest?.("input, textarea, select, dialog"))) return;
  const page = !isJump && Date.now() - prefix < 1500 && PAGES.find(one => one[3] === key);
  prefix = 0;
  if (isJump) panel.open = "palette";
  else if (page) go(`/${page[0]}`);
  else if (SHORTCUTS[key] && (key !== "Enter" || target.matches("tr, [data-row]"))) SHORTCUTS[key]();
  else return;
  event.preventDefault();
}

// Application
const Login = () => {
  const { content: ways, dataset: { hint, url } } = document.querySelector("meta[name=login]");
  const [problem, setProblem] = useState(null);
  const [byName, setByName] = useState(ways === "password");
  const submit = async event => {
    event.preventDefault();
    try {
      await api.post("/login", Object.fromEntries(new FormData(event.target)));
      await loadSession();
    } catch (error) {
      setProblem(error);
    }
  };
  return html`<main class="login"><form class="panel" onSubmit=${submit}><img src=${MARK} alt="" width="40" height="40" /><h1>gen_durable</h1>
    <p class="soft">${hint}</p>
    ${url && html`<a class="button primary" target="_self" href=${url.replace("{next}", encodeURIComponent(location.pathname + location.search))}>Log in</a>`}
    ${ways && html`${byName ? html`<label class="field"><span>Name</span><input name="name" autocomplete="username" required autofocus /></label><label class="field"><span>Password</span><input name="password" type="password" autocomplete="current-password" required /></label>`
      : html`<label class="field"><span>Token</span><input name="token" type="password" autocomplete="off" required autofocus /></label>`}
    ${problem && html`<${Trouble} problem=${problem} />`}
    <button class="button primary">Log in</button>
    ${/ /.test(ways) && html`<button type="button" class="more" onClick=${() => setByName(!byName)}>${byName ? "Use a token" : "Use name and password"}</button>`}`}</form></main>`;
};

const Shell = () => {
  const [open, setOpen] = useState(null);
  panel.show = setOpen;
  const { data: counts } = useData("/shell", null, { topic: "shell" });
  const { data: doctor } = useData("/findings", null, { every: 60 });
  const shell = counts && { ...counts, ...doctor };
  const { page, entry, name } = find(route.value.parts);
  const main = useRef();
  const path = route.value.path, first = useRef(path);
  const close = () => setOpen(null);
  useEffect(() => {
    // A new page starts at its beginning, also for the keyboard.
    if (first.current !== path) main.current.focus({ preventScroll: true });
    first.current = path;
    setOpen(null);
  }, [path]);
  useLayoutEffect(() => {
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  return html`<a class="skip" href="#main">Skip to content</a>
    <div class="shell" onKeyDown=${event => event.key === "Escape" && open === "menu" && close()}>
      <${Side} shell=${shell} entry=${entry} open=${open === "menu"} onClose=${close} />${open === "menu" && html`<div class="veil" onClick=${close} />`}
      <div class="content"><${Top} entry=${entry} name=${name} onMenu=${() => setOpen("menu")} onFind=${() => setOpen("palette")} /><${Banner} />${shell?.is_audit_off && html`<div class="banner notice" role="status"><${Glyph} kind="notice" size=${16} /><p><b>Changes are not recorded:</b> the audit level is off.</p><${Button} small to="/audit">Audit<//></div>`}
        <main id="main" tabindex="-1" ref=${main} class=${down.value ? "page stale" : "page"}><${View} page=${page} name=${name} /></main></div></div>
    ${open === "palette" && html`<${Palette} onClose=${close} />`}${open === "help" && html`<${Help} onClose=${close} />`}
    ${dialog.value && html`<${Confirm} key=${dialog.value.title} isOff=${shell?.is_audit_off} ...${dialog.value} />`}<${Toasts} />`;
};

const App = () => {
  if (session.value === null) return html`<${Login} />`;
  if (session.value) return html`<${Shell} />`;
  return html`<main class="page"><${Banner} /></main>`;
};

render(html`<${App} />`, document.getElementById("app"));
loadSession();
