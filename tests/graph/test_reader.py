"""The graph of a machine is read from its code."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from gen_durable import Edge, Graph, UsageError, check, graph
from tests.graph import machines


def edges(found: Graph, source: str) -> list[tuple[str, str]]:
    return [(edge.kind, edge.target) for edge in found.edges_from(source)]


def only(found: Graph, source: str, kind: str) -> Edge:
    (edge,) = [edge for edge in found.edges_from(source) if edge.kind == kind]
    return edge


@pytest.fixture(scope="module")
def every() -> Graph:
    return graph(machines.Every)


@pytest.mark.clause("GRAPH-2")
def test_nodes_are_steps_handle_and_reached_ends(every: Graph) -> None:
    assert every.machine == "Every"
    assert every.initial == "start"
    assert every.steps == tuple(machines.Every.__definition__.steps)
    assert [(node.id, node.kind) for node in every.nodes[-4:]] == [
        ("handle", "handle"),
        ("(done)", "done"),
        ("(failed)", "failed"),
        ("(cancelled)", "cancelled"),
    ]
    assert every.nodes[0].doc == "Decide how to begin."
    assert every.nodes[0].line > 0


@pytest.mark.clause("GRAPH-2")
def test_next_and_await_have_delay_signals_and_timeout(every: Graph) -> None:
    following = only(every, "start", "next")
    assert (following.target, following.is_delayed, following.delay) == ("choose", True, timedelta(minutes=5))
    waiting = only(every, "start", "await")
    assert (waiting.signals, waiting.has_timeout, waiting.timeout) == (
        ("paid", "gone"),
        True,
        timedelta(days=3),
    )
    assert following.line < waiting.line


def test_targets_are_read_from_tables_and_conditions(every: Graph) -> None:
    assert sorted(edges(every, "choose")) == [
        ("next", "by_name"),
        ("next", "fan_out"),
        ("next", "poll"),
        ("next", "wait_for_bank"),
        ("retry", "choose"),
    ]


@pytest.mark.clause("GRAPH-2")
def test_children_are_the_machines_of_all_specs(every: Graph) -> None:
    children = only(every, "fan_out", "children")
    assert (children.target, children.children) == ("collect", ("Parcel", "mail.send"))


def test_helpers_of_the_module_and_the_machine_are_followed(every: Graph) -> None:
    assert edges(every, "collect") == [("stop", "(failed)"), ("done", "(done)"), ("retry", "collect")]
    assert edges(every, "wait_for_bank") == [
        ("await", "wait_for_bank"),
        ("stop", "(failed)"),
        ("retry", "wait_for_bank"),
    ]
    waiting = only(every, "wait_for_bank", "await")
    assert (waiting.signals, waiting.timeout) == (("paid", "gone"), machines.WEEK)


def test_retry_loops_are_read_from_outcomes_and_policies(every: Graph) -> None:
    kinds = [
        (edge.max_attempts, edge.is_delayed) for edge in every.edges_from("poll") if edge.kind == "retry"
    ]
    assert kinds == [(None, True), (5, False)]
    assert only(every, "start", "retry").max_attempts == 5
    assert "retry" not in {kind for kind, _ in edges(every, "by_name")}


def test_target_that_a_helper_returns_is_read(every: Graph) -> None:
    assert {target for kind, target in edges(every, "poll") if kind == "next"} == {"by_name", "collect"}


def test_names_constants_and_exceptions_are_read(every: Graph) -> None:
    assert edges(every, "by_name") == [
        ("next", "sleep"),
        ("next", "later"),
        ("stop", "(failed)"),
        ("cancel", "(cancelled)"),
    ]


def test_sleep_is_an_await_without_signals(every: Graph) -> None:
    sleeping = only(every, "sleep", "await")
    assert (sleeping.target, sleeping.signals, sleeping.timeout) == ("later", (), timedelta(hours=1))


@pytest.mark.clause("GRAPH-2")
def test_declared_targets_replace_what_cannot_be_read(every: Graph) -> None:
    assert edges(every, "later")[:2] == [("possible", "start"), ("possible", "sleep")]
    assert every.unread == ()


def test_handle_has_its_own_node(every: Graph) -> None:
    assert edges(every, "handle") == [("next", "poll")]


def test_handle_without_super_does_not_use_the_policy() -> None:
    found = graph(machines.Handled)
    assert edges(found, "only") == [("done", "(done)"), ("retry", "only")]
    assert only(found, "only", "retry").max_attempts is None
    assert edges(found, "handle") == [("stop", "(failed)")]


def test_inherited_and_called_steps_are_followed() -> None:
    found = graph(machines.Derived)
    assert found.steps == ("first", "second", "third")
    assert sorted(edges(found, "second")) == [("done", "(done)"), ("next", "third")]
    assert sorted(edges(found, "third")) == [("done", "(done)"), ("next", "third")]
    assert found.unread == ()


@pytest.mark.clause("GRAPH-2")
def test_undo_failure_and_cancel_steps_are_edges() -> None:
    found = graph(machines.Undone)
    assert edges(found, "reserve") == [("next", "ship"), ("on_failure", "apologize"), ("undo", "release")]
    assert edges(found, "ship") == [("done", "(done)"), ("on_cancel", "recall")]
    # After an undo step the instance ends as it was going to.
    assert edges(found, "release") == []
    assert check(machines.Undone) == []


@pytest.mark.clause("GRAPH-2")
def test_step_that_is_also_an_undo_step_may_end_the_instance() -> None:
    found = graph(machines.Reversible)
    assert edges(found, "close") == [("done", "(done)"), ("undo", "reopen")]
    assert edges(found, "reopen") == []


@pytest.mark.clause("GRAPH-2")
def test_children_of_a_comprehension_are_named() -> None:
    found = graph(machines.Delegating)
    assert only(found, "third", "children").children == ("Computed", "Handled")


def test_computed_target_is_reported_as_unread() -> None:
    found = graph(machines.Computed)
    assert found.unread == ("first",)
    assert edges(found, "first") == []


@pytest.mark.clause("GRAPH-2")
def test_job_has_one_step_that_retries_ends_or_fails() -> None:
    found = graph(machines.send)
    assert found.steps == ("run",)
    assert edges(found, "run") == [("done", "(done)"), ("stop", "(failed)"), ("retry", "run")]
    assert only(found, "run", "retry").max_attempts == 4
    assert found.nodes[0].doc == "Send a mail."


def test_object_of_a_machine_has_the_graph_of_its_class() -> None:
    assert graph(machines.Computed()) == graph(machines.Computed)


def test_graph_is_stored_as_json_and_read_back(every: Graph) -> None:
    assert msgspec.json.decode(msgspec.json.encode(every), type=Graph) == every


def test_graph_of_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match="neither a machine nor a job"):
        graph(int)  # type: ignore[arg-type]
