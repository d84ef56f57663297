"""Inserting instances, and telling the database what a worker runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from .._core.model import DeadLetter, NewInstance
from ..definition import MachineDef
from ..errors import LimitError, UsageError
from . import statement_retry
from .chunking import chunks, fits
from .failures import StatementError
from .plan import Call, Plan, Rows, statements
from .sqlstates import DATETIME_FIELD_OVERFLOW, LIMIT_REFUSED

__all__ = ["Answer", "dead_letter_failed", "insert", "insert_children", "insert_dead_letters", "register"]

_SQL = statements("insert.sql")
# Two batches that take each other's keys in opposite orders may meet more than once.
_TRIES = 8
# Half of what a message may have: in the server it becomes larger.
_MAX_BYTES = 2**29


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What became of one insert."""

    id: int
    """Of the new instance, or of the one that holds the key."""
    is_new: bool
    queue: str
    key: str = ""
    """Of a refused one: which of its keys was taken, `correlation_key` or `unique_key`."""
    status: str = ""
    """Of a refused one: the status of the instance that holds the key."""
    holder: str = ""
    """Of a refused one: the machine of the instance that holds the key."""


def insert(rows: Sequence[NewInstance], *, is_alone: bool) -> Plan[list[Answer]]:
    """Insert any number of instances in one statement; the answers are in the order of the rows.

    Args:
        rows: what to insert.
        is_alone: the statement is its own transaction. If another one was in its way, it is simply run again; inside
            a caller's transaction that is up to the caller.

    Raises:
        UsageError: they are more than one statement can carry.
    """
    if not rows:
        return []
    _check_size(rows)
    found = yield from _insert(rows, tries=_TRIES if is_alone else 1)
    answers: list[Answer] = [None] * len(rows)  # type: ignore[list-item]  # every place is filled: one answer per input
    for row in found:
        answers[row["ord"] - 1] = Answer(
            row["id"],
            row["inserted"],
            row["queue"],
            row["holder_key"] or "",
            row["holder_status"] or "",
            row["holder_fsm"] or "",
        )
    return answers


def _insert(rows: Sequence[NewInstance], tries: int) -> Plan[Rows]:
    try:
        return (yield from statement_retry.run(_call(rows, parents=None, rounds=None), tries))
    except StatementError as error:
        if (translated := _translated(error)) is None:
            raise
        raise translated from error


def _check_size(rows: Sequence[NewInstance]) -> None:
    """Refuse what would cost a connection, and with it the transaction of its owner."""
    if fits(sum(row.size for row in rows)):
        return
    size = sum(_bytes(value) for row in rows for value in msgspec.structs.astuple(row))
    if size > _MAX_BYTES:
        raise UsageError(
            f"{len(rows)} instances at once have {size} bytes",
            f"insert at most {_MAX_BYTES} at once: make several calls of it, in one transaction (conn=) if need be",
        )


def _bytes(value: object) -> int:
    """What an element of an array is on the wire: its length, and itself; of what is no text, eight bytes or so."""
    if isinstance(value, str) and not value.isascii():
        value = value.encode()
    return 4 + (len(value) if isinstance(value, str | bytes) else 8)


def insert_children(
    rows: Sequence[NewInstance], parents: Sequence[int], rounds: Sequence[int]
) -> Plan[tuple[dict[int, int], set[str]]]:
    """Insert children of parents that a commit has just parked: how many each got, and which queues have work."""
    inserted: dict[int, int] = dict.fromkeys(parents, 0)
    queues: set[str] = set()
    for part in chunks(row.size for row in rows):
        found = yield _call(rows[part], parents=parents[part], rounds=rounds[part])
        for row in found:
            if row["inserted"]:
                inserted[parents[part][row["ord"] - 1]] += 1
                queues.add(row["queue"])
    return inserted, queues


def insert_dead_letters(letters: Sequence[DeadLetter]) -> Plan[set[str]]:
    """Insert what failed instances leave behind; the queues that have work now."""
    rows = yield _SQL["insert_dead_letters"](
        receivers=[letter.fsm for letter in letters],
        contents=[letter.state for letter in letters],
        traceparents=[letter.traceparent for letter in letters],
    )
    return {row["queue"] for row in rows}


def dead_letter_failed(failed: Mapping[int, int]) -> Plan[set[str]]:
    """The same for instances (→ how often they were tried) whose worker could not say who gets the letter."""
    rows = yield _SQL["dead_letter_failed"](ids=list(failed), attempts=list(failed.values()))
    return {row["queue"] for row in rows}


def register(machines: Sequence[MachineDef]) -> Plan[None]:
    """Record where these machines begin and wait, for producers that know only their names."""
    yield _SQL["register"](
        fsms=[machine.name for machine in machines],
        versions=[machine.version for machine in machines],
        initial_steps=[machine.initial for machine in machines],
        queues=[machine.queue for machine in machines],
        dead_letters=[machine.dead_letter for machine in machines],
    )


def _call(rows: Sequence[NewInstance], parents: Sequence[int] | None, rounds: Sequence[int] | None) -> Call:
    is_limited = any(row.rate_limit is not None for row in rows)
    return _SQL["insert"](
        fsms=[row.fsm for row in rows],
        versions=[row.version for row in rows],
        steps=[row.step for row in rows],
        states=[row.state for row in rows],
        queues=[row.queue for row in rows],
        priorities=[row.priority for row in rows],
        eligible_ats=[row.eligible_at for row in rows],
        delays=[row.delay for row in rows],
        concurrency_keys=[row.concurrency_key for row in rows],
        correlation_keys=[row.correlation_key for row in rows],
        correlation_scopes=[row.correlation_scope for row in rows],
        unique_keys=[row.unique_key for row in rows],
        unique_scopes=[row.unique_scope for row in rows],
        max_attempts=[row.max_attempts for row in rows],
        traceparents=[row.traceparent for row in rows],
        parent_ids=parents,
        parent_rounds=rounds,
        rate_limits=[row.rate_limit for row in rows] if is_limited else None,
        weights=[row.weight for row in rows] if is_limited else None,
    )


def _translated(error: StatementError) -> Exception | None:
    """The error of our own that it stands for, if it does."""
    if error.sqlstate == LIMIT_REFUSED:
        facts = error.facts()
        return LimitError(facts["name"], facts["weight"], facts["burst"])
    if error.sqlstate == DATETIME_FIELD_OVERFLOW:
        return UsageError(
            "a time to start lies outside of what PostgreSQL can store", "give one before the year 294276"
        )
    return None
