"""Instances that are not kept: the commit of their end deletes them."""

from __future__ import annotations

from typing import Any, Final

from gen_durable._core.model import Committed, Stale
from gen_durable._db import commit as commits
from gen_durable._db.plan import Plan
from tests.interleavings.actions import cancel, commit_picked, lease_some, put, reap, send
from tests.interleavings.invariants import require
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.session import RECORDER, Flushed, Session, Work, autocommit, flush, transaction
from tests.interleavings.world import LIVE, KeyKind, leased, new, outcome, record

DONE: Final = outcome(1, "done", keep=False)
_CREATED: Final = "insert into gen_durable.audit_events (instance_id, event) values (1, 'created')"
_SCOPE: Final = (*LIVE, "done", "failed", "cancelled")


def delete() -> list[Work]:
    """Commit as the flusher does: delete the row; if it is not deleted, commit the outcome in a transaction."""

    def first() -> Plan[Flushed]:
        return Flushed([DONE], (yield from commits.delete_done([DONE])))

    def general() -> Plan[Flushed]:
        return Flushed([DONE], (yield from commits.commit([DONE], RECORDER)))

    def is_open(session: Session) -> bool:
        return isinstance(session.result.report.results[0], Stale)

    return [
        autocommit(lambda _: first()),
        transaction(lambda session: general() if is_open(session) else None),
    ]


def _is_gone(end: End) -> bool:
    """Whether the instance is deleted; then nothing of it may be left."""
    if 1 in end.after.instances:
        return False
    require(not [row for row in end.after.signals if row["target_id"] == 1], "its signals are left")
    require(not end.after.records(1), "its records are left")
    require(not [row for row in end.after.audit if row["instance_id"] == 1], "its audit events are left")
    require(not end.after.items, "its stream items are left")
    return True


def delete_and_cancel() -> Scenario:
    """The first one wins: the instance is gone, or it is cancelled and stays."""

    def check(end: End) -> None:
        is_committed = bool(end.result("F").committed())
        is_cancelled = any(answer["was"] == "executing" for answer in end.result("C"))
        require(is_committed != is_cancelled, "an acknowledged cancel did not win")
        require(is_committed == _is_gone(end), "its answer is not what happened")
        require(is_committed or end.after.status(1) == "cancelled", "neither done nor cancelled")

    return Scenario(
        name="delete(done) × cancel",
        setup=[leased(1)],
        sessions={"F": delete(), "C": [cancel(1)]},
        check=check,
    )


def delete_and_reap() -> Scenario:
    """Reaped and leased again, the first execution comes back: it deletes nothing."""

    def check(end: End) -> None:
        is_committed = bool(end.result("F").committed())
        require(is_committed != (1 in end.result("R").ids), "outcome and reaper both won")
        require(is_committed == _is_gone(end), "its answer is not what happened")

    return Scenario(
        name="delete(done) × reap × pick and commit",
        sample=90,
        setup=[leased(1)],
        sessions={"F": delete(), "R": [reap()], "K": [lease_some(8), commit_picked("next")]},
        check=check,
        never_wait=frozenset({"R"}),
    )


def delete_and_continue() -> Scenario:
    """Two outcomes of one execution on one lease: one of them counts."""

    def check(end: End) -> None:
        both = [*end.result("F").committed(), *end.result("G").committed()]
        require(len(both) == 1, "applied twice")
        _is_gone(end)

    return Scenario(
        name="delete(done) × continue on the same lease",
        setup=[leased(1)],
        sessions={"F": delete(), "G": [flush(outcome(1, "continue"))]},
        check=check,
    )


def delete_second_attempt() -> Scenario:
    """The history of earlier attempts is deleted with the instance."""

    def check(end: End) -> None:
        require(_is_gone(end), "an instance that is done is left")

    return Scenario(
        name="delete(done) of a second attempt",
        setup=[
            leased(1, execution=2, attempt=1),
            record(1, "ABORTED", "retry"),
            _CREATED,
        ],
        sessions={"F": delete()},
        check=check,
    )


def delete_audited() -> Scenario:
    """An insert with an actor leaves an audit event, which is deleted with the instance."""

    def check(end: End) -> None:
        require(_is_gone(end), "an instance that is done is left")

    return Scenario(
        name="delete(done) of an audited instance",
        setup=[leased(1), _CREATED],
        sessions={"F": delete()},
        check=check,
    )


def delete_and_deliver() -> Scenario:
    """A signal that came first is deleted with the instance; later ones are refused."""

    def check(end: End) -> None:
        require(_is_gone(end), "an instance that is done is left")

    return Scenario(
        name="delete(done) × deliver",
        setup=[leased(1)],
        sessions={"F": delete(), "D": [send()]},
        check=check,
    )


def delete_and_insert(key: KeyKind) -> Scenario:
    """A key that done instances occupy stays taken: the row is kept without its state."""
    value: Any = b"u" if key == "unique" else "u"

    def check(end: End) -> None:
        (answer,) = end.result("I")
        require(answer.id == 1 and not answer.is_new, "two instances with one key")
        require(end.after.instances[1]["collected_at"] is not None, "kept with its result")

    return Scenario(
        name=f"delete(done) × insert({key})",
        setup=[leased(1, **{f"{key}_key": value, f"{key}_scope": _SCOPE})],
        sessions={
            "F": delete(),
            "I": [put(new(**{f"{key}_key": value, f"{key}_scope": f"{{{','.join(_SCOPE)}}}"}))],
        },
        check=check,
    )


def delete_without_an_answer() -> Scenario:
    """The connection broke at a DELETE that may yet be committed: the rows are asked, then the outcome is sent again."""

    def again(session: Session) -> Plan[Any] | None:
        (status,) = session.result
        return commits.commit([DONE], RECORDER) if status is None else None

    def look_again(session: Session) -> Plan[Any] | None:
        last = session.result
        is_stale = isinstance(last, commits.CommitReport) and isinstance(last.results[0], Stale)
        return commits.commit_status([DONE], RECORDER) if is_stale else None

    def check(end: End) -> None:
        last = end.result("B")
        (result,) = last.results if isinstance(last, commits.CommitReport) else last
        require(isinstance(result, Committed), "durable, but taken for lost")
        require(_is_gone(end), "an instance that is done is left")

    return Scenario(
        name="delete(done) without an answer × resolve and commit again",
        setup=[leased(1)],
        sessions={
            "A": delete()[:1],
            "B": [
                autocommit(lambda _: commits.commit_status([DONE], RECORDER)),
                transaction(again),
                autocommit(look_again),
            ],
        },
        check=check,
    )


SCENARIOS = [
    delete_and_cancel(),
    delete_and_reap(),
    delete_and_continue(),
    delete_second_attempt(),
    delete_audited(),
    delete_and_deliver(),
    delete_and_insert("unique"),
    delete_and_insert("correlation"),
    delete_without_an_answer(),
]
