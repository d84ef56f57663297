"""The drawing of a graph for programs that show it with figures: positions of boxes, lines and texts.

It leads from top to bottom, or from left to right. The latter is the layout of the transposed picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from .layout import Layout, PlacedBox, Route, layout
from .model import Graph, Node
from .picture import BADGES_HEIGHT, LINE_HEIGHT, TAB_PADDING, Badge, Box, Link, Picture, Tab, picture

__all__ = ["Direction", "Drawing", "DrawnEdge", "DrawnLoop", "DrawnNode", "DrawnTab", "draw"]

Direction: TypeAlias = Literal["down", "right"]

_POINT: Final = re.compile(r"(-?\d+\.\d) (-?\d+\.\d)")
# The least distance between layers. A share is written beside a line that leads right, but over one that leads down.
_GAP: Final[Mapping[Direction, float]] = {"down": 27.0, "right": 56.0}
# Where a text beside a line is, from where the line begins.
_AFTER: Final = 14.0
_BEFORE_TURN: Final = 26.0
_LOOP: Final = "↻"


class DrawnTab(msgspec.Struct, frozen=True, kw_only=True):
    """A wait before a step, at the top of its box. Positions are relative to the box."""

    kind: str
    lines: tuple[str, ...]
    names: tuple[str, ...]
    """The signals, or the machines of the children."""
    x: float
    y: float
    width: float
    height: float


class DrawnLoop(msgspec.Struct, frozen=True, kw_only=True):
    """A line from a step to itself. Positions are those of the drawing."""

    path: str
    text: str
    x: float
    y: float


class DrawnNode(msgspec.Struct, frozen=True, kw_only=True):
    """A box: a step, `handle`, the start or an end."""

    id: str
    kind: str
    name: str
    x: float
    y: float
    width: float
    height: float
    top: float
    """Height of its tabs."""
    tabs: list[DrawnTab]
    badges: list[Badge]
    loop: DrawnLoop | None
    doc: str
    line: int


class DrawnEdge(msgspec.Struct, frozen=True, kw_only=True):
    """A line between boxes."""

    key: str
    """`source>target`; lines through different tabs of a step have the same key."""
    source: str
    target: str
    kind: str
    tab: int | None
    path: str
    """As the data of an SVG path."""
    is_back: bool
    x: float
    """The position of a text beside it."""
    y: float


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """A drawn graph. Nodes are in the order of the code."""

    width: float
    height: float
    nodes: list[DrawnNode]
    edges: list[DrawnEdge]


def draw(graph: Graph, direction: Direction = "down", observed: Iterable[tuple[str, str]] = ()) -> Drawing:
    """Draw a graph.

    Args:
        graph: the graph.
        direction: `right` is drawn with tabs above each other.
        observed: transitions that were committed but are not in the code, drawn as edges of the kind `observed`.
    """
    is_transposed = direction == "right"
    content = picture(graph, with_figures=True, are_tabs_stacked=is_transposed)
    seen = {(link.source, link.target) for link in content.links} | {
        (id, id) for id, box in content.boxes.items() if box.loop
    }
    content.links.extend(
        Link(source, target, "observed")
        for source, target in dict.fromkeys(observed)
        if (source, target) not in seen and {source, target} <= content.boxes.keys() and source != target
    )
    nodes = {node.id: node for node in graph.nodes}
    loops = {id: box.loop for id, box in content.boxes.items()}
    for box in content.boxes.values():
        # Its text is shown on demand: most steps of a machine with retries have one.
        box.loop = _LOOP if box.loop else ""
    boxes = {id: _transposed(box) for id, box in content.boxes.items()} if is_transposed else content.boxes
    placed = layout(Picture(boxes, content.links), _GAP[direction])
    return _drawing(placed, content.boxes, loops, nodes, is_transposed=is_transposed)


def _transposed(box: Box) -> Box:
    """Exchange width and height. The tabs become parts of the edge at which links end."""
    return Box(
        box.id,
        box.kind,
        box.name,
        width=sum(map(_tab_height, box.tabs)) + _body(box),
        body=box.width,
        tabs=[Tab(tab.kind, (), _tab_height(tab)) for tab in box.tabs],
        loop=box.loop,
        has_free_top=box.has_free_top,
    )


def _body(box: Box) -> float:
    return box.body + (BADGES_HEIGHT if box.badges else 0.0)


def _tab_height(tab: Tab) -> float:
    return len(tab.lines) * LINE_HEIGHT + TAB_PADDING


def _drawing(
    placed: Layout,
    boxes: Mapping[str, Box],
    texts: Mapping[str, str],
    nodes: Mapping[str, Node],
    *,
    is_transposed: bool,
) -> Drawing:
    loops = {
        each.step: DrawnLoop(
            path=_turned(each.path) if is_transposed else each.path,
            text=texts[each.step],
            x=each.y if is_transposed else each.x,
            y=each.x if is_transposed else each.y,
        )
        for each in placed.loops
    }
    return Drawing(
        width=placed.height if is_transposed else placed.width,
        height=placed.width if is_transposed else placed.height,
        nodes=[
            _node(
                each,
                boxes[each.box.id],
                nodes.get(each.box.id),
                loops.get(each.box.id),
                is_transposed=is_transposed,
            )
            for each in placed.boxes
        ],
        edges=[_edge(route, is_transposed=is_transposed) for route in placed.routes],
    )


def _node(
    placed: PlacedBox, box: Box, node: Node | None, loop: DrawnLoop | None, *, is_transposed: bool
) -> DrawnNode:
    width, height = placed.box.width, placed.box.height
    if is_transposed:
        width, height = height, width
    tabs: list[DrawnTab] = []
    at = 0.0
    for tab in box.tabs:
        size = (width, _tab_height(tab)) if is_transposed else (tab.width, box.tabs_height)
        x, y = (0.0, at) if is_transposed else (at, 0.0)
        tabs.append(
            DrawnTab(kind=tab.kind, lines=tab.lines, names=tab.names, x=x, y=y, width=size[0], height=size[1])
        )
        at += size[1] if is_transposed else size[0]
    return DrawnNode(
        id=box.id,
        kind=box.kind,
        name=box.name,
        x=placed.y if is_transposed else placed.x,
        y=placed.x if is_transposed else placed.y,
        width=width,
        height=height,
        top=height - _body(box),
        tabs=tabs,
        badges=box.badges,
        loop=loop,
        doc=node.doc if node is not None else "",
        line=node.line if node is not None else 0,
    )


def _edge(route: Route, *, is_transposed: bool) -> DrawnEdge:
    link = route.link
    points = [(float(x), float(y)) for x, y in _POINT.findall(route.path)]
    # A line back leaves at the side, and turns.
    x, y = (
        (points[2][0], points[2][1] - _BEFORE_TURN)
        if route.is_back
        else (points[0][0], points[0][1] + _AFTER)
    )
    return DrawnEdge(
        key=f"{link.source}>{link.target}",
        source=link.source,
        target=link.target,
        kind=link.kind,
        tab=link.tab,
        path=_turned(route.path) if is_transposed else route.path,
        is_back=route.is_back,
        x=y if is_transposed else x,
        y=x if is_transposed else y,
    )


def _turned(path: str) -> str:
    return _POINT.sub(r"\2 \1", path)
