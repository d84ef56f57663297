"""Mixed work: one flush with many outcomes, one session that picks, runs and parks."""

from __future__ import annotations

from typing import Any

from gen_durable._db.admission import stuck_keys
from gen_durable._db.pick import Picked
from gen_durable._db.plan import Plan
from gen_durable._db.signals import Delivery, deliver
from tests.interleavings.actions import gate, lease_some, send
from tests.interleavings.invariants import require
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.session import Session, autocommit, callers, commit, flush, transaction
from tests.interleavings.world import instance, leased, outcome, signal


def mixed_flush() -> Scenario:
    """One flush parks an instance, ends the holder of a key and the last child of a parent, and keeps a lease."""

    def check(end: End) -> None:
        require(len(end.result("F").committed()) == 4, "an outcome was lost")
        require(end.after.status(1) == "runnable", "parent not released")
        require(end.after.status(2) == "runnable", "lost wake-up")

    return Scenario(
        name="flush(await, done, done of a child, continue) × deliver × gate",
        setup=[
            instance(1, "awaiting_children", step_seq=1, spawn_round=1, children_pending=1),
            leased(2),
            leased(3, concurrency_key="k", concurrency_slot=0),
            instance(4, concurrency_key="k"),
            leased(5),
            leased(11, parent_id=1, parent_round=1),
        ],
        sessions={
            "F": [
                flush(
                    outcome(2, "await", awaits=("go",)),
                    outcome(3, "done", held_key="k"),
                    outcome(5, "continue"),
                    outcome(11, "done", parent_id=1),
                )
            ],
            "D": [send(2)],
            "G": [gate("k")],
        },
        check=check,
    )


def pick_and_park_a_pack() -> Scenario:
    """A step that collects signals is picked and parks again while more signals arrive."""

    def park(session: Session) -> Plan[Any] | None:
        picked: Picked = session.result
        entries = [
            outcome(
                execution.id,
                "await",
                lease_token=execution.lease_token,
                step_seq=execution.step_seq,
                awaits=("go",),
                presented=tuple(row.id for row in execution.awaited),
                was_awaiting=True,
            )
            for execution in picked.executions
        ]
        return commit(entries) if entries else None

    def check(end: End) -> None:
        row = end.after.instances[1]
        new = {s["id"] for s in end.after.unread(1)} - set(row["presented"] or ())
        require(not end.result("E").is_new, "a duplicate was taken for new")
        require(row["status"] == ("runnable" if new else "awaiting_signal"), "woken by what it had seen")

    return Scenario(
        name="pick and park with a pack × deliver × redeliver",
        setup=[instance(1, awaits=("go",), has_signals=True), signal(1, 1, "go", "d")],
        sessions={"K": [lease_some(8), transaction(park)], "D": [send()], "E": [send(dedup_key="d")]},
        check=check,
    )


def two_signals_in_a_transaction() -> Scenario:
    """A caller's transaction locks its targets in another order. One of the two may be retried."""
    flushed_both = flush(*(outcome(id, "await", awaits=("go",)) for id in (1, 2)))

    def send_both() -> Plan[list[Delivery | None]]:
        first = yield from deliver(1, "go", "{}", None)
        second = yield from deliver(2, "go", "{}", None)
        return [first, second]

    def check(end: End) -> None:
        require(all(end.result("D")), "refused by a live instance")
        require([end.after.status(id) for id in (1, 2)] == ["runnable"] * 2, "lost wake-up")

    return Scenario(
        name="park both × deliver to both in a transaction of the caller",
        setup=[row for id in (1, 2) for row in (leased(id, has_signals=True), signal(id, id, "old"))],
        sessions={"F": [flushed_both], "D": [callers("read committed", lambda _: send_both())]},
        check=check,
        may_meet=frozenset({"40P01"}),
    )


def alarm_while_a_key_changes_hands() -> Scenario:
    """The check for stuck keys raises no false alarm."""

    def check(end: End) -> None:
        require(not end.result("S").keys, "false alarm")

    return Scenario(
        name="stuck keys? × gate × commit(done)",
        setup=[leased(1, concurrency_key="k", concurrency_slot=0), instance(2, concurrency_key="k")],
        sessions={
            "S": [autocommit(lambda _: stuck_keys())],
            "G": [gate("k")],
            "F": [flush(outcome(1, "done", held_key="k"))],
        },
        check=check,
        never_wait=frozenset({"S"}),
    )


SCENARIOS = [
    mixed_flush(),
    pick_and_park_a_pack(),
    two_signals_in_a_transaction(),
    alarm_while_a_key_changes_hands(),
]
