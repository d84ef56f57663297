"""What a picture of a graph shows: boxes with their texts and sizes, and links between them. No positions.

A wait is drawn at the step that runs after it, because `Await(paid, then=ship)` stores `ship` as the step of the row at
once. It is a tab on top of that step, and the link ends there.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Final, Literal, TypeAlias

import msgspec

from .._checks import duration_text
from .model import CANCELLED, DONE, FAILED, HANDLE, Edge, Graph

__all__ = [
    "BADGES_HEIGHT",
    "BODY_HEIGHT",
    "LINE_HEIGHT",
    "START",
    "TAB_PADDING",
    "Badge",
    "Box",
    "Link",
    "Picture",
    "Tab",
    "picture",
    "shortened",
    "tab_lines",
    "text_width",
]

START: Final = "(start)"
BODY_HEIGHT: Final = 40.0
BADGES_HEIGHT: Final = 20.0
LINE_HEIGHT: Final = 14.0
_END_HEIGHT: Final = 28.0
TAB_PADDING: Final = 10.0
# Width of a character of a monospaced font, as a share of its size.
_ADVANCE: Final = 0.602
_NAME_SIZE: Final = 13
_SMALL_SIZE: Final = 11
_ICON: Final = 18.0
_MAX_NAME: Final = 42
_MAX_TAB_LINE: Final = 34
_MAX_TAB_LINES: Final = 4
_MIN_WIDTH: Final = 120.0
# With figures: the size of the start, the least width, the height of two lines, and the space of a rate beside a name
# and of a count in a tab.
_ENDS_WITH_FIGURES: Final = (84.0, 24.0)
_MIN_WIDTH_WITH_FIGURES: Final = 156.0
_TWO_LINES: Final = 44.0
_RATE: Final = 38.0
_COUNT: Final = 34.0
# Space beside the tabs where links end that do not wait.
_FREE: Final = 34.0
# Above this number, an end is a badge on each step instead of a box with that many links.
_MAX_END_LINKS: Final = 3
_ENDS: Final = {DONE: "done", FAILED: "failed", CANCELLED: "cancelled"}

TabKind: TypeAlias = Literal["signal", "children", "delay"]


class Tab(msgspec.Struct, frozen=True):
    """A wait before a step."""

    kind: TabKind
    lines: tuple[str, ...]
    width: float
    names: tuple[str, ...] = ()
    """The signals or the machines of the children that it waits for."""


class Badge(msgspec.Struct, frozen=True):
    """An end that a step may reach, or that its targets are not all known; inside its box."""

    kind: str
    text: str


class Box(msgspec.Struct):
    """A step, `handle`, the start or an end."""

    id: str
    kind: str
    name: str
    width: float = 0.0
    body: float = BODY_HEIGHT
    """Height without tabs and badges."""
    tabs: list[Tab] = []
    badges: list[Badge] = []
    loop: str = ""
    """The text beside a loop from the step to itself without a wait; empty: there is none."""
    has_free_top: bool = False
    """Whether a link ends at the body, beside the tabs."""

    @property
    def tabs_height(self) -> float:
        """Height of the tabs; 0 if there are none."""
        lines = max((len(tab.lines) for tab in self.tabs), default=0)
        return lines * LINE_HEIGHT + TAB_PADDING if lines else 0.0

    @property
    def height(self) -> float:
        """Height of the whole box."""
        return self.tabs_height + self.body + (BADGES_HEIGHT if self.badges else 0.0)


class Link(msgspec.Struct, frozen=True):
    """A line from one box to another, or to itself through a tab."""

    source: str
    target: str
    kind: str
    tab: int | None = None
    """The tab of the target at which it ends; `None`: its body."""


class Picture(msgspec.Struct, frozen=True):
    """The contents of a picture."""

    boxes: dict[str, Box]
    links: list[Link]


def picture(graph: Graph, *, with_figures: bool = False, are_tabs_stacked: bool = False) -> Picture:
    """Choose what the picture of a graph shows.

    `with_figures`: leave space for counts in tabs, and for a second line in boxes. `are_tabs_stacked`: the tabs of a
    box are above each other instead of beside each other.
    """
    boxes = {START: Box(START, "start", "", width=14.0, body=14.0)}
    for node in graph.nodes:
        if node.kind in ("step", "handle"):
            boxes[node.id] = Box(node.id, node.kind, shortened(node.id))
    links: dict[Link, None] = {Link(START, graph.initial, "start"): None}
    ends = Counter(edge.target for edge in graph.edges if edge.target in _ENDS)
    loops: dict[str, dict[str, None]] = {}
    for edge in graph.edges:
        if edge.target in _ENDS:
            _add_end(boxes, links, edge, is_badge=ends[edge.target] > _MAX_END_LINKS)
            continue
        if edge.target not in boxes:
            continue
        tab = _tab_index(boxes[edge.target], edge)
        if edge.source == edge.target and tab is None:
            loops.setdefault(edge.source, {})[_loop_text(edge)] = None
        else:
            kind = "on_failure" if edge.source == HANDLE else "next" if edge.kind == "retry" else edge.kind
            links[Link(edge.source, edge.target, kind, tab)] = None
            boxes[edge.target].has_free_top |= tab is None
    boxes[graph.initial].has_free_top = True
    for step, texts in loops.items():
        bounded = [text for text in texts if "retry" in texts and text.startswith("retry ×")]
        boxes[step].loop = ", ".join(text for text in texts if text not in bounded)
    for id in graph.unread:
        boxes[id].badges = [*boxes[id].badges, Badge("unread", "possibly others")]
    for box in boxes.values():
        _measure(box, with_figures=with_figures, are_tabs_stacked=are_tabs_stacked)
    return Picture(boxes, [*links])


def text_width(text: str, size: int = _SMALL_SIZE) -> float:
    """Return the width of a text in a monospaced font of this size."""
    return len(text) * size * _ADVANCE


def shortened(text: str, most: int = _MAX_NAME) -> str:
    """Cut a long name."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _add_end(boxes: dict[str, Box], links: dict[Link, None], edge: Edge, *, is_badge: bool) -> None:
    end = _ENDS[edge.target]
    if is_badge:
        badges = boxes[edge.source].badges
        if all(badge.kind != end for badge in badges):
            boxes[edge.source].badges = [*badges, Badge(end, end)]
        return
    if edge.target not in boxes:
        boxes[edge.target] = Box(edge.target, end, end, width=text_width(end, 12) + 40, body=_END_HEIGHT)
    links[Link(edge.source, edge.target, edge.kind)] = None


def _tab_index(box: Box, edge: Edge) -> int | None:
    """Return the tab of the target for an edge that waits, and add it if it is new."""
    if edge.kind == "retry" or not (edge.waits or edge.kind == "await"):
        return None
    tab = _tab(edge)
    if tab not in box.tabs:
        box.tabs = [*box.tabs, tab]
    return box.tabs.index(tab)


def _tab(edge: Edge) -> Tab:
    if edge.kind == "children":
        kind: TabKind = "children"
        names = list(edge.children) or ["children"]
    elif edge.signals:
        kind, names = "signal", list(edge.signals)
    elif edge.is_delayed:
        return _made("delay", ["delay" if edge.delay is None else f"delay {_text(edge.delay)}"])
    else:
        return _made("delay", ["sleep" if edge.timeout is None else f"sleep {_text(edge.timeout)}"])
    lines = tab_lines(names)
    if edge.has_timeout:
        lines.append("or timeout" if edge.timeout is None else f"or after {_text(edge.timeout)}")
    return _made(kind, lines, edge.children or edge.signals)


def _made(kind: TabKind, lines: list[str], names: tuple[str, ...] = ()) -> Tab:
    return Tab(kind, tuple(lines), max(map(text_width, lines)) + _ICON + 18, names)


def tab_lines(names: list[str]) -> list[str]:
    """Write names in lines of limited length."""
    lines: list[str] = []
    for name in names:
        short = shortened(name, _MAX_TAB_LINE)
        if lines and len(lines[-1]) + len(short) + 2 <= _MAX_TAB_LINE:
            lines[-1] += f", {short}"
        else:
            lines.append(short)
    if len(lines) > _MAX_TAB_LINES:
        shown = lines[: _MAX_TAB_LINES - 1]
        count = len(names) - len(", ".join(shown).split(", "))
        return [*shown, f"and {count} more"]
    return lines


def _text(duration: timedelta) -> str:
    return duration_text(duration)


def _loop_text(edge: Edge) -> str:
    if edge.kind == "retry":
        if edge.delay is not None:
            return f"retry after {_text(edge.delay)}"
        return "retry" if edge.max_attempts is None else f"retry ×{edge.max_attempts}"
    return "repeat"


def _leave_space(box: Box) -> None:
    """Make a box large enough for figures."""
    if box.kind == "start":
        box.width, box.body = _ENDS_WITH_FIGURES
    elif box.kind in ("step", "handle"):
        box.body = _TWO_LINES
        box.width = max(_MIN_WIDTH_WITH_FIGURES, text_width(box.name, _NAME_SIZE) + 36 + _RATE)
        box.tabs = [msgspec.structs.replace(tab, width=tab.width + _COUNT) for tab in box.tabs]
    else:
        box.width = max(box.width, _ENDS_WITH_FIGURES[0])


def _measure(box: Box, *, with_figures: bool, are_tabs_stacked: bool) -> None:
    if with_figures:
        _leave_space(box)
    if box.kind not in ("step", "handle"):
        return
    badges = sum(text_width(badge.text) + 22 for badge in box.badges) + 16 if box.badges else 0.0
    box.width = max(box.width, _MIN_WIDTH, text_width(box.name, _NAME_SIZE) + 36, badges)
    if are_tabs_stacked:
        box.width = max([box.width, *(tab.width for tab in box.tabs)])
    else:
        tabs = sum(tab.width for tab in box.tabs) + (_FREE if box.tabs and box.has_free_top else 0.0)
        box.width = max(box.width, tabs)
    if with_figures and len(box.tabs) == 1 and (are_tabs_stacked or not box.has_free_top):
        box.tabs = [msgspec.structs.replace(box.tabs[0], width=box.width)]
