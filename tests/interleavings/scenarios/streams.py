"""Appends to streams against the loss of the lease, other appends, the end of the instance, and readers."""

from __future__ import annotations

from typing import Any

import msgspec

from gen_durable._db import streams
from gen_durable._db.pick import Picked
from gen_durable._db.plan import Plan, Statement
from tests.interleavings.actions import cancel, lease_some, reap
from tests.interleavings.invariants import require
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.scenarios.unkept import _is_gone, delete
from tests.interleavings.session import Session, Work, autocommit, flush, transaction
from tests.interleavings.world import TOKEN, Row, leased, outcome

STREAM = "tokens"
_LOCK = Statement(
    "lock_instance", "select from gen_durable.gen_durable where id = :id::bigint for no key update"
)


class Reader(msgspec.Struct):
    """A stream that a session follows."""

    id: int = 1
    stream: str = STREAM
    after: int = 0
    closing: int | None = None


def chunk(id: int, *values: str, token: int = TOKEN, step_seq: int = 0, first: int = 1) -> streams.Chunk:
    return streams.Chunk(id, token, step_seq, STREAM, first, [f'"{value}"' for value in values])


def append(*chunks: streams.Chunk) -> Work:
    return autocommit(lambda _: streams.append(chunks))


def append_picked(*values: str) -> Work:
    """Append as the next execution of instance 1, if this session has picked it."""

    def make(session: Session) -> Plan[Any] | None:
        picked: Picked = session.result
        chunks = [
            chunk(one.id, *values, token=one.lease_token, step_seq=one.step_seq) for one in picked.executions
        ]
        return streams.append(chunks) if chunks else None

    return autocommit(make)


def follow() -> Work:
    """Read the next items, and go on after them in the next call."""

    def make(session: Session) -> Plan[Any]:
        seen = [row for result in session.results for _, row in result if row["position"] is not None]
        reader = Reader(after=max([row["position"] for row in seen], default=0))
        return streams.read([reader], 10)

    return autocommit(make)


def _values(rows: list[Row]) -> list[str]:
    return [row["value"] for row in rows]


def _is_appended(result: streams.Appended) -> bool:
    return not result.lost and not result.locked


def _is_dense(rows: list[Row]) -> bool:
    return [row["position"] for row in rows] == list(range(1, len(rows) + 1))


def zombie() -> Scenario:
    """Reaped and leased again, the first execution comes back with its items: it appends them before, or nothing."""

    def check(end: End) -> None:
        rows = end.after.items
        ours = ["a", "b"] * _is_appended(end.result("Z"))
        theirs = ["c", "d"] * (len(end.sessions["K"].results) == 2 and _is_appended(end.result("K")))
        require(_values(rows) == ours + theirs, "items of an execution that has lost its lease")
        require(_is_dense(rows), "positions with a gap")
        executions = [row["execution"] for row in rows]
        require(executions == sorted(executions), "items of an execution that has lost its lease")

    return Scenario(
        name="append × reap × pick and append",
        setup=[leased(1)],
        sessions={
            "Z": [append(chunk(1, "a", "b"))],
            "R": [reap()],
            "K": [lease_some(8), append_picked("c", "d")],
        },
        check=check,
        sample=90,
        never_wait=frozenset({"R"}),
    )


def append_and_continue() -> Scenario:
    """Items that arrive after the outcome of their step are dropped, although the lease is the same."""

    def check(end: End) -> None:
        require(len(end.after.items) == 2 * _is_appended(end.result("A")), "the answer is not what happened")
        require(
            all(row["step_seq"] == 1 and row["step"] == "s" for row in end.after.items),
            "items of a step that has committed",
        )

    return Scenario(
        name="append × continue on the same lease",
        setup=[leased(1)],
        sessions={"A": [append(chunk(1, "a", "b"))], "F": [flush(outcome(1, "continue"))]},
        check=check,
    )


def append_again() -> Scenario:
    """An append whose reply is lost may commit late. It is sent again; later items follow once it has an answer."""

    def check(end: End) -> None:
        values = _values(end.after.items)
        later = ["c"] * (len(end.sessions["B"].results) == 2 and _is_appended(end.result("B")))
        require(values == ["a", "b", *later], "items lost, doubled or in another order")
        require(_is_dense(end.after.items), "positions with a gap")

    def next_batch(session: Session) -> Plan[Any] | None:
        return None if session.result.locked else streams.append([chunk(1, "c", first=3)])

    return Scenario(
        name="append × the same append, then the next",
        setup=[leased(1)],
        sessions={
            "A": [append(chunk(1, "a", "b"))],
            "B": [append(chunk(1, "a", "b")), autocommit(next_batch)],
        },
        check=check,
    )


def append_beside_a_locked_row() -> Scenario:
    """A caller's transaction that holds one instance does not delay the items of another."""

    def check(end: End) -> None:
        result = end.result("A")
        require(not result.lost, "a locked row counted as lost")
        ids = [row["instance_id"] for row in end.after.items]
        require(ids == ([1] if result.locked else [1, 2]), "the answer is not what happened")

    def hold() -> Plan[None]:
        yield _LOCK(id=2)

    return Scenario(
        name="append × lock of one of its rows",
        setup=[leased(1), leased(2)],
        sessions={"A": [append(chunk(2, "b"), chunk(1, "a"))], "C": [transaction(lambda _: hold())]},
        check=check,
        never_wait=frozenset({"A"}),
    )


def append_cancel_and_read() -> Scenario:
    """A reader that sees the end of the instance has seen all of its items."""

    def check(end: End) -> None:
        rows = [row for result in end.sessions["R"].results for _, row in result]
        seen = [row["position"] for row in rows if row["position"] is not None]
        require(seen == list(range(1, len(seen) + 1)), "positions with a gap")
        has_ended = bool(rows) and rows[-1]["has_ended"] is True
        require(not has_ended or len(seen) == len(end.after.items), "an item after the end")

    return Scenario(
        name="append and append × cancel(force) × read and read",
        setup=[leased(1)],
        sessions={
            "A": [append(chunk(1, "a", "b")), append(chunk(1, "c", first=3))],
            "C": [cancel(1, force=True)],
            "R": [follow(), follow()],
        },
        check=check,
        sample=120,
        never_wait=frozenset({"R"}),
    )


def append_and_delete() -> Scenario:
    """Items of an instance that is not kept are deleted with it."""

    def check(end: End) -> None:
        require(_is_gone(end), "an instance that is done is left")

    return Scenario(
        name="append × delete(done)",
        setup=[leased(1)],
        sessions={"A": [append(chunk(1, "a", "b"))], "F": delete()},
        check=check,
    )


SCENARIOS = [
    zombie(),
    append_and_continue(),
    append_again(),
    append_beside_a_locked_row(),
    append_cancel_and_read(),
    append_and_delete(),
]
