"""The drawing of graphs for the dashboard, in both directions."""

from __future__ import annotations

import itertools

import pytest

from gen_durable import Edge, Graph, Node, graph
from gen_durable._graph.drawing import Direction, Drawing, draw
from tests.graph import machines
from tests.graph.made import lines, made


def areas(drawing: Drawing) -> list[tuple[str, float, float, float, float]]:
    return [
        (node.id, node.x, node.y, node.x + node.width, node.y + node.height)
        for node in drawing.nodes
        if node.kind != "start"
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [1, 3, 12])
@pytest.mark.parametrize("direction", ["down", "right"])
def test_boxes_do_not_overlap_and_no_line_crosses_them(direction: Direction, count: int, seed: int) -> None:
    drawing = draw(made(count, seed), direction)
    boxes = areas(drawing)
    for (one, left, top, right, bottom), (other, *area) in itertools.combinations(boxes, 2):
        apart = right <= area[0] or area[2] <= left or bottom <= area[1] or area[3] <= top
        assert apart, (one, other)
    bodies = {node.id: node.y + node.top for node in drawing.nodes}
    for edge in drawing.edges:
        for (x, y), (next_x, next_y) in lines(edge.path):
            at = ((x + next_x) / 2, (y + next_y) / 2)
            for name, left, top, right, bottom in boxes:
                upper = bodies[name] if name == edge.target and edge.tab is None else top
                inside = left + 1 < at[0] < right - 1 and upper + 1 < at[1] < bottom - 1
                assert not inside, (edge.key, name)
    for name, left, top, right, bottom in boxes:
        assert left >= -0.1, name
        assert top >= -0.1, name
        assert right <= drawing.width + 0.1, name
        assert bottom <= drawing.height + 0.1, name


@pytest.mark.parametrize("direction", ["down", "right"])
def test_tabs_fill_the_box_above_its_body(direction: Direction) -> None:
    drawing = draw(made(12, 3), direction)
    tabs = [(node, tab) for node in drawing.nodes for tab in node.tabs]
    assert tabs
    for node, tab in tabs:
        assert tab.x >= 0
        assert tab.x + tab.width <= node.width + 0.1
        assert tab.y + tab.height <= node.top + 0.1


def test_steps_are_in_the_order_of_the_code_and_name_what_they_wait_for() -> None:
    found = graph(machines.Every)
    drawing = draw(found)
    steps = [node for node in drawing.nodes if node.kind == "step"]
    assert tuple(node.id for node in steps) == found.steps
    choose = next(node for node in steps if node.id == "choose")
    assert ("paid", "gone") in [tab.names for tab in choose.tabs]
    assert steps[0].doc == "Decide how to begin."
    assert (found.doc, found.file) == ("Every form of outcome.", "machines.py")


def test_observed_transitions_are_added_once_if_the_code_lacks_them() -> None:
    steps = ("open", "work", "close")
    edges = (
        Edge(source="open", target="work", kind="next"),
        Edge(source="work", target="close", kind="next"),
    )
    nodes = tuple(Node(id=step) for step in steps)
    found = Graph(machine="made", version=1, initial="open", nodes=nodes, edges=edges)
    observed = [("close", "open"), ("close", "open"), ("open", "work"), ("open", "gone"), ("work", "work")]
    added = [edge.key for edge in draw(found, observed=observed).edges if edge.kind == "observed"]
    assert added == ["close>open"]
