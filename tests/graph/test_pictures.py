"""Layout and formats of graphs."""

from __future__ import annotations

import importlib
import itertools
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from gen_durable import Edge, Graph, Node, graph
from gen_durable._graph.layout import Layout, layout
from gen_durable._graph.model import DONE
from gen_durable._graph.picture import picture
from tests.docs.pages import ROOT, Page
from tests.graph import machines
from tests.graph.made import lines, made

SVG = "{http://www.w3.org/2000/svg}"


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
def test_text_says_what_follows_an_undo_step() -> None:
    text = graph(machines.Undone).text()
    assert "\nrelease: undoes reserve; after its Done, the next undo step or the end follows\n" in text


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


def drawn(*edges: Edge) -> Layout:
    """The layout of a machine with the steps `a` to `d`."""
    nodes = tuple(Node(id=step) for step in "abcd")
    return layout(picture(Graph(machine="made", version=1, initial="a", nodes=nodes, edges=edges)))


CHAIN = tuple(Edge(source=one, target=other, kind="next") for one, other in ("ab", "bc", "cd"))


def test_links_back_of_different_kinds_have_arrowheads_of_their_own() -> None:
    back = (
        Edge(source="b", target="a", kind="next"),
        Edge(source="c", target="a", kind="on_failure"),
        Edge(source="d", target="a", kind="on_cancel"),
    )
    for loop in ((), (Edge(source="a", target="a", kind="retry"),)):
        found = drawn(*CHAIN, *back, *loop)
        ends = [lines(route.path)[-1][1][1] for route in found.routes if route.is_back]
        ends += [lines(each.path)[-1][1][1] for each in found.loops]
        assert min(abs(one - other) for one, other in itertools.combinations(ends, 2)) > 4


def test_link_back_runs_on_the_right_of_the_steps_between() -> None:
    found = drawn(*CHAIN, Edge(source="d", target="a", kind="on_failure"))
    right = max(each.x + each.box.width for each in found.boxes)
    (back,) = (route for route in found.routes if route.is_back)
    assert min(x for (x, _), _ in lines(back.path)[8:-8]) > right


def test_wide_layers_are_split() -> None:
    steps = [f"handle_country_{number}" for number in range(28)]
    edges = [Edge(source="start", target=step, kind="next") for step in steps]
    edges += [Edge(source=step, target="end", kind="next") for step in steps]
    nodes = tuple(Node(id=step) for step in ("start", *steps, "end"))
    found = layout(picture(Graph(machine="fan", version=1, initial="start", nodes=nodes, edges=tuple(edges))))
    assert found.width < 2000


def test_step_with_unread_targets_is_marked() -> None:
    root = ElementTree.fromstring(graph(machines.Computed).svg())
    assert "possibly others" in {each.text for each in root.iter(f"{SVG}text")}


def test_retry_shows_its_delay() -> None:
    root = ElementTree.fromstring(graph(machines.Every).svg())
    assert "retry after 1s, retry ×5" in {each.text for each in root.iter(f"{SVG}text")}
