// Charts as SVG. README.md describes them.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { moment, num, time } from "./lib.js";

const known = values => values.filter(value => value != null && Number.isFinite(value));
const highest = values => known(values).reduce((a, b) => Math.max(a, b), 0);
const summary = (label, values, text) => {
  const all = known(values);
  return all.length ? `${label}: from ${text(Math.min(...all))} to ${text(Math.max(...all))}, last ${text(all.at(-1))}` : `${label}: no data`;
};

// A missing value is a gap. `base` closes the line as an area.
function trace(points, base) {
  let path = "", run = [];
  const end = () => {
    if (run.length) path += `M${run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}${run[1] ? "" : "h.1"}`;
    if (run.length && base != null) path += `L${run.at(-1)[0].toFixed(1)} ${base}L${run[0][0].toFixed(1)} ${base}Z`;
    run = [];
  };
  for (const point of points) point[1] == null ? end() : run.push(point);
  end();
  return path;
}

export const Spark = ({ values, kind = "run", label = "", height = 24, max, fill = true, text = num }) => {
  const top = max ?? (highest(values) || 1);
  const points = values.map((value, i) => [(100 * i) / Math.max(1, values.length - 1), value == null ? null : height - 1 - (value / top) * (height - 3)]);
  return html`<svg class=${`spark c-${kind}`} viewBox=${`0 0 100 ${height}`} style=${{ height: `${height}px` }} preserveAspectRatio="none" role="img" aria-label=${summary(label, values, text)}>
    ${fill && html`<path class="area" d=${trace(points, height)} />`}<path class="line" d=${trace(points)} /></svg>`;
};
export const Line = props => html`<${Spark} fill=${false} ...${props} />`;

export const Bars = ({ values, kind = "run", label = "", height = 20, max, text = num }) => {
  const top = max ?? (highest(values) || 1);
  return html`<svg class=${`spark bars c-${kind}`} viewBox=${`0 0 ${values.length * 4} ${height}`} style=${{ height: `${height}px` }} preserveAspectRatio="none" role="img" aria-label=${summary(label, values, text)}>
    ${values.map((value, i) => value > 0 && html`<rect x=${i * 4} width="3" y=${height - Math.max(1, (value / top) * height)} height=${Math.max(1, (value / top) * height)} />`)}</svg>`;
};

const STEPS = [1, 2, 3, 5, 10, 15, 30].flatMap(n => [n, n * 60, n * 3600]).concat(6 * 3600, 12 * 3600, 86400, 7 * 86400).sort((a, b) => a - b);
const DURATIONS = [0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36000, 86400, 864000];
const grid = (top, most = 4) => {
  const raw = top / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find(n => n * power >= raw);
  return Array.from({ length: Math.ceil(top / step) + 1 }, (_, i) => i * step);
};

export const Chart = ({ x, series, log, label, height = 190, text = num }) => {
  const box = useRef();
  const [width, setWidth] = useState(0);
  const [at, setAt] = useState(null);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(entry.contentRect.width));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const left = 52, right = 8, top = 10, bottom = height - 22;
  const step = x.length > 1 ? x[1] - x[0] : 1;
  const bars = series.filter(one => one.type === "bar");
  const sums = x.map((_, i) => bars.reduce((sum, one) => sum + (one.values[i] ?? 0), 0));
  const all = known([...series.filter(one => one.type !== "bar").flatMap(one => one.values), ...sums]);
  const peak = highest(all) || (log ? 1 : 4);
  const floor = DURATIONS.findLast(n => n <= Math.min(...all.filter(n => n > 0), peak)) ?? 0.001;
  const ticks = log ? DURATIONS.slice(DURATIONS.indexOf(floor), 1 + DURATIONS.findIndex(n => n >= peak && n > floor) || undefined) : grid(peak);
  const scale = log ? value => Math.log(Math.max(value, floor) / floor) / Math.log(ticks.at(-1) / floor) : value => value / ticks.at(-1);
  const Y = value => bottom - scale(value) * (bottom - top);
  const room = bars.length ? step / 2 : 0;
  const from = (x[0] ?? 0) - room, span = Math.max(1e-9, (x.at(-1) ?? 1) + room - from);
  const X = when => left + ((when - from) / span) * (width - left - right);
  const every = STEPS.find(n => (n / span) * (width - left - right) > 84) ?? 30 * 86400;
  const shift = new Date(from * 1000).getTimezoneOffset() * 60;
  const marks = [];
  for (let t = Math.ceil((from - shift) / every) * every + shift; t <= from + span; t += every) marks.push(t);
  const pitch = (step / span) * (width - left - right), wide = Math.max(1, pitch - Math.min(2, pitch / 4));
  const stacked = x.map(() => 0);
  const move = event => {
    const px = event.clientX - box.current.getBoundingClientRect().left;
    setAt(Math.max(0, Math.min(x.length - 1, Math.round((from + ((px - left) / (width - left - right)) * span - x[0]) / step))));
  };
  const keys = event => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    setAt(Math.max(0, Math.min(x.length - 1, (at ?? x.length) + by)));
  };
  const name = one => one.name ?? one.kind;
  const index = at != null && at < x.length ? at : null;
  const mark = when => (every >= 86400 ? moment(when).slice(5, 10) : time(when, { short: every >= 60 }));
  return html`<div class="chart" ref=${box} style=${{ height: `${height}px` }} tabindex="0" role="group" aria-label=${`${label}; arrow keys read values`} onPointerMove=${move} onPointerLeave=${() => setAt(null)} onKeyDown=${keys} onBlur=${() => setAt(null)}>
    ${width > 0 && html`<svg width=${width} height=${height} role="img" aria-label=${series.map(one => summary(name(one), one.values, text)).join("; ")}>
      ${ticks.map(value => html`<line class="grid" x1=${left} x2=${width - right} y1=${Y(value)} y2=${Y(value)} /><text x=${left - 8} y=${Y(value) + 4} text-anchor="end">${text(value).replace(".0 ", " ")}</text>`)}
      ${marks.map(when => html`<line class="grid" x1=${X(when)} x2=${X(when)} y1=${top} y2=${bottom} />${X(when) < width - 24 && X(when) > left + 10 && html`<text x=${X(when)} y=${height - 5} text-anchor="middle">${mark(when)}</text>`}`)}
      ${bars.map(one => html`<g class=${`c-${one.kind}`}>${one.values.map((value, i) => {
        if (!value) return null;
        const low = Y(stacked[i]), high = Y((stacked[i] += value));
        return html`<rect x=${X(x[i]) - wide / 2} width=${wide} y=${high} height=${Math.max(low - high, 1)} />`;
      })}</g>`)}
      ${series.filter(one => one.type !== "bar").map(one => {
        const points = one.values.map((value, i) => [X(x[i]), value == null ? null : Y(value)]);
        return html`<g class=${`c-${one.kind}`}>${one.type === "area" && html`<path class="area" d=${trace(points, bottom)} />`}<path class="line" d=${trace(points)} stroke-dasharray=${one.dash ? "4 3" : undefined} /></g>`;
      })}
      ${index != null && html`<line class="cursor" x1=${X(x[index])} x2=${X(x[index])} y1=${top} y2=${bottom} />`}</svg>`}
    ${index != null && html`<div class="tip" role="status" style=${X(x[index]) < width / 2 ? { left: `${X(x[index]) + 12}px` } : { right: `${width - X(x[index]) + 12}px` }}>
      <b>${every >= 3600 ? moment(x[index]) : time(x[index])}</b>${series.map(one => html`<span><i class=${`bg-${one.kind}`} />${name(one)}<b>${one.values[index] == null ? "–" : text(one.values[index])}</b></span>`)}</div>`}</div>`;
};
