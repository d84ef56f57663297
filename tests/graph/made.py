"""Random machines, and the lines of drawn paths."""

from __future__ import annotations

import itertools
import random
import re
from datetime import timedelta

from gen_durable import Edge, Graph, Node
from gen_durable._graph.model import DONE, FAILED


def made(count: int, seed: int) -> Graph:
    """A random machine: waits, branches, ways back, loops, ends, long names."""
    chance = random.Random(seed)
    steps = [f"step_{index}{'_long' * chance.choice([0, 0, 0, 12])}" for index in range(count)]
    edges = [Edge(source=steps[-1], target=DONE, kind="done")]
    for index, source in enumerate(steps):
        following = steps[min(index + 1, count - 1)]
        if chance.random() < 0.4:
            signals = tuple(f"signal_{number}" for number in range(chance.randint(1, 12)))
            edges.append(Edge(source=source, target=following, kind="await", signals=signals))
        else:
            edges.append(Edge(source=source, target=following, kind="next"))
        if chance.random() < 0.3:
            edges.append(Edge(source=source, target=chance.choice(steps), kind="next"))
        if chance.random() < 0.2:
            delay = timedelta(minutes=5)
            back = chance.choice(steps[: index + 1])
            edges.append(Edge(source=source, target=back, kind="next", is_delayed=True, delay=delay))
        if chance.random() < 0.2:
            edges.append(Edge(source=source, target=source, kind="retry", max_attempts=3))
        if chance.random() < 0.2:
            edges.append(Edge(source=source, target=FAILED, kind="stop"))
    ends = [Node(id=DONE, kind="done"), Node(id=FAILED, kind="failed")]
    nodes = [*(Node(id=step) for step in steps), *ends]
    return Graph(machine="made", version=1, initial=steps[0], nodes=tuple(nodes), edges=tuple(edges))


def lines(path: str) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """A path as short straight lines; each curve as 16 of them."""
    found: list[tuple[float, float]] = []
    for command, text in re.findall(r"([MLQC])([-\d. ]+)", path):
        numbers = [float(number) for number in text.split()]
        points = list(zip(numbers[::2], numbers[1::2], strict=True))
        if command in "ML":
            found += points
            continue
        controls = [found[-1], *points]
        for part in range(1, 17):
            found.append(between(controls, part / 16))
    return list(itertools.pairwise(found))


def between(points: list[tuple[float, float]], share: float) -> tuple[float, float]:
    while len(points) > 1:
        points = [
            (a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share)
            for a, b in itertools.pairwise(points)
        ]
    return points[0]
