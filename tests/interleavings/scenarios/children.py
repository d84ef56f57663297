"""Barriers, and children that end concurrently."""

from __future__ import annotations

from collections.abc import Callable

from gen_durable._core.model import CommitEntry
from gen_durable._db.pick import Picked
from tests.interleavings.actions import CRASH_LIMIT, cancel, flush_picked, lease_some, put, reap, send
from tests.interleavings.invariants import require
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.scenarios.signals import PAUSE_AFTER_REFUSAL
from tests.interleavings.session import Work, flush
from tests.interleavings.world import FUTURE, LIVE, TERMINAL, instance, leased, new, outcome

SPAWN = outcome(1, "schedule_children", children=(new(), new(unique_key=b"u")))
_HOLDER = {"unique_key": b"u", "unique_scope": LIVE}


def spawn_and_reap() -> Scenario:
    """One child is new, the key of the other is taken."""

    def check(end: End) -> None:
        is_parked = bool(end.result("F").committed())
        require(is_parked != (1 in end.result("R").ids), "outcome and reaper both won")
        require(_children(end) == (1 if is_parked else 0), "children of a lost execution")

    return Scenario(
        name="spawn × reap",
        setup=[leased(1), instance(2, "awaiting_signal", awaits=("go",), **_HOLDER)],
        sessions={"F": [flush(SPAWN)], "R": [reap()]},
        check=check,
    )


def spawn_and_end_of_holder() -> Scenario:
    """The key of the only child is being freed: the child is inserted, or the parent does not wait."""
    spawn = outcome(1, "schedule_children", children=(new(unique_key=b"u"),))

    def check(end: End) -> None:
        status = "awaiting_children" if _children(end) else "runnable"
        require(end.after.status(1) == status, "barrier and children differ")

    return Scenario(
        name="spawn × end of the holder of the child's key",
        setup=[leased(1), leased(2, **_HOLDER)],
        sessions={"F": [flush(spawn)], "H": [flush(outcome(2, "done"))]},
        check=check,
        pauses=[PAUSE_AFTER_REFUSAL],
    )


def spawn_and_insert() -> Scenario:
    """A producer and a parent insert the same key."""

    def check(end: End) -> None:
        (answer,) = end.result("I")
        require(end.after.holders("unique", b"u") == {answer.id}, "two holders, or none")
        require(_children(end) == (1 if answer.is_new else 2), "children of a taken key")

    return Scenario(
        name="spawn × insert(unique)",
        setup=[leased(1)],
        sessions={"F": [flush(SPAWN)], "I": [put(new(unique_key=b"u"))]},
        check=check,
        pauses=[PAUSE_AFTER_REFUSAL],
    )


def three_children() -> Scenario:
    return Scenario(
        name="child × child × child",
        setup=_family(parents=1, children=3),
        sessions={"A": [_end(11, "done")], "B": [_end(12, "stop")], "C": [_end(13, "done")]},
        check=_released(1),
    )


def two_children_and_a_reaped_one() -> Scenario:
    """The third child fails as poison: it counts as ended."""
    return Scenario(
        name="child × child × reap(child at the cap)",
        setup=[
            *_family(parents=1, children=2),
            leased(13, parent_id=1, parent_round=1, crash_count=CRASH_LIMIT - 1),
            # Only the third lease has expired.
            "update gen_durable.gen_durable set lease_expires_at = 'infinity' where id in (11, 12)",
            "update gen_durable.gen_durable set children_pending = 3 where id = 1",
        ],
        sessions={"A": [_end(11, "done")], "B": [_end(12, "done")], "R": [reap()]},
        check=_released(1),
    )


def children_and_pick() -> Scenario:
    """The parent runs when all children have ended, and sees all of them."""

    def check(end: End) -> None:
        picked: Picked = end.result("K")
        for execution in picked.executions:
            statuses = [child.status for child in execution.children]
            require(len(statuses) == 2 and set(statuses) <= set(TERMINAL), "picked without its children")

    return Scenario(
        name="child × child × pick(parent)",
        setup=_family(parents=1, children=2),
        sessions={"A": [_end(11, "done")], "B": [_end(12, "stop")], "K": [lease_some(8)]},
        check=check,
        never_wait=frozenset({"K"}),
    )


def children_and_deliver_to_the_parent() -> Scenario:
    """A signal to the parent holds the row that its children count down."""

    def check(end: End) -> None:
        require(end.after.status(1) == "runnable", "parent not released")
        require(end.after.instances[1]["has_signals"], "a signal that is never read")

    return Scenario(
        name="child × child × deliver(to the parent)",
        setup=_family(parents=1, children=2),
        sessions={"A": [_end(11, "done")], "B": [_end(12, "done")], "D": [send(1)]},
        check=check,
    )


def late_child(how: str) -> Scenario:
    """A child retried after its parent continued ends during the next round, and does not count."""
    of_first = {"parent_id": 1, "parent_round": 1}
    late, end_late = {
        "done": (leased(11, **of_first), _end(11, "done")),
        "reap": (leased(11, **of_first, crash_count=CRASH_LIMIT - 1), reap()),
        "cancel": (instance(11, "awaiting_signal", awaits=("go",), **of_first), cancel(11)),
    }[how]

    def check(end: End) -> None:
        require(end.after.status(1) in ("runnable", "executing"), "parent not released")
        for execution in end.result("B").executions:
            require([child.id for child in execution.children] == [12], "it sees another round")

    return Scenario(
        name=f"{how}(child of an earlier round) × done(child) and pick(parent)",
        setup=[
            instance(1, "awaiting_children", step_seq=2, spawn_round=2, children_pending=1),
            late,
            leased(12, parent_id=1, parent_round=2, lease_expires_at=FUTURE),
        ],
        sessions={"A": [end_late], "B": [_end(12, "done"), lease_some(8)]},
        check=check,
    )


def zombie_child() -> Scenario:
    """A child is reaped and leased again, and its first execution commits late: it counts once."""

    def check(end: End) -> None:
        is_committed = bool(end.result("F").committed())
        require(is_committed != (11 in end.result("R").ids), "outcome and reaper both won")

    return Scenario(
        name="done(child) × reap(child) × pick and commit(child)",
        sample=90,
        setup=[
            instance(1, "awaiting_children", step_seq=1, spawn_round=1, children_pending=2),
            leased(11, parent_id=1, parent_round=1),
            leased(12, parent_id=1, parent_round=1, lease_expires_at=FUTURE),
        ],
        sessions={
            "F": [_end(11, "done")],
            "R": [reap()],
            "K": [lease_some(8), flush_picked("done", parent_id=1)],
        },
        check=check,
        never_wait=frozenset({"R"}),
    )


def flushes_with_two_parents() -> Scenario:
    """Each flush ends a child of each parent. Parents are locked in one order, so they do not deadlock."""
    return Scenario(
        name="flush × flush, two shared parents",
        setup=_family(parents=2, children=2),
        sessions={
            "A": [flush(child(11, "done", 1), child(21, "stop", 2))],
            "B": [flush(child(22, "done", 2), child(12, "done", 1))],
        },
        check=_released(1, 2),
    )


def _family(parents: int, children: int) -> list[str]:
    """Parents 1, 2 … on the barrier of their first transition. The children of 1 are 11, 12 …, of 2: 21, 22 …"""
    return [
        row
        for parent in range(1, parents + 1)
        for row in (
            instance(parent, "awaiting_children", step_seq=1, spawn_round=1, children_pending=children),
            *(leased(10 * parent + n, parent_id=parent, parent_round=1) for n in range(1, children + 1)),
        )
    ]


def child(id: int, kind: str, parent: int) -> CommitEntry:
    return outcome(id, kind, parent_id=parent, error="no" if kind == "stop" else None)


def _end(id: int, kind: str) -> Work:
    return flush(child(id, kind, 1))


def _children(end: End) -> int:
    return sum(row["parent_id"] == 1 for row in end.after.instances.values())


def _released(*parents: int) -> Callable[[End], None]:
    def check(end: End) -> None:
        for parent in parents:
            require(end.after.status(parent) == "runnable", "parent not released")

    return check


SCENARIOS = [
    spawn_and_reap(),
    spawn_and_end_of_holder(),
    spawn_and_insert(),
    three_children(),
    two_children_and_a_reaped_one(),
    children_and_pick(),
    children_and_deliver_to_the_parent(),
    flushes_with_two_parents(),
    *(late_child(how) for how in ("done", "reap", "cancel")),
    zombie_child(),
]
