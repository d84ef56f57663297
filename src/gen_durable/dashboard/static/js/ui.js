// Components that all pages share. README.md describes them.
import { Fragment, html, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { age, ago, api, changes, clock, href, may, moment, num, setQuery, T, toast, until, write } from "./lib.js";

const cx = (...names) => names.filter(Boolean).join(" ");

// Icons and glyphs
// index.html has the symbols.
export const Icon = ({ name, size = 16 }) =>
  html`<svg class="icon" width=${size} height=${size} aria-hidden="true"><use href=${`#i-${name}`} /></svg>`;

export const KINDS = {
  run: ["Running", "M2.5 1.6v8.8L10.6 6Z"],
  due: ["Due", "M6 2.2a3.8 3.8 0 1 0 0 7.6 3.8 3.8 0 0 0 0-7.6Z", 1],
  later: ["Later", "M6 1.7a4.3 4.3 0 1 0 0 8.6 4.3 4.3 0 0 0 0-8.6ZM6 3.8v2.4l1.6 1", 1],
  gated: ["Gated", "M2.5 5.5h7v5h-7ZM4 5.5V4a2 2 0 0 1 4 0v1.5", 1],
  wait: ["Waiting", "M2.6 2h2.4v8H2.6ZM7 2h2.4v8H7Z"],
  kids: ["Children", "M4 6 8.4 3.2M4 6l4.4 2.8M3.2 4.6a1.4 1.4 0 1 0 0 2.8 1.4 1.4 0 0 0 0-2.8ZM9.2 1.4a1.3 1.3 0 1 0 0 2.6 1.3 1.3 0 0 0 0-2.6ZM9.2 8a1.3 1.3 0 1 0 0 2.6 1.3 1.3 0 0 0 0-2.6Z", 2],
  retry: ["Retrying", "M10 6a4 4 0 1 1-1.3-2.9L10.2 4.4M10.3 1.6v2.9H7.4", 1],
  notice: ["Notice", "M6 .8 11.6 11H.4ZM5.4 4.3h1.2v3.2H5.4ZM5.4 8.5h1.2v1.2H5.4Z"],
  fail: ["Failed", "M3.8.6h4.4l3.2 3.2v4.4l-3.2 3.2H3.8L.6 8.2V3.8ZM4.5 3.6l-.9.9L5.1 6 3.6 7.5l.9.9L6 6.9l1.5 1.5.9-.9L6.9 6l1.5-1.5-.9-.9L6 5.1Z"],
  done: ["Done", "M1.8 6.4 4.6 9.2 10.3 3", 2],
  cancel: ["Cancelled", "M6 1.8a4.2 4.2 0 1 0 0 8.4 4.2 4.2 0 0 0 0-8.4ZM3.1 8.9l5.8-5.8", 1],
  deleted: ["Deleted", "M2 3.5h8M4.5 3.5v-2h3v2M3.2 3.5l.4 7h4.8l.4-7", 1],
};

const STATUSES = { executing: "run", awaiting_signal: "wait", awaiting_children: "kids", failed: "fail", done: "done", cancelled: "cancel", deleted: "deleted" };
export function kindOf(row) {
  const { status, deleted_at, attempt, eligible_at, is_gated } = typeof row === "string" ? { status: row } : row;
  if (deleted_at) return "deleted";
  if (status !== "runnable") return STATUSES[status] ?? "due";
  return attempt > 0 ? "retry" : is_gated ? "gated" : T(eligible_at) * 1000 > Date.now() ? "later" : "due";
}

export const Glyph = ({ kind, size = 12, label }) => {
  const [, path, stroke] = KINDS[kind];
  return html`<svg class=${cx("glyph", `c-${kind}`)} width=${size} height=${size} viewBox="0 0 12 12" role=${label ? "img" : undefined} aria-label=${label} aria-hidden=${!label}>
    <path d=${path} fill=${stroke ? "none" : "currentColor"} fill-rule="evenodd" stroke=${stroke ? "currentColor" : undefined} stroke-width=${stroke === 2 ? 1.9 : 1.5} stroke-linecap="round" stroke-linejoin="round" />
  </svg>`;
};

export const Status = ({ kind, row, big, children }) => {
  const which = kind ?? kindOf(row);
  return html`<span class=${cx("status", `c-${which}`, big && "big")}><${Glyph} kind=${which} />${children ?? KINDS[which][0]}</span>`;
};

// Building blocks
export const Link = ({ to, children, class: name = "link", ...rest }) => html`<a href=${href(to)} class=${name} ...${rest}>${children}</a>`;

export const Head = ({ title, sub, badge, children }) => {
  useEffect(() => {
    document.title = `${title} · gen_durable`;
  }, [title]);
  return html`<div class="head"><div><div class="row"><h1>${title}</h1>${badge}</div>${sub && html`<p class="sub">${sub}</p>`}</div>
    ${children && html`<div class="tools">${children}</div>`}</div>`;
};

export const Panel = ({ title, aside, flush, class: name, children, ...rest }) => html`<section class=${cx("panel", flush && "flush", name)} ...${rest}>
  ${title && html`<header><h2>${title}</h2>${aside && html`<div class="aside">${aside}</div>`}</header>`}
  <div class="body">${children}</div></section>`;

export const Button = ({ icon, kind, small, to, need, busy, label, disabled, children, class: name, ...rest }) => {
  const denied = need && !may(need);
  const props = {
    class: cx("button", kind, small && "small", !children && "square", name),
    title: denied ? `needs the role ${need}` : children ? undefined : label, "aria-label": label, ...rest,
  };
  const content = html`${icon && html`<${Icon} name=${icon} size=${small ? 14 : 16} />`}${children}`;
  if (to && !denied) return html`<a href=${href(to)} ...${props}>${content}</a>`;
  return html`<button type="button" ...${props} disabled=${denied || disabled || busy} aria-busy=${busy}>${content}</button>`;
};

export const Segment = ({ items, value, onPick, label, need }) => html`<div class="segment" role="group" aria-label=${label}>
  ${items.map(([id, text]) => html`<button type="button" key=${id} aria-pressed=${id === value} disabled=${need && !may(need)} onClick=${() => onPick(id)}>${text}</button>`)}</div>`;

const RANGES = [["15m", "15 m"], ["1h", "1 h"], ["24h", "24 h"], ["7d", "7 d"]];
export const rangeOf = query => RANGES.find(([id]) => id === query.get("range"))?.[0] ?? "15m";
export const Range = ({ value }) => html`<${Segment} label="Range" items=${RANGES} value=${value} onPick=${id => setQuery({ range: id === "15m" ? null : id })} />`;

const arrows = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
const rove = (event, selector) => {
  if (!arrows[event.key]) return;
  event.preventDefault();
  const all = [...event.currentTarget.querySelectorAll(selector)];
  all[(all.indexOf(document.activeElement) + arrows[event.key] + all.length) % all.length]?.focus();
};

export const Tabs = ({ items, value, onPick, label }) => html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${event => rove(event, "[role=tab]")}>
  ${items.map(({ id, text, count, kind }) => html`<button type="button" role="tab" key=${id} aria-selected=${id === value} tabindex=${id === (items.some(one => one.id === value) ? value : items[0].id) ? 0 : -1} onClick=${() => onPick(id)}>
    ${kind && html`<${Glyph} kind=${kind} />`}${text}${count != null && html` <span class="n">${typeof count === "number" ? num(count) : count}</span>`}</button>`)}</div>`;

export const Menu = ({ items, label = "More", icon = "more", children }) => {
  const [open, setOpen] = useState(false);
  const box = useRef();
  useEffect(() => {
    if (!open) return undefined;
    box.current.querySelector("[role=menuitem]:not(:disabled)")?.focus();
    const leave = event => box.current?.contains(event.target) || setOpen(false);
    document.addEventListener("pointerdown", leave);
    return () => document.removeEventListener("pointerdown", leave);
  }, [open]);
  const shut = () => {
    setOpen(false);
    box.current.querySelector("button").focus();
  };
  const keys = event => {
    if (event.key === "Escape" && open) {
      event.stopPropagation();
      shut();
    } else if (open) rove(event, "[role=menuitem]:not(:disabled)");
  };
  return html`<div class="menu" ref=${box} onKeyDown=${keys}>
    <${Button} icon=${icon} label=${children ? undefined : label} aria-haspopup="menu" aria-expanded=${open} onClick=${() => setOpen(!open)}>${children}<//>
    ${open && html`<div role="menu" aria-label=${label}>${items.map(item => {
      const denied = item.need && !may(item.need);
      return html`<button type="button" role="menuitem" class=${item.danger && "danger"} disabled=${denied} title=${denied ? `needs the role ${item.need}` : undefined}
        onClick=${() => (shut(), item.onPick())}>${item.icon && html`<${Icon} name=${item.icon} />`}${item.text}</button>`;
    })}</div>`}</div>`;
};

export const Legend = ({ items }) => html`<div class="legend">${items.map(([kind, text]) => html`<span key=${text}><i class=${`bg-${kind}`} />${text}</span>`)}</div>`;

export const Figure = ({ label, value, unit, note, to, kind, spark }) => {
  const content = html`<span class="label">${label}</span><span class="value"><b class=${kind ? `c-${kind}` : undefined}>${value}</b>${unit && html` <small>${unit}</small>`}</span>
    ${note && html`<span class="note">${note}</span>`}${spark}`;
  return to ? html`<a class="figure" href=${href(to)}>${content}</a>` : html`<div class="figure">${content}</div>`;
};

export const Bar = ({ value, max = 1, kind = "run", parts = [{ value, kind }], label }) => html`<span class="bar" role="img" aria-label=${label}>
  ${parts.map(part => html`<i class=${`bg-${part.kind}`} style=${{ width: `${max ? Math.min(100, (100 * part.value) / max) : 0}%` }} />`)}</span>`;

export const Ring = ({ value, max = 1, kind = "run", size = 38, label }) => {
  const share = max ? Math.max(0, Math.min(1, value / max)) : 0;
  return html`<svg class=${`ring c-${kind}`} width=${size} height=${size} viewBox="0 0 40 40" role="img" aria-label=${label}>
    <circle class="track" cx="20" cy="20" r="17" /><circle cx="20" cy="20" r="17" pathLength="100" stroke-dasharray=${`${share * 100} 100`} visibility=${share ? undefined : "hidden"} /></svg>`;
};

// Values
export const Copy = ({ text, label = "Copy" }) => {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    setDone(true);
    toast("Copied", "info");
    setTimeout(() => setDone(false), 1500);
  };
  return html`<button type="button" class="copy" title=${label} aria-label=${label} onClick=${copy}><${Icon} name=${done ? "check" : "copy"} size=${14} /></button>`;
};

export const Code = ({ text }) => html`<div class="code"><code>${text}</code><${Copy} text=${text} /></div>`;

export const Id = ({ id, children }) => html`<a class="id" href=${href(`/i/${id}`)}>${children ?? `#${id}`}</a>`;

export const Time = ({ at, form = "ago" }) => {
  if (at == null) return "–";
  clock.value;
  return html`<time datetime=${typeof at === "string" ? at : new Date(at * 1000).toISOString()} title=${moment(at)}>${{ ago, age, until }[form](at)}</time>`;
};

const LONG = 400;
const Text = ({ value }) => {
  const [all, setAll] = useState(false);
  const cut = !all && value.length > LONG;
  return html`<span class="j-string">${JSON.stringify(cut ? value.slice(0, LONG) : value)}</span>${cut && html` <button type="button" class="more" onClick=${() => setAll(true)}>${num(value.length - LONG)} more characters</button>`}`;
};
const Scalar = ({ value }) => (typeof value === "string" ? html`<${Text} value=${value} />` : html`<span class=${value === null ? "j-null" : "j-value"}>${String(value)}</span>`);
const Branch = ({ name, value, depth, open: shown }) => {
  const [open, setOpen] = useState(depth < shown);
  const [most, setMost] = useState(100);
  const label = name != null && html`<span class="j-name">${name}</span>: `;
  if (value === null || typeof value !== "object") return html`<div class="j-leaf">${label}<${Scalar} value=${value} /></div>`;
  const entries = Object.entries(value);
  const [start, end] = Array.isArray(value) ? "[]" : "{}";
  if (!entries.length) return html`<div class="j-leaf">${label}${start}${end}</div>`;
  return html`<details class="j-branch" open=${open} onToggle=${event => setOpen(event.currentTarget.open)}>
    <summary>${label}${start}${!open && html`<span class="j-null"> ${num(entries.length)} ${end}</span>`}</summary>
    ${open && html`<div class="j-inner">${entries.slice(0, most).map(([key, item]) => html`<${Branch} key=${key} name=${key} value=${item} depth=${depth + 1} open=${shown} />`)}
      ${entries.length > most && html`<button type="button" class="more" onClick=${() => setMost(most + 1000)}>${num(entries.length - most)} more</button>`}</div>${end}`}</details>`;
};
export const Json = ({ value, open = 3 }) => html`<div class="json"><${Branch} value=${value} depth=${0} open=${open} /></div>`;

const text = value => write(value, 2);
const isTree = value => value !== null && typeof value === "object";
function* compare(before, after, path) {
  if (isTree(before) && isTree(after) && Array.isArray(before) === Array.isArray(after)) {
    for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) yield* compare(before[key], after[key], path ? `${path}.${key}` : key);
  } else if (text(before) === text(after)) yield ["", path, after];
  else {
    if (before !== undefined) yield ["−", path, before];
    if (after !== undefined) yield ["+", path, after];
  }
}
export const Diff = ({ before, after, all }) => {
  const [full, setFull] = useState(all);
  const lines = useMemo(() => [...compare(before, after, "")], [before, after]);
  const same = lines.filter(([sign]) => !sign).length;
  return html`<div class="diff">${lines.map(([sign, path, value]) => (sign || full) && html`<div class=${{ "+": "added", "−": "removed" }[sign]} key=${sign + path}>
      <i>${sign}</i><span class="j-name">${path || "value"}:</span><span class="value">${text(value)}</span></div>`)}
    ${!full && same > 0 && html`<button type="button" class="more" onClick=${() => setFull(true)}>${same === lines.length ? "unchanged; " : ""}show ${num(same)} unchanged</button>`}</div>`;
};

// States of a page
export const Empty = ({ icon = "check", title, level = "h3", children }) => html`<div class="empty"><span class="orb"><${Icon} name=${icon} size=${20} /></span><${level}>${title}<//>${children && html`<div>${children}</div>`}</div>`;

export const Trouble = ({ problem, onRetry, detail = problem.title ? problem.detail : problem.message }) => html`<div class="trouble" role="alert"><${Glyph} kind="fail" size=${14} />
  <div><b>${problem.title ?? (problem.name === "SyntaxError" ? "Not valid JSON" : "Error")}</b>${detail && html`<p>${detail}</p>`}${problem.fix && html`<p class="soft">${problem.fix}</p>`}</div>
  ${onRetry && html`<${Button} icon="retry" small onClick=${onRetry}>Try again<//>`}</div>`;

export const Skeleton = ({ rows = 6 }) => html`<div class="skeleton" role="status" aria-label="Loading">${Array.from({ length: rows }, (_, i) => html`<i style=${{ width: `${92 - ((i * 37) % 46)}%` }} />`)}</div>`;

// Everything: what failed beside it is tried again as well.
const reload = () => changes.value++;
export const Loaded = ({ from, rows, children }) => {
  if (from.data !== undefined) {
    return html`${from.problem && ![0, 503].includes(from.problem.status) && html`<${Trouble} problem=${from.problem} onRetry=${reload} />`}${children(from.data)}`;
  }
  return from.problem ? html`<${Trouble} problem=${from.problem} onRetry=${reload} />` : html`<${Skeleton} rows=${rows} />`;
};

// Tables
export const Table = ({ columns, rows, keyOf = row => row.id, caption, selected, onSelect, rowClass, more, opened }) => {
  const from = useRef(0);
  const [open, setOpen] = useState();
  useEffect(() => setOpen(opened), [opened]);
  const pick = (index, event) => {
    const set = new Set(selected);
    const [low, high] = event.shiftKey ? [from.current, index].sort((a, b) => a - b) : [index, index];
    for (let i = low; i <= high; i++) event.target.checked ? set.add(keyOf(rows[i])) : set.delete(keyOf(rows[i]));
    from.current = index;
    onSelect(set);
  };
  const all = selected && rows.length > 0 && rows.every(row => selected.has(keyOf(row)));
  const kind = column => cx(column.num && "num", column.wide && "wide", column.class);
  return html`<div class="scroll"><table>
    ${caption && html`<caption class="hidden">${caption}</caption>`}
    <thead><tr>${selected && html`<th class="box"><input type="checkbox" aria-label="Select all rows" checked=${all} onClick=${event => onSelect(new Set(event.target.checked ? rows.map(keyOf) : []))} /></th>`}
      ${more && html`<th class="box"><span class="hidden">Details</span></th>`}${columns.map(column => html`<th scope="col" class=${kind(column)} style=${column.width ? { width: column.width } : undefined}>${column.title || html`<span class="hidden">${column.label ?? "Actions"}</span>`}</th>`)}</tr></thead>
    <tbody>${rows.map((row, index) => {
      const key = keyOf(row), shown = more && open === key;
      return html`<${Fragment} key=${key}><tr tabindex="-1" class=${cx(selected?.has(key) && "on", rowClass?.(row))}>
      ${selected && html`<td class="box"><input type="checkbox" aria-label=${`Select ${key}`} checked=${selected.has(key)} onClick=${event => pick(index, event)} /></td>`}
      ${more && html`<td class="box"><button type="button" class="copy fold" aria-label=${`Details of ${key}`} aria-expanded=${shown} onClick=${() => setOpen(shown ? null : key)}><${Icon} name="right" size=${12} /></button></td>`}
      ${columns.map(column => html`<td class=${kind(column)}>${column.cell(row)}</td>`)}</tr>${shown && html`<tr class="details"><td colspan=${columns.length + 1}>${more(row)}</td></tr>`}<//>`;
    })}</tbody></table></div>`;
};

export const Bulk = ({ count, text = num(count), total, all = num(total), onAll, onClear, children }) => count > 0 && html`<div class="bulk" role="region" aria-label="Selection">
  <b role="status">${text} selected</b>${onAll && count < total && html`<button type="button" class="more" onClick=${onAll}>Select all ${all} that match</button>`}
  ${children}<${Button} icon="close" small label="Clear the selection" onClick=${onClear} /></div>`;

// Dialogs, choices, search
export const Modal = ({ title, onClose, class: name, label, children }) => {
  const box = useRef();
  useLayoutEffect(() => {
    const node = box.current;
    node.showModal();
    return () => node.close();
  }, []);
  const shut = event => {
    event.preventDefault();
    onClose();
  };
  return html`<dialog ref=${box} class=${name} aria-label=${label ?? title} onCancel=${shut} onMouseDown=${event => event.target === box.current && onClose()}>
    <div class="inner">${title && html`<header><h2>${title}</h2><${Button} icon="close" kind="ghost" small label="Close" onClick=${onClose} /></header>`}${children}</div></dialog>`;
};

export function useChoice(items, onPick, { open = true, first = 0 } = {}) {
  const [at, setAt] = useState(first);
  const id = useId();
  const index = Math.min(at, items.length - 1);
  // Before keys arrive: an arrow key pressed at once would be forgotten.
  useLayoutEffect(() => setAt(first), [JSON.stringify(items.map(item => item.text))]);
  useEffect(() => document.getElementById(`${id}${index}`)?.scrollIntoView({ block: "nearest" }), [index]);
  const keys = event => {
    if (!open || !items.length) return false;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") setAt((index + arrows[event.key] + items.length) % items.length);
    else if (event.key === "Enter" && items[index]) onPick(items[index]);
    // Tab completes a word that has begun; otherwise it leaves the field.
    else if (event.key === "Tab" && !event.shiftKey && first < 0 && (items[index] || items[0].end > items[0].start)) onPick(items[index] ?? items[0]);
    else return false;
    event.preventDefault();
    return true;
  };
  const input = { role: "combobox", "aria-expanded": open && items.length > 0, "aria-controls": id, "aria-autocomplete": "list", autocomplete: "off", spellcheck: false,
    "aria-activedescendant": open && items[index] ? `${id}${index}` : undefined };
  // A list that appears below a resting mouse gets an event as well.
  const option = i => ({ id: `${id}${i}`, role: "option", "aria-selected": i === index, onMouseMove: event => (event.movementX || event.movementY) && setAt(i), onMouseDown: event => (event.preventDefault(), onPick(items[i])) });
  return { keys, input, option, list: { id, role: "listbox" } };
}

const TOKEN = /(-?)([\w.]+:)((?:"[^"]*"?|[^\s"]+)*)|(\s+)|(\S+)/g;
const paint = (value, { start, end } = {}) => (end ? [...paint(value.slice(0, start)), html`<u>${value.slice(start, end)}</u>`, ...paint(value.slice(end))]
  : [...value.matchAll(TOKEN)].map(([all, not, term, rest]) => (term ? html`<i>${not}${term}</i><b>${rest}</b>` : all)));

export const Search = ({ value, onSearch, problem, placeholder = "machine:checkout status:failed" }) => {
  const [text, setText] = useState(value);
  const [items, setItems] = useState([]);
  const field = useRef(), paper = useRef(), asked = useRef(0);
  useEffect(() => setText(value), [value]);
  const complete = async () => {
    const turn = ++asked.current;
    const answer = await api.get("/complete", { params: { q: field.current.value, at: field.current.selectionStart } }).catch(() => null);
    if (turn === asked.current) setItems((answer?.items ?? []).slice(0, 12).map(item => ({ ...item, start: answer.start, end: answer.end })));
  };
  const shut = () => {
    asked.current++;
    setItems([]);
  };
  const run = (next = text) => {
    shut();
    onSearch(next.trim());
  };
  const insert = item => {
    const next = text.slice(0, item.start) + item.text + text.slice(item.end);
    setText(next);
    field.current.value = next;
    const at = item.start + item.text.length;
    field.current.setSelectionRange(at, at);
    shut();
    if (item.text.endsWith(":")) complete();
    else run(next);
  };
  const choice = useChoice(items, insert, { open: items.length > 0, first: -1 });
  const keys = event => {
    if (choice.keys(event)) return;
    if (event.key === "Enter") run();
    else if (event.key === "Escape") items.length ? shut() : field.current.blur();
    else return;
    event.preventDefault();
  };
  const id = useId();
  return html`<div class="search"><div class=${cx("field", problem && "bad")}><${Icon} name="search" />
      <div class="paper"><pre aria-hidden="true" ref=${paper}>${paint(text, text.trim() === value && problem?.facts)}</pre>
        <input ref=${field} value=${text} placeholder=${placeholder} aria-label="Search instances" data-search aria-invalid=${!!problem} aria-describedby=${problem ? id : undefined} ...${choice.input}
          onInput=${event => (setText(event.target.value), complete())} onFocus=${complete} onBlur=${shut} onKeyDown=${keys}
          onScroll=${event => (paper.current.scrollLeft = event.target.scrollLeft)} /></div>
      ${text && html`<${Button} icon="close" kind="ghost" small label="Clear the search" onClick=${() => (setText(""), run(""), field.current.focus())} />`}</div>
    ${items.length > 0 && html`<ul class="options" ...${choice.list}>${items.map((item, i) => html`<li ...${choice.option(i)}><code>${item.text}</code><span>${item.detail}</span></li>`)}</ul>`}
    ${problem && html`<div class="bad" id=${id} role="alert"><p class="c-fail">${problem.detail}</p><p class="soft small">${problem.fix}</p></div>`}</div>`;
};
