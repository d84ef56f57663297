// Address, API, live topics, clock, formats, theme, session. README.md describes the exports.
import { options, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";

// Signals: a component that reads one while it renders is drawn again when it changes.
let reader;
const forget = ({ __c: one }) => one?.reads?.forEach(readers => readers.delete(one));
const hooks = { __r: one => (forget(one), (reader = one.__c)), diffed: () => (reader = null), unmount: forget };
for (const [name, hook] of Object.entries(hooks)) {
  const before = options[name];
  options[name] = one => {
    before?.(one);
    hook(one);
  };
}

export function signal(value) {
  const readers = new Set(), callbacks = [];
  return {
    get value() {
      if (reader) (reader.reads ??= new Set()).add(readers.add(reader));
      return value;
    },
    set value(next) {
      if (next === value) return;
      value = next;
      readers.forEach(one => one.forceUpdate());
      callbacks.forEach(one => one(value));
    },
    subscribe(callback) {
      callbacks.push(callback);
      callback(value);
    },
  };
}

// Address
const root = document.querySelector("meta[name=root]").content.replace(/\/$/, "");

export const href = path => root + path;

const decode = part => {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
};

const address = () => {
  const path = location.pathname.slice(root.length) || "/";
  return { path, parts: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(location.search) };
};

export const route = signal(address());

export function go(path, { replace = false } = {}) {
  const before = route.value.path;
  history[replace ? "replaceState" : "pushState"](null, "", href(path));
  route.value = address();
  if (before !== route.value.path) scrollTo(0, 0);
}

export function setQuery(changes, { push = false } = {}) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value == null || value === "" || value === false) query.delete(name);
    else query.set(name, value);
  }
  go(route.value.path + (query.size ? `?${query}` : ""), { replace: !push });
}

export const term = (name, value) => `${name}:${/^[^\s",\\~<>]+$/.test(value) ? value : `"${String(value).replace(/["\\]/g, "\\$&")}"`}`;

export const search = q => `/instances?q=${encodeURIComponent(q)}`;

addEventListener("popstate", () => (route.value = address()));
addEventListener("click", event => {
  const link = event.target.closest?.("a[href]");
  const plain = !(event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
  if (!link || !plain || event.defaultPrevented || link.target || link.hasAttribute("download")) return;
  if (link.origin !== location.origin || !`${link.pathname}/`.startsWith(`${root}/`) || link.hash) return;
  const path = link.pathname.slice(root.length) || "/";
  if (/^\/(api|static)\//.test(path)) return;
  event.preventDefault();
  go(path + link.search);
});

// Session
const ROLES = ["read", "operate", "admin"];

export const session = signal(undefined);

export const may = role => ROLES.indexOf(session.value?.role) >= ROLES.indexOf(role);

// API
export class Problem extends Error {
  constructor(answer) {
    super(answer.detail || answer.title);
    Object.assign(this, answer);
  }
}

export const changes = signal(0);

// Integers of more than 15 digits become BigInt, so ids and states show all their digits.
const exact = (key, value, context) =>
  typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source) ? BigInt(context.source) : value;
export const parse = text => JSON.parse(text, /\d{16}/.test(text) ? exact : undefined);
export const write = (value, indent) => JSON.stringify(value, (key, item) => (typeof item === "bigint" ? JSON.rawJSON(item) : item), indent);

async function call(method, path, { params, body, key, signal: abort } = {}) {
  const query = new URLSearchParams(Object.entries(params ?? {}).filter(([, value]) => value != null && value !== ""));
  const headers = { accept: "application/json" };
  if (method !== "GET") Object.assign(headers, { "content-type": "application/json", "x-csrf-token": session.value?.csrf ?? "" });
  if (key) headers["idempotency-key"] = key;
  let answer, text;
  try {
    answer = await fetch(href(`/api${path}`) + (query.size ? `?${query}` : ""),
      { method, headers, body: body && write(body), signal: abort, credentials: "same-origin" });
    text = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const problem = new Problem({ status: 0, title: "The dashboard server does not answer" });
    down.value ??= { since: now(), ...problem };
    throw problem;
  }
  setClock(answer.headers.get("date"));
  const content = /json/.test(answer.headers.get("content-type")) ? parse(text) : text;
  if (answer.ok) return content;
  const problem = new Problem({ title: answer.statusText, ...(content?.title ? content : {}), status: answer.status });
  if (problem.status === 401 && path !== "/login") session.value = null;
  if (problem.status === 503) down.value ??= { since: now(), ...problem };
  throw problem;
}

export const api = {
  get: (path, options) => call("GET", path, options),
  async post(path, body = {}, key) {
    const answer = await call("POST", path, { body, key });
    changes.value++;
    return answer;
  },
};

export async function loadSession() {
  try {
    session.value = await api.get("/session");
    down.value = null;
  } catch (problem) {
    if (problem.status !== 401) setTimeout(loadSession, 3000);
  }
}

// Live topics
export const down = signal(null);
export const paused = signal(false);
const link = signal("connecting");

export const live = {
  get value() {
    return paused.value ? "paused" : down.value ? "down" : link.value;
  },
};

const topics = new Map();
let stream, renewal;

const topicOf = name => {
  if (!topics.has(name)) topics.set(name, { last: signal(undefined), users: 0 });
  return topics.get(name);
};

// One stream carries all topics. It is opened again when their set changes; hidden pages and paused ones have none.
function connect() {
  clearTimeout(renewal);
  renewal = setTimeout(() => {
    stream?.close();
    stream = undefined;
    const wanted = [...topics].filter(([, topic]) => topic.users).map(([name]) => name);
    if (!wanted.length || paused.value || document.hidden || !session.value) return;
    const source = (stream = new EventSource(href(`/api/events?topics=${wanted.map(encodeURIComponent).join()}`)));
    source.onopen = () => (link.value = "live");
    source.onerror = () => {
      link.value = "reconnecting";
      // A stream tells no reason. This request finds out: no login, no server, or only a broken connection.
      api.get("/session").catch(() => {});
      if (source.readyState === EventSource.CLOSED) renewal = setTimeout(connect, 3000);
    };
    source.addEventListener("topic", event => {
      const { topic, data } = parse(event.data);
      down.value = null;
      topicOf(topic).last.value = data;
    });
    source.addEventListener("problem", event => {
      const { topic, data } = parse(event.data);
      topicOf(topic).last.value = new Problem(data);
    });
    source.addEventListener("down", event => {
      down.value ??= { since: now(), ...parse(event.data).data };
    });
  }, 30);
}

export const pause = (on = !paused.value) => {
  paused.value = on;
  connect();
  if (!on) changes.value++;
};
document.addEventListener("visibilitychange", () => {
  connect();
  if (!document.hidden) changes.value++;
});
// A page that the browser keeps for "back" would keep its connection; a browser has six of them.
addEventListener("pagehide", () => stream?.close());
addEventListener("pageshow", event => event.persisted && (connect(), changes.value++));
session.subscribe(connect);

export function useTopic(name) {
  useEffect(() => {
    if (!name) return undefined;
    const topic = topicOf(name);
    if (!topic.users++) connect();
    return () => {
      if (--topic.users) return;
      topic.last.value = undefined;
      connect();
    };
  }, [name]);
  return topicOf(name ?? "").last;
}

export function useData(path, params, { topic, every } = {}) {
  const [state, setState] = useState({ loading: true });
  const [turn, setTurn] = useState(0);
  const asked = JSON.stringify(params ?? {});
  const last = useTopic(topic).value;
  const shown = useRef(path);
  useEffect(() => {
    if (!path) return undefined;
    const abort = new AbortController();
    const same = shown.current === path;
    shown.current = path;
    setState(state => ({ data: same ? state.data : undefined, problem: same ? state.problem : undefined, loading: true }));
    api.get(path, { params, signal: abort.signal }).then(
      data => setState({ data, at: now(), loading: false }),
      problem => problem.name === "AbortError" || setState(state => ({ ...state, problem, loading: false })));
    return () => abort.abort();
  }, [path, asked, turn, changes.value]);
  useEffect(() => {
    if (last instanceof Problem) setState(state => ({ ...state, problem: last }));
    else if (last !== undefined) setState({ data: last, at: now(), loading: false });
  }, [last]);
  const reload = useMemo(() => () => setTurn(turn => turn + 1), []);
  useEffect(() => {
    const timer = every && setInterval(() => document.hidden || paused.value || reload(), every * 1000);
    return () => clearInterval(timer);
  }, [every]);
  return { ...state, reload };
}

// While the database or the server is down, ask every 3 s whether it answers again, then load everything.
async function retry() {
  if (!down.value || session.value === null) return;
  try {
    await api.get("/shell");
    down.value = null;
    changes.value++;
    connect();
  } catch { /* still down */ }
}
setInterval(retry, 3000);
export { retry };

// Clock
let offset = 0;
function setClock(date) {
  const difference = date ? (Date.parse(date) - Date.now()) / 1000 + 0.5 : 0;
  offset = Math.abs(difference) < 2 ? 0 : difference;
}

export const now = () => Date.now() / 1000 + offset;

export const clock = signal(0);
setInterval(() => document.hidden || clock.value++, 1000);

export const T = time => (time == null ? null : typeof time === "number" ? time : Date.parse(time) / 1000);

export function seconds(duration) {
  if (duration == null || typeof duration === "number") return duration ?? null;
  const [, sign, d, h, m, s] = /^([-+]?)P(?:([\d.]+)D)?(?:T(?:([\d.]+)H)?(?:([\d.]+)M)?(?:([\d.]+)S)?)?$/.exec(duration) ?? [];
  return (sign === "-" ? -1 : 1) * ((d ?? 0) * 86400 + (h ?? 0) * 3600 + (m ?? 0) * 60 + +(s ?? 0));
}

// Formats
const NONE = "–";
const sig = x => (x < 10 ? x.toFixed(1) : Math.round(x).toString());

export function num(n) {
  if (n == null) return NONE;
  if (typeof n === "bigint" || Math.abs(n) < 1e5) return n.toLocaleString("en-US", { maximumFractionDigits: 1 });
  const [unit, by] = Math.abs(n) < 1e6 ? ["k", 1e3] : Math.abs(n) < 1e9 ? ["M", 1e6] : ["G", 1e9];
  return `${sig(n / by)} ${unit}`;
}
export const count = (n, bound = 10000) => num(n) + (n >= bound ? "+" : "");
export const plural = (n, word, text = num(n)) => `${text} ${word}${n === 1 ? "" : "s"}`;
export const pct = share => (share == null || Number.isNaN(share) ? NONE : `${share && share < 0.1 ? (share * 100).toFixed(1) : Math.round(share * 100)} %`);
export function rate(perSecond) {
  if (perSecond == null) return NONE;
  const [n, unit] = perSecond >= 2 ? [perSecond, "s"] : perSecond * 60 >= 1 ? [perSecond * 60, "min"] : [perSecond * 3600, "h"];
  return `${n ? (n < 10 ? n.toFixed(1) : num(Math.round(n))) : 0}/${unit}`;
}
export function dur(time) {
  const s = seconds(time);
  if (s == null) return NONE;
  if (s < 0) return `−${dur(-s)}`;
  if (s < 0.9995) return `${s && s < 0.001 ? "<1" : Math.round(s * 1000)} ms`;
  if (s < 60) return `${sig(s)} s`;
  const [by, unit, less, lesser] = s < 3600 ? [60, "m", 1, "s"] : s < 48 * 3600 ? [3600, "h", 60, "m"] : [86400, "d", 3600, "h"];
  const n = Math.floor(s / by), rest = Math.floor((s % by) / less);
  return `${n} ${unit}${n < 10 && rest ? ` ${rest} ${lesser}` : ""}`;
}
export const age = time => (T(time) == null ? NONE : dur(Math.max(0, Math.floor(now() - T(time)))).replace(/^0 ms$/, "0 s").replace(".0 ", " "));
export const ago = time => (T(time) == null ? NONE : now() - T(time) < 1 ? "now" : `${age(time)} ago`);
export const until = time => (T(time) == null ? NONE : T(time) - now() < 1 ? "now" : `in ${dur(Math.floor(T(time) - now())).replace(".0 ", " ")}`);
const two = n => String(n).padStart(2, "0");
export function time(at, { ms = false, short = false } = {}) {
  if (T(at) == null) return NONE;
  const d = new Date(T(at) * 1000);
  const tail = short ? "" : `:${two(d.getSeconds())}${ms ? `.${String(d.getMilliseconds()).padStart(3, "0")}` : ""}`;
  return `${two(d.getHours())}:${two(d.getMinutes())}${tail}`;
}
export function moment(at, options) {
  if (T(at) == null) return NONE;
  const d = new Date(T(at) * 1000);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${time(at, options)}`;
}
export const local = text => text.replace(/(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d\+00:00)/g, (_, day, time) => moment(`${day}T${time}`));
export function bytes(n) {
  if (n == null) return NONE;
  const power = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(n, 1)) / 3)));
  return `${power ? sig(n / 1000 ** power) : n} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

// Theme
const stored = () => {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
};
export const theme = signal(stored() ?? "auto");
theme.subscribe(name => {
  document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem("theme", name);
  } catch { /* storage is blocked: the choice holds until the page is closed */ }
});

// Toasts and dialogs; the shell draws them
export const toasts = signal([]);
let toastId = 0;
export function toast(text, kind = "done", to) {
  const id = ++toastId;
  toasts.value = [...toasts.value, { id, text, kind, to }].slice(-4);
  setTimeout(() => (toasts.value = toasts.value.filter(entry => entry.id !== id)), kind === "fail" ? 10000 : 5000);
}

export const dialog = signal(null);
export const confirm = options => (dialog.value = options);
const READ = { json: parse, number: text => (text === "" ? null : +text), seconds: text => (text ? `PT${text}S` : null), "datetime-local": text => (text ? new Date(text) : null) };
const read = (type = "", text, field) => {
  try {
    return READ[type] ? READ[type](text) : text;
  } catch ({ message }) {
    throw new Problem({ title: "This is not JSON", detail: message, facts: { field } });
  }
};
export const change = (path, { body, fields = [], done, ...options }) => confirm({ ...options, fields, onYes: async (reason, values, report, key) => {
  const given = fields.filter(one => !one.inPath).map(({ name, type }) => [name, read(type, values[name], name)]);
  const answer = await api.post(path.call ? path(values) : path, { ...body, ...Object.fromEntries(given), reason }, key);
  return done ? done(answer, report) : answer;
} });
