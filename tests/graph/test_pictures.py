"""Layout and formats of graphs."""

from __future__ import annotations

import importlib
import itertools
import random
import re
import xml.etree.ElementTree as ElementTree
from datetime import timedelta
from pathlib import Path

import pytest

from gen_durable import Edge, Graph, Node, graph
from gen_durable._graph.layout import Layout, layout
from gen_durable._graph.model import DONE, FAILED
from gen_durable._graph.picture import picture
from tests.docs.pages import ROOT, Page
from tests.graph import machines

SVG = "{http://www.w3.org/2000/svg}"


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


def boxes_of(placed: Layout) -> list[tuple[str, float, float, float, float]]:
    """The areas of boxes and of the texts beside loops."""
    areas = [
        (each.box.id, each.x, each.y, each.x + each.box.width, each.y + each.box.height)
        for each in placed.boxes
    ]
    texts = [
        (f"text of {each.step}", each.x, each.y - 5, each.x + 6.5 * len(each.text), each.y + 5)
        for each in placed.loops
    ]
    return areas + texts


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("count", [1, 3, 10, 30])
def test_boxes_and_texts_do_not_overlap_and_no_line_crosses_them(count: int, seed: int) -> None:
    found = made(count, seed)
    placed = layout(picture(found))
    areas = boxes_of(placed)
    for (one, left, top, right, bottom), (other, *area) in itertools.combinations(areas, 2):
        apart = right <= area[0] or area[2] <= left or bottom <= area[1] or area[3] <= top
        assert apart, (one, other)
    free_tops = {each.box.id: each.y + each.box.tabs_height for each in placed.boxes}
    for route in placed.routes:
        for (x, y), (next_x, next_y) in lines(route.path):
            middle = ((x + next_x) / 2, (y + next_y) / 2)
            for name, left, top, right, bottom in areas:
                # Beside its tabs a box is empty.
                upper = free_tops[name] if name == route.link.target and route.link.tab is None else top
                inside = left + 1 < middle[0] < right - 1 and upper + 1 < middle[1] < bottom - 1
                assert not inside, (route.link, name)
    for name, left, _, right, bottom in areas:
        assert left >= -0.1, name
        assert right <= placed.width + 0.1, name
        assert bottom <= placed.height + 0.1, name


def test_layout_is_the_same_every_time() -> None:
    assert made(30, 1).svg() == made(30, 1).svg()


@pytest.mark.clause("GRAPH-4")
def test_svg_is_valid_and_accessible() -> None:
    found = graph(machines.Every)
    root = ElementTree.fromstring(found.svg())
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "Graph of machine Every, version 1"
    assert root.findtext(f"{SVG}desc") == found.text()
    texts = {each.text for each in root.iter(f"{SVG}text")}
    assert set(found.steps) <= texts
    assert {
        "paid, gone",
        "or after 3d",
        "Parcel, mail.send",
        "delay 5m",
        "sleep 1h",
        "done",
        "failed",
    } <= texts
    assert "prefers-color-scheme:dark" in (root.findtext(f"{SVG}style") or "")


def test_names_are_escaped() -> None:
    name = 'a<b>"&c'
    found = Graph(
        machine=name,
        version=1,
        initial=name,
        nodes=(Node(id=name), Node(id=DONE, kind="done")),
        edges=(Edge(source=name, target=DONE, kind="done"),),
    )
    assert name in {each.text for each in ElementTree.fromstring(found.svg()).iter(f"{SVG}text")}
    assert 'a<b>\\"&c' in found.dot()
    assert "a<b>#quot;&c" in found.mermaid()


@pytest.mark.clause("GRAPH-4")
def test_text_has_one_line_per_transition() -> None:
    text = graph(machines.Every).text()
    assert text.startswith("Every version 1, starts at start\n\nstart\n")
    assert "  await -> choose  (paid, gone; timeout 3d)\n" in text
    assert "  children -> collect  (Parcel, mail.send)\n" in text
    assert "handle: after an error in any step\n  next -> poll\n" in text


@pytest.mark.clause("GRAPH-4")
def test_mermaid_has_every_step_and_transition() -> None:
    found = graph(machines.Derived)
    assert found.mermaid().splitlines() == [
        "stateDiagram-v2",
        '    state "first" as s0',
        '    state "second" as s1',
        '    state "third" as s2',
        "    [*] --> s0",
        "    s0 --> s1",
        "    s1 --> s2",
        "    s1 --> [*] : done",
        "    s2 --> s2",
        "    s2 --> [*] : done",
    ]


@pytest.mark.clause("GRAPH-4")
def test_dot_has_every_step_and_transition() -> None:
    lines = graph(machines.Derived).dot().splitlines()
    assert lines[0] == 'digraph "Derived version 1" {'
    assert '  "(start)" -> "first";' in lines
    assert '  "second" -> "third";' in lines
    assert '  "(done)" [label="done", shape=oval, color=green4];' in lines


def test_picture_of_the_guide_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "guides" / "graph.md"
    (tmp_path / "guide_orders.py").write_text(Page(page).files()["orders.py"])
    monkeypatch.syspath_prepend(tmp_path)
    found = graph(importlib.import_module("guide_orders").Checkout)
    assert page.with_suffix(".svg").read_text() == found.svg(), (
        "gen-durable graph orders.py:Checkout --format svg"
    )


def test_notebooks_show_the_picture() -> None:
    found = graph(machines.Derived)
    assert found._repr_svg_() == found.svg()
