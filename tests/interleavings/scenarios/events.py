"""Concurrent dispatchers on one outbox: order per instance and sink, and late marks."""

from __future__ import annotations

from typing import Any

from gen_durable._core.model import EventRow
from gen_durable._db import outbox
from gen_durable._db.plan import Plan
from gen_durable._verbs.event_tail import EventTail
from tests.interleavings.invariants import require
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.session import Session, Work, autocommit, flush, transaction
from tests.interleavings.world import LEASE, PAST, World, event, leased, outcome

SINK = "default"


def lease(token: int, demand: int = 10) -> Work:
    return autocommit(lambda _: outbox.lease(SINK, demand, token, LEASE))


def publish(token: int, verdict: Any = "published") -> Work:
    """Mark the events that this session leased as published or failed."""

    def make(session: Session) -> Plan[Any] | None:
        events: list[outbox.Leased] = session.result
        error = None if verdict == "published" else "no"
        marks = [outbox.Mark(one, verdict, error, LEASE if error else None) for one in events]
        return outbox.mark(SINK, marks, token) if marks else None

    return transaction(make)


def dispatch_and_dispatch() -> Scenario:
    """Two dispatchers, one with a small batch: an event is published before the next one is leased."""

    def check(end: End) -> None:
        taken = {name: [one.id for one in end.sessions[name].results[0]] for name in ("A", "B")}
        require(not set(taken["A"]) & set(taken["B"]), "leased twice")
        for first, second in (("A", "B"), ("B", "A")):
            for line in ([1, 2, 3], [4, 5]):
                firsts = [id for id in taken[first] if id in line]
                seconds = [id for id in taken[second] if id in line]
                if firsts and seconds and min(firsts) < max(seconds):
                    require(end.is_before(first, second), "overtaken by a later event")
        for id in {1, 2, 3, 4, 5} - set(taken["A"]) - set(taken["B"]):
            require(_row(end.after, id)["published_at"] is None, "published by no dispatcher")

    return Scenario(
        name="dispatch × dispatch",
        setup=[event(1, 1), event(2, 1), event(3, 1), event(4, 2), event(5, 2)],
        sessions={"A": [lease(1, 2), publish(1)], "B": [lease(2), publish(2)]},
        check=check,
        never_wait=frozenset(),
    )


def dispatch_behind_a_failure() -> Scenario:
    """A failed event blocks the events behind it until its retry."""

    def check(end: End) -> None:
        failed = {one.id for one in end.sessions["A"].results[0]}
        taken = {one.id for one in end.sessions["B"].results[0]}
        require(not (failed and taken), "overtaken by a later event")

    return Scenario(
        name="dispatch that fails × dispatch",
        setup=[event(1, 1), event(2, 1)],
        sessions={"A": [lease(1, 1), publish(1, "again")], "B": [lease(2), publish(2)]},
        check=check,
    )


def late_mark() -> Scenario:
    """A dispatcher resumes after its lease expired: its mark is ignored if another one has the event."""

    def check(end: End) -> None:
        ours, theirs = end.sessions["Z"].results[-1], end.sessions["D"].results
        require(ours == 0 or not theirs[0], "a late mark counted")
        row = _row(end.after, 1)
        require((row["published_at"] is not None) == (ours == 1), "published, and not marked")

    stale = outbox.Leased(1, 1, 1, 1, "shipped", "x", "null", None, 0)  # type: ignore[arg-type]  # the time is not used
    return Scenario(
        name="mark × lease × mark",
        setup=[event(1, 1, lease_token=1, next_at=PAST)],
        sessions={
            "Z": [transaction(lambda _: outbox.mark(SINK, [outbox.Mark(stale, "published")], 1))],
            "D": [lease(2), publish(2, "again")],
        },
        check=check,
    )


def last_marks() -> Scenario:
    """Two sinks mark the last two events of an execution concurrently: one finishes the execution."""

    def check(end: End) -> None:
        require([record["status"] for record in end.after.executions] == ["DONE"], "not done")

    def mark(id: int, sink: str, token: int) -> Work:
        ours = outbox.Leased(id, 1, 1, id, "shipped", "x", "null", None, 0)  # type: ignore[arg-type]  # not used
        verdict: Any = "published" if id == 1 else "dead"
        return transaction(lambda _: outbox.mark(sink, [outbox.Mark(ours, verdict)], token))

    return Scenario(
        name="mark of one sink × mark of another",
        setup=[
            """insert into gen_durable.executions
                      (instance_id, step_seq, execution, attempt, status, outcome, step, finished_at)
               values (1, 1, 1, 0, 'COMMITTED', 'next', 's', statement_timestamp())""",
            event(1, 1, lease_token=1),
            event(2, 1, n=2, sink="other", lease_token=2),
        ],
        sessions={"A": [mark(1, SINK, 1)], "B": [mark(2, "other", 2)]},
        check=check,
    )


def emit_and_dispatch() -> Scenario:
    """What a commit adds to a line is published behind what is there."""

    def check(end: End) -> None:
        taken = [one.id for one in end.sessions["D"].results[0]]
        require(taken in ([1], [1, 100]), "overtaken by a later event")
        require(len(end.after.outbox) == 2, "an event was lost")

    shipped = EventRow(SINK, "shipped", "x", "null")
    return Scenario(
        name="commit with an event × dispatch",
        setup=[leased(1, step_seq=1), event(1, 1)],
        sessions={
            "F": [flush(outcome(1, "done", step_seq=1, events=(shipped,)))],
            "D": [lease(1), publish(1)],
        },
        check=check,
    )


def tail() -> Work:
    """Read the events of the tail that are complete; the result is their numbers."""

    def plan() -> Plan[list[int]]:
        return [event.number for event in (yield from EventTail(None, None, None, 0, 100).next())]

    return autocommit(lambda _: plan())


def commits_and_tail(sample: int = 200) -> Scenario:
    """Events become visible in another order than that of their numbers. A reader of the tail misses none."""

    def check(end: End) -> None:
        seen: list[int] = end.result("T")
        numbers = [row["id"] for row in end.after.outbox]
        require(seen == numbers[: len(seen)], "the tail has a gap")

    shipped = EventRow(SINK, "shipped", "x", "null")
    return Scenario(
        name="commit with an event × commit with an event × tail",
        setup=[leased(1), leased(2)],
        sessions={
            "A": [flush(outcome(1, "await", awaits=("go",), events=(shipped,)))],
            "B": [flush(outcome(2, "await", awaits=("go",), events=(shipped,)))],
            "T": [tail()],
        },
        check=check,
        sample=sample,
        never_wait=frozenset({"T"}),
    )


def _row(world: World, id: int) -> Any:
    return next(row for row in world.outbox if row["id"] == id)


SCENARIOS = [
    dispatch_and_dispatch(),
    dispatch_behind_a_failure(),
    late_mark(),
    last_marks(),
    emit_and_dispatch(),
    commits_and_tail(),
]
