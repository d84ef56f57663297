// The picture of a machine. README.md describes it.
import { html, useEffect, useId, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { num } from "./lib.js";
import { Button, Glyph, KINDS } from "./ui.js";

const TABS = { signal: "wait", children: "kids", delay: "later" };
const ENDS = { done: ["done", "Done"], failed: ["fail", "Failed"], cancelled: ["cancel", "Cancelled"] };
const EDGES = { done: "done", stop: "fail", cancel: "cancel", on_failure: "fail", await: "wait", children: "kids", observed: "retry" };
const LEGEND = ["run", "due", "wait", "kids", "retry", "fail"];
const WORDS = { wait: "waits for a signal", kids: "waits for children" };
const UNDER = 9;
const isStep = node => node.kind === "step" || node.kind === "handle";
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const calm = matchMedia("(prefers-reduced-motion: reduce)");

const Tab = ({ tab: { kind: what, lines, x, y, width: w, height: h }, count }) => {
  const kind = TABS[what];
  return html`<g class=${`tab c-${kind}`}><rect class="back" x=${x} y=${y} width=${w} height=${h + UNDER} rx="8" />
    <g transform=${`translate(${x + 10} ${y + h / 2 - lines.length * 7 + 2})`}><${Glyph} kind=${kind} size=${10} /></g>
    ${lines.map((line, i) => html`<text class="mono" x=${x + 26} y=${y + h / 2 + 4 + (i - (lines.length - 1) / 2) * 14}>${cut(line, Math.max(6, Math.floor((w - (count ? 62 : 32)) / 6.5)))}</text>`)}
    ${count && html`<text class="count" x=${x + w - 10} y=${y + h / 2 + 4.5} text-anchor="end">${count.n}</text><title>${count.title}</title>`}</g>`;
};

const Step = ({ node, more: { figures = [], left, right, note, heat, bar, tabs = [], badge } }) => {
  const { width: w, height: h, top } = node;
  let x = 12;
  return html`${node.tabs.map((tab, i) => html`<${Tab} tab=${tab} count=${tabs[i]} />`)}
    <rect class="box" y=${top} width=${w} height=${h - top} rx="8" />
    ${heat?.[1] > .01 && html`<rect class=${`heat c-${heat[0]}`} x=".5" y=${top + .5} width=${w - 1} height=${h - top - 1} rx="7.5" opacity=${Math.min(.45, heat[1]).toFixed(2)} />`}
    <text class="name" x="12" y=${top + 20}>${node.name}</text>
    ${right && html`<text class="soft" x=${w - 11} y=${top + 20} text-anchor="end">${right}</text>`}
    ${figures.length ? figures.map(([kind, n, title]) => {
      const text = num(n), at = x;
      x += 24 + text.length * 6.5;
      return html`<g class=${`c-${kind}`} transform=${`translate(${at} ${top + 38})`}><g transform="translate(0 -9.5)"><${Glyph} kind=${kind} size=${10} /></g><text class="n" x="13">${text}</text>${title && html`<title>${title}</title>`}</g>`;
    }) : left && html`<text class="soft" x="12" y=${top + 38}>${left}</text>`}
    ${note && x < w - 60 && html`<text class="soft" x=${w - 11} y=${top + 38} text-anchor="end">${note}</text>`}
    ${node.badges.map(({ kind, text }, i) => html`<g class=${`c-${ENDS[kind]?.[0] ?? "due"}`} transform=${`translate(${12 + i * 82} ${top + 46})`}>${ENDS[kind] && html`<${Glyph} kind=${ENDS[kind][0]} size=${10} />`}<text class="small" x=${ENDS[kind] ? 14 : 0} y="9">${text}</text></g>`)}
    ${bar > 0 && html`<rect class="fails" x="8" y=${h - 3} width=${Math.max(4, (w - 16) * Math.min(1, bar)).toFixed(1)} height="2.5" rx="1.2" />`}
    ${badge && html`<g class="badge" transform=${`translate(${w - 6} -1)`}><rect x=${-8 - badge.length * 3} y="-8" width=${16 + badge.length * 6} height="16" rx="8" /><text y="4" text-anchor="middle">${badge}</text></g>`}`;
};

const End = ({ node: { kind, width: w, height: h }, more: { right } }) => {
  const [which, word = "start"] = ENDS[kind] ?? [];
  return html`<rect class=${which ? `end c-${which}` : "start"} width=${w} height=${h} rx=${h / 2} />
    ${which && html`<g transform=${`translate(13 ${h / 2 - 6})`}><${Glyph} kind=${which} /></g>`}
    <text class=${which ? `c-${which}` : "soft"} x=${which ? 31 : w / 2} y=${h / 2 + 4} text-anchor=${which ? undefined : "middle"}>${right ?? word}</text>`;
};

/** The shape of a node: its tabs, which reach below the box, and the box. */
const shape = ({ kind, width, height, top, tabs }) => [...tabs.map(({ x, y, width, height }) => ({ x, y, width, height: height + UNDER, rx: 8 })), { y: top, width, height: height - top, rx: isStep({ kind }) ? 8 : height / 2 }]
  .map(rect => html`<rect ...${rect} />`);

function useDots(svg, flow, over) {
  useEffect(() => {
    const layer = svg.current?.querySelector(".dots"), done = new Set();
    if (!flow || !layer || calm.matches || document.hidden) return;
    for (const path of svg.current.querySelectorAll("path.edge")) {
      const { key, tone } = path.dataset, n = Math.min(5, flow[key] ?? 0);
      if (done.has(key) || layer.childElementCount > 90) continue;
      done.add(key);
      for (let i = 0; i < n; i++) {
        const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle"), end = () => dot.remove();
        dot.setAttribute("r", 3.4);
        dot.setAttribute("class", `dot c-${tone}`);
        dot.style.offsetPath = `path("${path.getAttribute("d")}")`;
        layer.append(dot);
        dot.animate([{ offsetDistance: "0%", opacity: 0 }, { opacity: 1, offset: .1 }, { opacity: 1, offset: .9 }, { offsetDistance: "100%", opacity: 0 }],
          { duration: 700 + Math.min(900, path.getTotalLength() * 1.6), delay: ((i + Math.random()) * over) / n, fill: "backwards", easing: "ease-in-out" }).finished.then(end, end);
      }
    }
  }, [flow]);
}

export const Graph = ({ layout, nodes = {}, edges = {}, selected, onSelect, legend, flow, over = 1000, tools, aside, label = "Picture of the machine", class: name = "", height }) => {
  const box = useRef(), svg = useRef(), id = useId(), dragged = useRef(false);
  const [size, setSize] = useState({ w: 0, h: 0 });
  const [view, setView] = useState(null);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([{ contentRect: { width, height } }]) => setSize({ w: width, h: height }));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const isNarrow = size.w < 560, pad = isNarrow ? 12 : 16;
  const head = drawing => (tools && (isNarrow || drawing === layout.right) ? 40 : 0);
  const foot = drawing => (isNarrow ? (legend ? 100 : 30) : drawing === layout.right ? 30 : 0);
  const scale = (drawing, below = foot(drawing)) => Math.min((size.w - pad * 2) / drawing.width, isNarrow ? 9 : (size.h - pad * 2 - head(drawing) - below) / drawing.height, 1.15);
  const shown = !isNarrow && layout.right && scale(layout.right) > scale(layout.down) * 1.05 ? layout.right : layout.down;
  const place = below => {
    const k = Math.max(.2, scale(shown, below)), free = size.h - head(shown) - below;
    return { k, x: (size.w - shown.width * k) / 2, y: head(shown) + Math.max(pad, (free - shown.height * k) / 2) };
  };
  // The legend and the buttons are at the bottom. If they cover a node, the picture ends above them.
  const covers = ({ k, x, y }) => shown.nodes.some(node => {
    const below = size.h - y - (node.y + node.height) * k;
    return below < 44 && x + (node.x + node.width) * k > size.w - 120 || legend && below < 150 && x + node.x * k < 150;
  });
  const isRow = shown === layout.right || (!isNarrow && covers(place(0))), fit = place(isRow ? 30 : foot(shown));
  const at = view ?? fit;
  useEffect(() => setView(null), [shown.width, shown.height, size.w]);
  useDots(svg, flow, over);
  const zoom = (by, x = size.w / 2, y = size.h / 2) => setView(view => {
    const old = view ?? fit, next = Math.max(.15, Math.min(3, old.k * by));
    return { k: next, x: x - ((x - old.x) * next) / old.k, y: y - ((y - old.y) * next) / old.k };
  });
  const press = event => {
    if (event.button || (event.pointerType === "touch" && !view)) return;
    const from = { x: event.clientX, y: event.clientY };
    dragged.current = false;
    const release = new AbortController(), { signal } = release;
    addEventListener("pointermove", event => {
      const dx = event.clientX - from.x, dy = event.clientY - from.y;
      if (!dragged.current && Math.hypot(dx, dy) < 5) return;
      dragged.current = true;
      setView({ k: at.k, x: at.x + dx, y: at.y + dy });
    }, { signal });
    for (const type of ["pointerup", "pointercancel"]) addEventListener(type, () => release.abort(), { signal });
  };
  const wheel = event => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const { left, top } = box.current.getBoundingClientRect();
    zoom(event.deltaY < 0 ? 1.12 : .89, event.clientX - left, event.clientY - top);
  };
  useEffect(() => {
    // Preact's listeners of wheel events are passive, and could not keep the page from zooming.
    const element = svg.current;
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  });
  const pick = (event, id) => {
    event.stopPropagation();
    if (!dragged.current) onSelect?.(id);
    dragged.current = false;
  };
  const tip = tone => `${id}${tone}`;
  const toneOf = edge => edges[edge.key]?.tone ?? (edge.kind === "observed" ? "seen" : "");
  const names = { ...Object.fromEntries(shown.nodes.map(node => [node.id, ENDS[node.kind]?.[1] ?? node.name])), "(start)": "start" };
  const items = legend === true ? LEGEND.map(kind => [kind, WORDS[kind] ?? KINDS[kind][0].toLowerCase()]) : legend;
  const wanted = isNarrow ? Math.min(1600, shown.height * fit.k + pad * 2 + head(shown) + foot(shown) + 16) : Math.max(innerHeight - 250, Math.min(1100, Math.min(layout.down.height, layout.right?.height ?? 9999) * .92 + 28));
  const style = height === undefined ? { height: `${Math.round(wanted)}px` } : { height };
  return html`<div class=${`graph ${name}${isNarrow ? " narrow" : ""}${isRow ? " right" : ""}`} ref=${box} style=${style}>
    <svg ref=${svg} role="group" aria-label=${label} class=${view ? "moved" : undefined} onPointerDown=${press} onClick=${event => pick(event, null)}>
      <defs>${["", "never", "bad", "path", "ahead", "seen"].map(tone => html`<marker id=${tip(tone)} viewBox="0 0 8 8" refX="6.6" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><path class=${`arrow ${tone}`} d="M.8 .9L7.2 4L.8 7.1Z" /></marker>`)}</defs>
      ${size.w > 0 && html`<g transform=${`translate(${at.x.toFixed(1)} ${at.y.toFixed(1)}) scale(${at.k.toFixed(4)})`}>
        ${shown.edges.map(edge => {
          const more = edges[edge.key] ?? {}, tone = toneOf(edge);
          return html`<path class=${`edge ${edge.kind} ${tone}`} d=${edge.path} stroke-width=${(1.3 + 3 * Math.sqrt(more.width ?? 0)).toFixed(2)} data-key=${edge.key} data-tone=${EDGES[edge.kind] ?? "run"} marker-end=${`url(#${tip(tone)})`}><title>${more.title ?? `${names[edge.source]} → ${names[edge.target]}`}</title></path>`;
        })}
        ${shown.nodes.map(({ id, loop }) => {
          const more = edges[`${id}>${id}`] ?? {}, { tone = "" } = more;
          return loop && html`<g class=${`loop ${tone}`}><path d=${loop.path} marker-end=${`url(#${tip(/never|ahead/.test(tone) ? tone : "seen")})`} /><title>${more.title ?? loop.text}</title>${shown === layout.down && more.share && html`<text x=${loop.x} y=${loop.y + 4}>${more.share}</text>`}</g>`;
        })}
        ${shown.edges.filter((edge, i, all) => edges[edge.key]?.share && all.findIndex(one => one.key === edge.key) === i).map(edge => {
          const text = edges[edge.key].share, w = text.length * 6 + 4;
          return html`<g class=${`share ${toneOf(edge)}`} transform=${`translate(${edge.x} ${edge.y})`} aria-hidden="true"><rect x=${-w / 2} y="-7.5" width=${w} height="15" rx="4" /><text y="4" text-anchor="middle">${text}</text></g>`;
        })}
        <g class="dots" />
        ${shown.nodes.map(node => {
          const more = nodes[node.id] ?? {}, isButton = onSelect && node.kind !== "start";
          const props = isButton ? { role: "button", tabindex: 0, "aria-pressed": isStep(node) ? selected === node.id : undefined, "aria-label": more.label ?? names[node.id], onClick: event => pick(event, node.id),
            onKeyDown: event => ["Enter", " "].includes(event.key) && (event.preventDefault(), onSelect(node.id)) } : {};
          return html`<g key=${node.id} class=${`node ${node.kind}${selected === node.id ? " on" : ""}${more.dim ? " dim" : ""}`} transform=${`translate(${node.x} ${node.y})`} ...${props}>
            <g class=${`halo ${more.here ? `c-${more.here}` : ""}`}>${shape(node)}</g>${isStep(node) ? html`<${Step} node=${node} more=${more} />` : html`<${End} node=${node} more=${more} />`}<title>${more.title ?? (node.doc ? `${node.id}: ${node.doc}` : node.id)}</title></g>`;
        })}</g>`}</svg>
    ${tools && html`<div class="over">${tools}</div>`}${aside && html`<div class="over aside">${aside}</div>`}
    ${items && html`<ul class="keys" aria-label="Legend">${items.map(([kind, text]) => html`<li><${Glyph} kind=${kind} size=${11} />${text}</li>`)}</ul>`}
    <div class="zoom"><${Button} icon="minus" small label="Zoom out" onClick=${() => zoom(.83)} /><${Button} icon="plus" small label="Zoom in" onClick=${() => zoom(1.2)} /><${Button} icon="fit" small label="Fit" onClick=${() => setView(null)} /></div>
    <table class="hidden"><caption>${label} as a table</caption><thead><tr><th scope="col">Step</th><th scope="col">Figures</th><th scope="col">Leads to</th></tr></thead>
      <tbody>${shown.nodes.filter(isStep).map(node => html`<tr><th scope="row">${node.id}</th><td>${nodes[node.id]?.label ?? node.doc}</td>
        <td>${[...new Set(shown.edges.filter(edge => edge.source === node.id).map(edge => `${names[edge.target]}${edges[edge.key]?.share ? ` ${edges[edge.key].share}` : ""}`))].join(", ")}</td></tr>`)}</tbody></table></div>`;
};

export const Mini = ({ layout, nodes = {} }) => {
  const { width, height } = layout;
  return html`<svg class="mini" style=${{ maxWidth: `${width * .5}px` }} viewBox=${`-8 -8 ${width + 16} ${height + 16}`} aria-hidden="true">
    ${layout.edges.map(edge => html`<path class="edge" d=${edge.path} />`)}
    ${layout.nodes.map(node => {
      const { x, y, width: w, height: h, top } = node, { heat = ["run", 0], tabs = [] } = nodes[node.id] ?? {};
      if (!isStep(node)) return html`<rect class=${ENDS[node.kind] ? `bit c-${ENDS[node.kind][0]}` : "idle"} opacity=${ENDS[node.kind] && !heat[1] ? .3 : 1} x=${x + w * .2} y=${y} width=${w * .6} height=${h} rx=${h / 2} />`;
      return html`<rect class="idle" x=${x} y=${y + top} width=${w} height=${h - top} rx="10" />${heat[1] > .02 && html`<rect class=${`bit c-${heat[0]}`} x=${x} y=${y + top} width=${w} height=${h - top} rx="10" opacity=${Math.min(.9, heat[1]).toFixed(2)} />`}
        ${node.tabs.map((tab, i) => html`<rect class=${`bit c-${TABS[tab.kind]}`} x=${x + tab.x} y=${y + tab.y} width=${tab.width} height=${tab.height - 5} rx="8" opacity=${tabs[i]?.n ? .9 : .3} />`)}`;
    })}</svg>`;
};
