"""Draw a graph as SVG. Light and dark, by the preference of the viewer; no script, no font files."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from .layout import Layout, PlacedBox, layout
from .model import Graph
from .picture import BADGES_HEIGHT, BODY_HEIGHT, LINE_HEIGHT, Box, picture, text_width
from .text import render as text_of

__all__ = ["render"]

_MARGIN: Final = 24.0
_HEADING: Final = 34.0
_LEGEND_LINE: Final = 22.0

# Kind of a line: its colour, its dashes, and its name in the legend.
_LINES: Final = {
    "start": ("line", "", ""),
    "next": ("line", "", ""),
    "await": ("signal", "", "after a signal"),
    "children": ("children", "", "after children"),
    "possible": ("line", "2 4", "possible"),
    "on_failure": ("failed", "6 4", "after an error"),
    "on_cancel": ("cancelled", "6 4", "on cancel"),
    "undo": ("undo", "2 4", "undo"),
    "done": ("done", "", ""),
    "stop": ("failed", "", ""),
    "cancel": ("cancelled", "", ""),
    "retry": ("retry", "", ""),
}
_LIGHT: Final = {
    "back": "#ffffff",
    "ink": "#1b2430",
    "soft": "#5b6675",
    "body": "#ffffff",
    "edge": "#c3cad4",
    "line": "#7b8798",
    "signal": "#6a35b1",
    "signal-fill": "#f0e9fb",
    "children": "#a8327f",
    "children-fill": "#fbe8f4",
    "delay": "#35618f",
    "delay-fill": "#e6eff8",
    "done": "#1a7f4b",
    "done-fill": "#e2f4ea",
    "failed": "#b3261e",
    "failed-fill": "#fcebe9",
    "cancelled": "#8a5a00",
    "cancelled-fill": "#fbf0d9",
    "undo": "#b0500a",
    "retry": "#0b7285",
}
_DARK: Final = {
    "back": "#0f141b",
    "ink": "#e6ebf2",
    "soft": "#9aa6b5",
    "body": "#19212b",
    "edge": "#3b4654",
    "line": "#8a97a8",
    "signal": "#c3a1f5",
    "signal-fill": "#2c2342",
    "children": "#f29bd1",
    "children-fill": "#3b2134",
    "delay": "#93bdea",
    "delay-fill": "#1c2e42",
    "done": "#6fd19c",
    "done-fill": "#16352a",
    "failed": "#ff9b92",
    "failed-fill": "#45201e",
    "cancelled": "#e9bd68",
    "cancelled-fill": "#3a2e16",
    "undo": "#f2a56b",
    "retry": "#66c6d6",
}
_MONO: Final = (
    "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
)
# Icons of waits, 10 by 10.
_ICONS: Final = {
    "signal": '<path d="M2.5 1.5v7M7.5 1.5v7" stroke-width="2"/>',
    "children": '<path d="M5 1v3.5M5 4.5L1.8 8.6M5 4.5L8.2 8.6" stroke-width="1.5"/>',
    "delay": '<circle cx="5" cy="5" r="4" stroke-width="1.3"/><path d="M5 2.6V5l1.7 1.4" stroke-width="1.3"/>',
}


def render(graph: Graph) -> str:
    """Draw a graph."""
    placed = layout(picture(graph))
    kinds = [
        *dict.fromkeys(route.link.kind for route in placed.routes),
        *(["retry"] if placed.loops else []),
    ]
    legend = [kind for kind in kinds if _LINES[kind][2]]
    heading = f"{graph.machine} · version {graph.version}"
    inner = max(placed.width, text_width(heading, 14) + 8, 160.0)
    items, rows = _legend(legend, inner)
    width = inner + 2 * _MARGIN
    height = placed.height + 2 * _MARGIN + _HEADING + (rows * _LEGEND_LINE + 14 if rows else 0)
    title = f"Graph of machine {graph.machine}, version {graph.version}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
            f'height="{height:.0f}" role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(text_of(graph))}</desc>',
            f"<style>{_style()}</style>",
            f"<defs>{''.join(_marker(kind) for kind in kinds)}</defs>",
            '<rect class="back" width="100%" height="100%" rx="8"/>',
            f'<text class="heading" x="{_MARGIN}" y="{_MARGIN + 12}">{escape(heading)}</text>',
            f'<g transform="translate({_MARGIN + (inner - placed.width) / 2:.1f} {_MARGIN + _HEADING})">',
            *_routes(placed),
            *(line for box in placed.boxes for line in _box(box, is_first=box.box.id == graph.initial)),
            "</g>",
            f'<g transform="translate({_MARGIN} {placed.height + _MARGIN + _HEADING + 26:.1f})">'
            if items
            else "",
            *items,
            "</g>" if items else "",
            "</svg>",
            "",
        ]
    )


def _style() -> str:
    # No CSS variables: programs that convert SVG do not know them.
    return f"{_rules(_LIGHT)}@media(prefers-color-scheme:dark){{{_rules(_DARK)}}}"


def _rules(colours: dict[str, str]) -> str:
    ink, soft, body = colours["ink"], colours["soft"], colours["body"]
    lines = "".join(
        f".{kind}{{stroke:{colours[colour]};{f'stroke-dasharray:{dashes};' if dashes else ''}}}"
        f".tip-{kind}{{fill:{colours[colour]}}}"
        for kind, (colour, dashes, _) in _LINES.items()
    )
    filled = "".join(
        f".box-{kind},.tab-{kind},.badge-{kind}{{fill:{colours[f'{kind}-fill']};stroke:{colours[kind]}}}"
        f".text-{kind}{{fill:{colours[kind]}}}.icon-{kind}{{stroke:{colours[kind]}}}"
        for kind in ("signal", "children", "delay", "done", "failed", "cancelled")
    )
    return (
        f"text{{font:11px {_MONO};fill:{soft}}}.heading{{font-size:14px;font-weight:600;fill:{ink}}}"
        f".name{{font-size:13px;font-weight:600;fill:{ink}}}.end{{font-size:12px;font-weight:600}}"
        f".back{{fill:{colours['back']}}}.link,.loop{{fill:none;stroke-width:1.5}}"
        f".box-step{{fill:{body};stroke:{colours['edge']};stroke-width:1.2}}"
        f".box-handle{{fill:{body};stroke:{colours['failed']};stroke-width:1.2;stroke-dasharray:4 3}}"
        f".box-initial{{stroke:{ink};stroke-width:1.6}}.box-start{{fill:{ink}}}"
        ".tab{stroke-width:1}.badge{stroke-width:.8}.icon{fill:none;stroke-linecap:round;stroke-linejoin:round}"
        f".badge-unread{{fill:none;stroke:{soft};stroke-dasharray:2 2}}.text-unread{{fill:{soft}}}"
        f"{filled}{lines}.text-retry{{fill:{colours['retry']}}}"
    )


def _marker(kind: str) -> str:
    return (
        f'<marker id="tip-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="tip-{kind}" d="M0 .6L8 4L0 7.4z"/></marker>'
    )


def _routes(placed: Layout) -> Iterator[str]:
    for route in placed.routes:
        kind = route.link.kind
        yield f'<path class="link {kind}" d="{route.path}" marker-end="url(#tip-{kind})"/>'
    for loop in placed.loops:
        yield f'<path class="loop retry" d="{loop.path}" marker-end="url(#tip-retry)"/>'
        yield f'<text class="text-retry" x="{loop.x:.1f}" y="{loop.y + 4:.1f}">{escape(loop.text)}</text>'


def _box(placed: PlacedBox, *, is_first: bool) -> Iterator[str]:
    box = placed.box
    yield f'<g transform="translate({placed.x:.1f} {placed.y:.1f})">'
    if box.kind == "start":
        yield '<circle class="box-start" cx="7" cy="7" r="6"/>'
    elif box.kind in ("done", "failed", "cancelled"):
        yield f'<rect class="box-{box.kind}" width="{box.width:.1f}" height="{box.height:.1f}" rx="14"/>'
        yield _centred(box.name, box.width / 2, 18.5, f"end text-{box.kind}")
    else:
        yield f"<title>{escape(box.id)}</title>"
        yield from _tabs(box)
        height = box.height - box.tabs_height
        kind = f"box-{box.kind}{' box-initial' if is_first else ''}"
        yield (
            f'<rect class="{kind}" y="{box.tabs_height:.1f}" width="{box.width:.1f}" height="{height:.1f}" rx="6"/>'
        )
        yield _centred(box.name, box.width / 2, box.tabs_height + BODY_HEIGHT / 2 + 4.5, "name")
        yield from _badges(box)
    yield "</g>"


def _tabs(box: Box) -> Iterator[str]:
    x = 0.0
    for tab in box.tabs:
        # Its lower corners are behind the body.
        height, width = box.tabs_height + 6, tab.width
        yield f'<rect class="tab tab-{tab.kind}" x="{x + 1:.1f}" width="{width - 2:.1f}" height="{height:.1f}" rx="6"/>'
        first = (box.tabs_height - len(tab.lines) * LINE_HEIGHT) / 2 + 10.5
        yield (
            f'<g class="icon icon-{tab.kind}" transform="translate({x + 8:.1f} {first - 8.5:.1f})">'
            f"{_ICONS[tab.kind]}</g>"
        )
        for index, line in enumerate(tab.lines):
            y = first + index * LINE_HEIGHT
            yield f'<text class="text-{tab.kind}" x="{x + 24:.1f}" y="{y:.1f}">{escape(line)}</text>'
        x += width


def _badges(box: Box) -> Iterator[str]:
    widths = [text_width(badge.text) + 14 for badge in box.badges]
    x = (box.width - sum(widths) - 6 * (len(widths) - 1)) / 2
    y = box.tabs_height + BODY_HEIGHT - 6
    for badge, width in zip(box.badges, widths, strict=True):
        yield (
            f'<rect class="badge badge-{badge.kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{BADGES_HEIGHT - 3:.1f}" rx="8"/>'
        )
        yield _centred(badge.text, x + width / 2, y + 12.5, f"text-{badge.kind}")
        x += width + 6


def _centred(text: str, x: float, y: float, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(text)}</text>'


def _legend(kinds: list[str], width: float) -> tuple[list[str], int]:
    """Return the items of the legend and the number of their rows."""
    if not kinds:
        return [], 0
    items: list[str] = []
    # Columns of equal width: the font of the viewer may be narrower than assumed.
    column = max(text_width(_LINES[kind][2]) for kind in kinds) + 54
    columns = max(1, int((width + 20) / column))
    for index, kind in enumerate(kinds):
        text = _LINES[kind][2]
        row = index // columns
        x, y = index % columns * column, row * _LEGEND_LINE
        items.append(f'<path class="link {kind}" d="M{x:.1f} {y:.1f}h24" marker-end="url(#tip-{kind})"/>')
        items.append(f'<text x="{x + 32:.1f}" y="{y + 4:.1f}">{escape(text)}</text>')
    return items, (len(kinds) - 1) // columns + 1
