"""Positions of the boxes of a picture, and the paths of its links: a layered layout, from top to bottom.

Boxes of one layer share their top edge. A link that spans several layers has a *dummy* in each layer between, which
keeps boxes out of its path, so no line crosses a box. Links that lead back run in *lanes* to the right of their boxes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Final, NamedTuple, TypeAlias

import msgspec

from .layers import back_links, layers_of, ordered
from .picture import BODY_HEIGHT, Box, Link, Picture, text_width

__all__ = ["Layout", "PlacedBox", "PlacedLoop", "Route", "layout"]

_GAP_X: Final = 30.0
_DUMMY_GAP: Final = 14.0
_DUMMY_WIDTH: Final = 8.0
_GAP_Y: Final = 44.0
_LANE: Final = 12.0
_FIRST_LANE: Final = 16.0
_CORNER: Final = 8.0
_LOOP_WIDTH: Final = 18.0
# Heights at the side of a body: where links enter, its loop, where links leave. Several kinds of links need more space.
_IN_Y: Final = (7.0, 13.0)
_LOOP_Y: Final = ((14.0, 26.0), (20.0, 30.0))
_OUT_Y: Final = 34.0
# A layer with wider boxes is split into several.
_MAX_WIDTH: Final = 1000.0
_ROUNDS: Final = 60
# The farthest that a port moves to make its line straight.
_SNAP: Final = 16.0

Point: TypeAlias = tuple[float, float]


class PlacedBox(msgspec.Struct, frozen=True):
    """A box and the position of its upper left corner."""

    box: Box
    x: float
    y: float


class Route(msgspec.Struct, frozen=True):
    """A link and its line, as the data of an SVG path."""

    link: Link
    path: str
    is_back: bool
    """Whether it closes a cycle."""


class PlacedLoop(msgspec.Struct, frozen=True):
    """A loop from a step to itself, and the position of its text."""

    step: str
    path: str
    text: str
    x: float
    y: float


class Layout(msgspec.Struct, frozen=True):
    """The positions of everything in a picture."""

    width: float
    height: float
    boxes: list[PlacedBox]
    routes: list[Route]
    loops: list[PlacedLoop]


class _Item:
    """A box or a dummy in its layer. `center` is the middle of its width, lanes included."""

    __slots__ = ("box", "center", "id", "layer", "width")

    def __init__(self, id: str, layer: int, width: float, box: Box | None = None) -> None:
        self.id = id
        self.layer = layer
        self.width = width
        self.box = box
        self.center = 0.0

    @property
    def left(self) -> float:
        return self.center - self.width / 2


class _Chain(NamedTuple):
    """A link from its upper to its lower box, with the dummies between."""

    link: Link
    is_back: bool
    items: list[_Item]


def layout(picture: Picture, gap: float = _GAP_Y) -> Layout:
    """Place the boxes of a picture and route its links. `gap` is the least distance between layers."""
    return _Layout(picture, gap).run()


class _Layout:
    def __init__(self, picture: Picture, gap: float) -> None:
        self._gap = gap
        self._boxes = picture.boxes
        self._links = picture.links
        self._items: dict[str, _Item] = {}
        self._chains: list[_Chain] = []
        self._layers: list[list[_Item]] = []
        # The lanes of a box: links that lead back from it or to it, and loops through a tab.
        self._lanes: defaultdict[str, list[tuple[Link, str]]] = defaultdict(list)
        self._tops: list[float] = []
        self._bottoms: list[float] = []

    def run(self) -> Layout:
        self._make_items()
        self._place_across()
        ports = self._ports()
        self._place_down(ports)
        routes = [self._route(chain, ports) for chain in self._chains]
        routes += [self._loop_route(link, ports) for link in self._links if link.source == link.target]
        width = max(item.left + item.width for item in self._items.values())
        return Layout(
            width=width,
            height=self._bottoms[-1],
            boxes=[PlacedBox(box, self._items[id].left, self._top(id)) for id, box in self._boxes.items()],
            routes=routes,
            loops=[*self._loops()],
        )

    # Layers

    def _make_items(self) -> None:
        nodes = [*self._boxes]
        links = [link for link in self._links if link.source != link.target]
        backs = back_links(nodes, [(link.source, link.target) for link in links])
        for index, link in enumerate(links):
            if index in backs:
                self._lanes[link.source].append((link, "out"))
                self._lanes[link.target].append((link, "in"))
        for link in self._links:
            if link.source == link.target:
                self._lanes[link.source].append((link, "loop"))
        directed = [
            (link.target, link.source) if index in backs else (link.source, link.target)
            for index, link in enumerate(links)
        ]
        layer = self._wrapped(layers_of(nodes, directed))
        for id, box in self._boxes.items():
            self._items[id] = _Item(id, layer[id], self._width(box), box)
        for index, (link, (upper, lower)) in enumerate(zip(links, directed, strict=True)):
            dummies = [
                _Item(f"{index}.{number}", number, _DUMMY_WIDTH)
                for number in range(layer[upper] + 1, layer[lower])
            ]
            self._items.update({item.id: item for item in dummies})
            chain = [self._items[upper], *dummies, self._items[lower]]
            self._chains.append(_Chain(link, index in backs, chain))
        self._order()

    def _wrapped(self, layer: Mapping[str, int]) -> dict[str, int]:
        """Split layers that are too wide, and move those below down."""
        by_layer: defaultdict[int, list[str]] = defaultdict(list)
        for id, number in layer.items():
            by_layer[number].append(id)
        found: dict[str, int] = {}
        row = -1
        for _, ids in sorted(by_layer.items()):
            row, x = row + 1, 0.0
            for id in ids:
                width = self._width(self._boxes[id]) + _GAP_X
                if x and x + width > _MAX_WIDTH:
                    row, x = row + 1, 0.0
                found[id] = row
                x += width
        return {id: found[id] for id in layer}

    def _order(self) -> None:
        after: defaultdict[str, list[str]] = defaultdict(list)
        before: defaultdict[str, list[str]] = defaultdict(list)
        for chain in self._chains:
            for upper, lower in pairwise(chain.items):
                after[upper.id].append(lower.id)
                before[lower.id].append(upper.id)
        count = max(item.layer for item in self._items.values()) + 1
        layers: list[list[str]] = [[] for _ in range(count)]
        for id, item in self._items.items():
            layers[item.layer].append(id)
        self._layers = [[self._items[id] for id in layer] for layer in ordered(layers, after, before)]
        for chain in self._chains:
            if chain.is_back and len(chain.items) > 2:
                self._move_right(chain)

    def _move_right(self, chain: _Chain) -> None:
        """Lead a link back on the right of all boxes, where its lanes are, if fewer lines cross there."""
        before, count = self._layers, self._crossings()
        dummies = chain.items[1:-1]
        self._layers = [
            [item for item in layer if item not in dummies] + [item for item in layer if item in dummies]
            for layer in before
        ]
        if self._crossings() >= count:
            self._layers = before

    def _crossings(self) -> int:
        """Count the crossings of lines between adjacent layers. Links back meet their boxes at the right side."""
        place = {item.id: float(index) for layer in self._layers for index, item in enumerate(layer)}
        lines: defaultdict[int, list[Point]] = defaultdict(list)
        for chain in self._chains:
            for upper, lower in pairwise(chain.items):
                sides = [
                    place[item.id] + 0.5 * (chain.is_back and item.box is not None) for item in (upper, lower)
                ]
                lines[upper.layer].append((sides[0], sides[1]))
        return sum(
            (one[0] - other[0]) * (one[1] - other[1]) < 0
            for found in lines.values()
            for one, other in combinations(found, 2)
        )

    def _width(self, box: Box) -> float:
        lanes = len(self._lanes[box.id])
        return box.width + _beside(box) + (_FIRST_LANE + _LANE * (lanes - 1) if lanes else 0.0)

    # Across

    def _offset(self, chain: _Chain, item: _Item) -> float:
        """Return where a chain meets an item, from the item's center."""
        box = item.box
        if box is None:
            return 0.0
        if chain.is_back:
            return self._lane(chain.link, box) - item.width / 2
        if item is chain.items[0]:
            return box.width / 2 - item.width / 2
        low, high = _top_range(box, chain.link.tab)
        return (low + high) / 2 - item.width / 2

    def _lane(self, link: Link, box: Box) -> float:
        """Return the lane of a link beside a box, from the left edge of the box."""
        index = next(index for index, (each, _) in enumerate(self._lanes[box.id]) if each is link)
        return box.width + _beside(box) + _FIRST_LANE - 4 + _LANE * index

    def _place_across(self) -> None:  # noqa: C901 - one pass after the other
        pulls: defaultdict[str, list[tuple[_Item, float, float, bool]]] = defaultdict(list)
        for chain in self._chains:
            for upper, lower in pairwise(chain.items):
                weight = 1.0 + 2.0 * (upper.box is None) + 2.0 * (lower.box is None)
                if upper.box is None and lower.box is None:
                    weight = 30.0
                if chain.link.kind in ("stop", "cancel", "on_failure", "on_cancel", "undo"):
                    weight /= 3
                shift = self._offset(chain, upper) - self._offset(chain, lower)
                pulls[lower.id].append((upper, shift, weight, True))
                pulls[upper.id].append((lower, -shift, weight, False))
        for layer in self._layers:
            at = 0.0
            for item in layer:
                item.center = at + item.width / 2
                at += item.width + _GAP_X
        for number in range(_ROUNDS):
            for layer in self._layers if number % 2 == 0 else reversed(self._layers):
                _spread(layer, [_wanted(item, pulls[item.id], number) for item in layer])
        for chain in self._chains:
            self._straighten(chain)
        leftmost = min(item.left for item in self._items.values())
        for item in self._items.values():
            item.center -= leftmost

    def _straighten(self, chain: _Chain) -> None:
        """Put the dummies of a chain on one vertical line, if there is space for it."""
        dummies = chain.items[1:-1]
        if not dummies:
            return
        ends = [item.center + self._offset(chain, item) for item in (chain.items[0], chain.items[-1])]
        mean = sum(item.center for item in dummies) / len(dummies)
        candidates = sorted(
            {*ends, mean, *(item.center for item in dummies)}, key=lambda x: sum(abs(x - end) for end in ends)
        )
        for x in candidates:
            if all(self._is_free(item, x) for item in dummies):
                for item in dummies:
                    item.center = x
                return

    def _is_free(self, item: _Item, x: float) -> bool:
        layer = self._layers[item.layer]
        index = layer.index(item)
        left = layer[index - 1] if index else None
        right = layer[index + 1] if index + 1 < len(layer) else None
        return (left is None or x - left.center >= _distance(left, item)) and (
            right is None or right.center - x >= _distance(item, right)
        )

    # Ports: where links meet the upper and lower edges of boxes

    def _ports(self) -> dict[tuple[int, str], float]:
        """Return the x of each link at its source and target, spread in the order of the other ends."""
        found: dict[tuple[int, str], float] = {}
        below: defaultdict[str, list[tuple[float, Link]]] = defaultdict(list)
        above: defaultdict[tuple[str, int | None], list[tuple[float, Link]]] = defaultdict(list)
        for chain in self._chains:
            if chain.is_back:
                if chain.link.tab is not None:
                    above[chain.link.target, chain.link.tab].append((float("inf"), chain.link))
                continue
            second, last = chain.items[1], chain.items[-2]
            below[chain.link.source].append((second.center + self._offset(chain, second), chain.link))
            above[chain.link.target, chain.link.tab].append(
                (last.center + self._offset(chain, last), chain.link)
            )
        for link in self._links:
            if link.source == link.target:
                above[link.target, link.tab].append((float("inf"), link))
        for id, links in below.items():
            box = self._boxes[id]
            for link, x in _spaced(links, 0.0, box.width, 40.0):
                found[id_of(link), "out"] = self._items[id].left + x
        for (id, tab), links in above.items():
            low, high = _top_range(self._boxes[id], tab)
            for link, x in _spaced(links, low, high, 28.0):
                found[id_of(link), "in"] = self._items[id].left + x
        self._align(found, below, above)
        return found

    def _align(
        self,
        ports: dict[tuple[int, str], float],
        below: Mapping[str, list[tuple[float, Link]]],
        above: Mapping[tuple[str, int | None], list[tuple[float, Link]]],
    ) -> None:
        """Move a port that has no neighbours by a few pixels, so that its line is straight."""
        for chain in self._chains:
            link = chain.link
            if chain.is_back:
                continue
            first, last = chain.items[1], chain.items[-2]
            start, end = (id_of(link), "out"), (id_of(link), "in")
            if len(below[link.source]) == 1:
                wanted = ports[end] if first is chain.items[-1] else first.center
                ports[start] = wanted if abs(wanted - ports[start]) <= _SNAP else ports[start]
            if len(above[link.target, link.tab]) == 1:
                wanted = ports[start] if last is chain.items[0] else last.center
                ports[end] = wanted if abs(wanted - ports[end]) <= _SNAP else ports[end]

    # Down

    def _place_down(self, ports: dict[tuple[int, str], float]) -> None:
        spans: defaultdict[int, float] = defaultdict(float)
        for chain in self._chains:
            xs = [item.center for item in chain.items]
            if not chain.is_back:
                xs[0], xs[-1] = ports[id_of(chain.link), "out"], ports[id_of(chain.link), "in"]
            for item, here, there in zip(chain.items, xs, xs[1:], strict=False):
                spans[item.layer] = max(spans[item.layer], abs(here - there))
        y = 0.0
        for index, layer in enumerate(self._layers):
            over = max((self._lanes_over(item.box) for item in layer if item.box is not None), default=0)
            y += _LANE * over if index == 0 else max(0.0, 6.0 * (over - 1))
            self._tops.append(y)
            height = max((item.box.height for item in layer if item.box is not None), default=0.0)
            self._bottoms.append(y + height)
            y += height + self._gap + min(40.0, spans[index] * 0.06)

    def _lanes_over(self, box: Box) -> int:
        """Return how many lines run above a box to one of its tabs."""
        return sum(link.tab is not None and side in ("in", "loop") for link, side in self._lanes[box.id])

    def _top(self, id: str) -> float:
        return self._tops[self._items[id].layer]

    # Paths

    def _route(self, chain: _Chain, ports: dict[tuple[int, str], float]) -> Route:
        link, upper, lower = chain.link, chain.items[0], chain.items[-1]
        assert upper.box is not None and lower.box is not None  # noqa: S101, PT018 - a chain has boxes at its ends
        middle: list[Point] = []
        for item in chain.items[1:-1]:
            middle += [(item.center, self._tops[item.layer]), (item.center, self._bottoms[item.layer])]
        if chain.is_back:
            above = upper.left + self._lane(link, upper.box)
            below = lower.left + self._lane(link, lower.box)
            points = [(above, self._bottoms[upper.layer]), *middle, (below, self._tops[lower.layer])]
            path = (
                self._side_exit(lower, below)
                + _curve(points[::-1], "L")
                + self._entry(upper, link, above, ports)
            )
        else:
            start, end = ports[id_of(link), "out"], ports[id_of(link), "in"]
            top = self._tops[lower.layer]
            points = [
                (start, self._tops[upper.layer] + upper.box.height),
                (start, self._bottoms[upper.layer]),
                *middle,
                (end, top),
            ]
            if link.tab is None and lower.box.tabs_height:
                points.append((end, top + lower.box.tabs_height))
            path = _curve(points, "M")
        return Route(link, path, chain.is_back)

    def _loop_route(self, link: Link, ports: dict[tuple[int, str], float]) -> Route:
        """Lead from the side of a step to one of its own tabs."""
        item = self._items[link.source]
        assert item.box is not None  # noqa: S101 - the item of a box
        lane = item.left + self._lane(link, item.box)
        return Route(link, self._side_exit(item, lane) + self._entry(item, link, lane, ports), is_back=True)

    def _side_exit(self, item: _Item, lane: float) -> str:
        assert item.box is not None  # noqa: S101 - the item of a box
        y = self._tops[item.layer] + item.box.tabs_height + _OUT_Y
        return f"M{_at(item.left + item.box.width, y)}L{_at(lane - _CORNER, y)}Q{_at(lane, y)} {_at(lane, y - _CORNER)}"

    def _entry(self, item: _Item, link: Link, lane: float, ports: dict[tuple[int, str], float]) -> str:
        """Lead from a lane to the body at its side, or to a tab from above."""
        assert item.box is not None  # noqa: S101 - the item of a box
        top = self._tops[item.layer]
        if link.tab is None:
            y = top + item.box.tabs_height + self._entry_height(link)
            turn = f"L{_at(lane, y + _CORNER)}Q{_at(lane, y)} {_at(lane - _CORNER, y)}"
            return f"{turn}L{_at(item.left + item.box.width, y)}"
        lanes = [each for each, side in self._lanes[link.target] if each.tab is not None and side != "out"]
        y = top - 14 - 6.0 * next(index for index, each in enumerate(lanes) if each is link)
        x = ports[id_of(link), "in"]
        corner = min(_CORNER, (lane - x) / 2)
        return (
            f"L{_at(lane, y + corner)}Q{_at(lane, y)} {_at(lane - corner, y)}"
            f"L{_at(x + corner, y)}Q{_at(x, y)} {_at(x, y + corner)}L{_at(x, top)}"
        )

    def _entering(self, id: str) -> list[str]:
        """Return the kinds of the links that enter the body of a box at its side, those of the outer lanes first.

        Links of one kind share an arrowhead, because they look the same.
        """
        sides = [link.kind for link, side in reversed(self._lanes[id]) if side == "in" and link.tab is None]
        return list(dict.fromkeys(sides))

    def _entry_height(self, link: Link) -> float:
        """Return the height at which a link enters a body. Outer lanes enter above inner ones, so they do not cross."""
        kinds = self._entering(link.target)
        if len(kinds) == 1:
            return _IN_Y[0]
        high = _IN_Y[1] if self._boxes[link.target].loop else _OUT_Y - 8.0
        step = min(9.0, (high - 4.0) / (len(kinds) - 1))
        return 4.0 + step * kinds.index(link.kind)

    def _loops(self) -> Iterator[PlacedLoop]:
        for id, box in self._boxes.items():
            if not box.loop:
                continue
            right = self._items[id].left + box.width
            top = self._top(id) + box.tabs_height
            upper, lower = (top + y for y in _LOOP_Y[len(self._entering(id)) > 1])
            out = right + _LOOP_WIDTH
            path = f"M{_at(right, lower)}C{_at(out, lower + 4)} {_at(out, upper - 4)} {_at(right, upper)}"
            yield PlacedLoop(id, path, box.loop, right + _LOOP_WIDTH, (upper + lower) / 2)


def id_of(link: Link) -> int:
    """Identify a link within one layout."""
    return id(link)


def _beside(box: Box) -> float:
    """Return the width of the loop of a box and its text."""
    return _LOOP_WIDTH + text_width(box.loop) + 4 if box.loop else 0.0


def _top_range(box: Box, tab: int | None) -> tuple[float, float]:
    """Return the part of the upper edge at which links to a tab, or to the body, end."""
    lefts = [sum(each.width for each in box.tabs[:index]) for index in range(len(box.tabs) + 1)]
    if tab is not None:
        return lefts[tab], lefts[tab + 1]
    return (lefts[-1], box.width) if box.tabs else (0.0, box.width)


def _spaced(
    links: list[tuple[float, Link]], low: float, high: float, most: float
) -> Iterator[tuple[Link, float]]:
    """Spread links over an edge, in the order of their other ends."""
    step = min(most, (high - low) * 0.8 / len(links))
    for index, (_, link) in enumerate(sorted(links, key=lambda each: each[0])):
        yield link, (low + high) / 2 + (index - (len(links) - 1) / 2) * step


def _distance(left: _Item, right: _Item) -> float:
    """Return the least distance between the centers of neighbours."""
    gap = _GAP_X if left.box is not None and right.box is not None else _DUMMY_GAP
    return (left.width + right.width) / 2 + gap


def _wanted(
    item: _Item, pulls: Sequence[tuple[_Item, float, float, bool]], number: int
) -> tuple[float, float]:
    """Return the mean position that the neighbours of an item ask for, and its weight.

    The rounds take turns: only the neighbours above, only those below, both.
    """
    turn = number % 3
    used = [each for each in pulls if turn == 2 or each[3] == (turn == 0)] or pulls
    total = sum(weight for _, _, weight, _ in used)
    if not total:
        return item.center, 0.5
    return sum((other.center + shift) * weight for other, shift, weight, _ in used) / total, total


def _spread(layer: Sequence[_Item], wanted: Sequence[tuple[float, float]]) -> None:
    """Place a layer as close as possible to what is wanted, under the least distances (pool adjacent violators)."""
    offsets = [0.0]
    for left, right in pairwise(layer):
        offsets.append(offsets[-1] + _distance(left, right))
    blocks: list[tuple[float, float, int]] = []  # weighted sum, weight, count
    for (x, weight), offset in zip(wanted, offsets, strict=True):
        block = (weight * (x - offset), weight, 1)
        while blocks and blocks[-1][0] / blocks[-1][1] > block[0] / block[1]:
            last = blocks.pop()
            block = (last[0] + block[0], last[1] + block[1], last[2] + block[2])
        blocks.append(block)
    places = [total / weight for total, weight, count in blocks for _ in range(count)]
    for item, place, offset in zip(layer, places, offsets, strict=True):
        item.center = place + offset


def _curve(points: Sequence[Point], command: str) -> str:
    """Connect points by straight vertical lines, and by curves that begin and end vertically."""
    path = f"{command}{_at(*points[0])}"
    for (x, y), (next_x, next_y) in pairwise(points):
        if abs(x - next_x) < 0.5:
            path += f"L{_at(next_x, next_y)}" if abs(y - next_y) > 0.05 else ""
        else:
            middle = (y + next_y) / 2
            path += f"C{_at(x, middle)} {_at(next_x, middle)} {_at(next_x, next_y)}"
    return path


def _at(x: float, y: float) -> str:
    return f"{x:.1f} {y:.1f}"


assert BODY_HEIGHT > _OUT_Y  # noqa: S101 - links leave at the body
