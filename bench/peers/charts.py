"""Bar charts as SVG, in a light and a dark variant."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from typing import Final, NamedTuple

from .results import Figures, Results
from .systems import OURS

__all__ = ["CHARTS", "THEMES", "Chart", "charts"]


class Theme(NamedTuple):
    """Colours: text, secondary text, lines, and the bars of the two parts."""

    ink: str
    muted: str
    line: str
    bars: tuple[str, str]


THEMES: Final = {
    "light": Theme("#1f2328", "#59636e", "#d1d9e0", ("#2a78d6", "#e08a1e")),
    "dark": Theme("#f0f6fc", "#9198a1", "#3d444d", ("#5598e7", "#d58a2a")),
}


class Chart(NamedTuple):
    """One chart: which figures of which workload. With two figures the bars are stacked."""

    name: str
    title: str
    workload: str
    figures: tuple[str, ...]
    legend: tuple[str, ...] = ()
    total: str = ""
    """The figure that the parts of a bar add up to: their medians need not."""
    longest: float = math.inf
    """Bars above this are cut off."""


CHARTS: Final = (
    Chart("jobs", "No-op jobs per second", "noop", ("per_second",)),
    Chart(
        "cost",
        "Processor time per no-op job, in µs",
        "noop",
        ("worker_us", "server_us"),
        ("worker process", "PostgreSQL"),
        total="total_us",
        longest=200,
    ),
    Chart("steps", "Durable workflow steps per second", "chain", ("per_second",)),
    Chart(
        "latency", "Insert to start on an idle worker, another process, median in ms", "latency", ("p50_ms",)
    ),
)

_LEFT, _WIDTH, _RIGHT, _ROW, _BAR, _TOP = 280, 400, 90, 28, 16, 64


def charts(results: Results) -> Iterator[tuple[str, str]]:
    """Yield the name of each file and its SVG."""
    for chart in CHARTS:
        for theme in THEMES:
            yield f"{chart.name}-{theme}.svg", draw(chart, results, THEMES[theme])


def draw(chart: Chart, results: Results, theme: Theme) -> str:
    """Return one chart."""
    rows = [
        (system, about["title"], _parts(chart, median))
        for system, about in results.systems.items()
        if (median := results.median(chart.workload, system))
    ]
    rows.sort(key=lambda row: sum(row[2]), reverse=chart.figures == ("per_second",))  # the best first
    top = max((min(sum(values), chart.longest) for _, _, values in rows), default=1.0)
    height = _TOP + len(rows) * _ROW + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + _RIGHT} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" aria-label="{escape(chart.title)}">',
        f'<text x="12" y="24" font-size="15" font-weight="600" fill="{theme.ink}">{escape(chart.title)}</text>',
        *_legend(chart, theme),
        f'<line x1="{_LEFT}" y1="{_TOP - 6}" x2="{_LEFT}" y2="{height - 8}" stroke="{theme.line}"/>',
    ]
    for index, (system, title, values) in enumerate(rows):
        y = _TOP + index * _ROW
        weight = "600" if system == OURS else "400"
        parts.append(
            f'<text x="{_LEFT - 10}" y="{y + 13}" text-anchor="end" font-weight="{weight}" '
            f'fill="{theme.ink}">{escape(title)}</text>'
        )
        parts += _bars(values, y, chart, top, theme)
    return "\n".join([*parts, "</svg>", ""])


def _parts(chart: Chart, median: Figures) -> list[float]:
    """Return the lengths of the parts of a bar, scaled to the total that the table shows."""
    values = [median[name] for name in chart.figures]
    scale = median[chart.total] / sum(values) if chart.total else 1.0
    return [value * scale for value in values]


def _legend(chart: Chart, theme: Theme) -> Iterator[str]:
    for index, text in enumerate(chart.legend):
        x = 12 + index * 140
        yield f'<rect x="{x}" y="36" width="11" height="11" rx="2" fill="{theme.bars[index]}"/>'
        yield f'<text x="{x + 17}" y="46" fill="{theme.muted}">{escape(text)}</text>'


def _bars(values: list[float], y: int, chart: Chart, top: float, theme: Theme) -> Iterator[str]:
    total, x = sum(values), float(_LEFT)
    is_cut = total > chart.longest
    for value, colour in zip(values, theme.bars, strict=False):
        width = _WIDTH * value / top * (chart.longest / total if is_cut else 1)
        yield (
            f'<rect x="{x:.1f}" y="{y}" width="{max(width - 1, 1):.1f}" height="{_BAR}" rx="2" fill="{colour}"/>'
        )
        x += width
    text = f"{total:,.0f}" if total >= 100 else f"{total:,.1f}"
    yield f'<text x="{x + 6:.1f}" y="{y + 13}" fill="{theme.muted}">{"… " if is_cut else ""}{text}</text>'
