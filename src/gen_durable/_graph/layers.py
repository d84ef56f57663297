"""Layers of a directed graph and the order of nodes in them (Sugiyama): few crossings, short links."""

from __future__ import annotations

import random
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

__all__ = ["Neighbours", "back_links", "crossings", "layers_of", "ordered"]

Neighbours: TypeAlias = Mapping[str, Sequence[str]]

_STARTS: Final = 6
_SWEEPS: Final = 8


def back_links(nodes: Sequence[str], links: Sequence[tuple[str, str]]) -> set[int]:
    """Return the positions of links that close a cycle, by a depth-first walk in the order of the nodes."""
    after: dict[str, list[tuple[int, str]]] = {node: [] for node in nodes}
    for index, (source, target) in enumerate(links):
        after[source].append((index, target))
    found: set[int] = set()
    state: dict[str, int] = {}  # 1: on the current path, 2: finished
    for root in nodes:
        if root in state:
            continue
        state[root] = 1
        path = [(root, iter(after[root]))]
        while path:
            node, rest = path[-1]
            step = next(rest, None)
            if step is None:
                state[node] = 2
                path.pop()
            elif state.get(step[1]) == 1:
                found.add(step[0])
            elif step[1] not in state:
                state[step[1]] = 1
                path.append((step[1], iter(after[step[1]])))
    return found


def layers_of(nodes: Sequence[str], links: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Assign layers to the nodes of an acyclic graph: the longest path from a source, then closer to what follows."""
    before: defaultdict[str, list[str]] = defaultdict(list)
    after: defaultdict[str, list[str]] = defaultdict(list)
    for source, target in links:
        before[target].append(source)
        after[source].append(target)
    layer = dict.fromkeys(nodes, 0)
    waiting = {node: len(before[node]) for node in nodes}
    ready = [node for node in nodes if not waiting[node]]
    order: list[str] = []
    while ready:
        node = ready.pop(0)
        order.append(node)
        for target in after[node]:
            layer[target] = max(layer[target], layer[node] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    # A node with more successors than predecessors moves down: fewer links become long.
    for node in reversed(order):
        if len(after[node]) > len(before[node]):
            layer[node] = max(layer[node], min(layer[target] for target in after[node]) - 1)
    return layer


def ordered(layers: Sequence[Sequence[str]], after: Neighbours, before: Neighbours) -> list[list[str]]:
    """Order the nodes of each layer by median sweeps and transpositions; the best of several starts."""
    best: list[list[str]] = [[*layer] for layer in layers]
    best_score = _score(best, after)
    chance = random.Random(1)
    for start in range(_STARTS):
        current = [[*layer] for layer in layers]
        for layer in current:
            if start == 1:
                layer.reverse()
            elif start > 1:
                chance.shuffle(layer)
        for sweep in range(_SWEEPS):
            _sweep(current, before if sweep % 2 == 0 else after, is_down=sweep % 2 == 0)
            _transpose(current, before, after)
            score = _score(current, after)
            if score < best_score:
                best, best_score = [[*layer] for layer in current], score
    return best


def crossings(layers: Sequence[Sequence[str]], after: Neighbours) -> int:
    """Count the crossings between adjacent layers."""
    return sum(_crossings(upper, lower, after) for upper, lower in pairwise(layers))


def _crossings(upper: Sequence[str], lower: Sequence[str], after: Neighbours) -> int:
    place = {node: index for index, node in enumerate(lower)}
    seen: list[int] = []
    count = 0
    for node in upper:
        ends = sorted(place[target] for target in after.get(node, ()))
        count += sum(len(seen) - bisect_right(seen, end) for end in ends)
        for end in ends:
            insort(seen, end)
    return count


def _score(layers: Sequence[Sequence[str]], after: Neighbours) -> tuple[int, float]:
    place = {node: index - len(layer) / 2 for layer in layers for index, node in enumerate(layer)}
    length = sum(abs(place[node] - place[target]) for node in place for target in after.get(node, ()))
    return crossings(layers, after), length


def _sweep(layers: list[list[str]], near: Neighbours, *, is_down: bool) -> None:
    """Sort each layer by the medians of its neighbours in the layer before (down) or after (up)."""
    indices = range(1, len(layers)) if is_down else range(len(layers) - 2, -1, -1)
    for index in indices:
        fixed = {node: place for place, node in enumerate(layers[index - 1 if is_down else index + 1])}
        own = {node: place for place, node in enumerate(layers[index])}
        keys = {
            node: _median(sorted(fixed[other] for other in near.get(node, ())), own[node]) for node in own
        }
        layers[index].sort(key=keys.__getitem__)


def _median(places: Sequence[int], default: float) -> float:
    if not places:
        return default
    middle = len(places) // 2
    return places[middle] if len(places) % 2 else (places[middle - 1] + places[middle]) / 2


def _transpose(layers: list[list[str]], before: Neighbours, after: Neighbours) -> None:
    """Swap adjacent nodes as long as that removes crossings."""
    for _ in range(10):
        place = {node: index for layer in layers for index, node in enumerate(layer)}
        is_better = False
        for layer in layers:
            for index in range(len(layer) - 1):
                left, right = layer[index], layer[index + 1]
                gain = 0
                for near in (before, after):
                    ours = [place[node] for node in near.get(left, ())]
                    others = [place[node] for node in near.get(right, ())]
                    gain += sum((a > b) - (a < b) for a in ours for b in others)
                if gain > 0:
                    layer[index], layer[index + 1] = right, left
                    place[left], place[right] = index + 1, index
                    is_better = True
        if not is_better:
            return
