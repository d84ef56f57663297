"""Insert instances, children and dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from .._core.model import DeadLetter, NewInstance
from ..errors import LimitError, UsageError
from . import statement_retry
from .chunking import chunks, fits
from .failures import StatementError
from .plan import Call, Plan, statements
from .sqlstates import DATETIME_FIELD_OVERFLOW, LIMIT_REFUSED

__all__ = [
    "InsertResult",
    "dead_letter_failed",
    "insert",
    "insert_children",
    "insert_dead_letters",
]

_SQL = statements("insert.sql")
# Two batches that insert the same keys in opposite orders may deadlock more than once.
_TRIES = 8
# Between JSON texts, which never contain it.
_SEPARATOR = "\x1e"
# Half of what a message may have, because the server needs more for the same data.
_MAX_BYTES = 2**29


class InsertResult(msgspec.Struct, frozen=True, gc=False):
    """The result of one insert."""

    id: int
    """Id of the new instance, or of the one that has the key."""
    is_new: bool
    queue: str
    key: str = ""
    """If the key is taken: which one, `correlation_key` or `unique_key`."""
    status: str = ""
    """If the key is taken: the status of the instance that has it."""
    holder: str = ""
    """If the key is taken: the machine of the instance that has it."""


def insert(rows: Sequence[NewInstance], *, autocommit: bool) -> Plan[list[InsertResult]]:
    """Insert any number of instances in one statement; return the results in the order of the rows.

    Args:
        rows: what to insert.
        autocommit: the statement is its own transaction, and is retried after a lost race. In a caller's transaction
            the caller has to retry.

    Raises:
        UsageError: they are too large for one statement.
    """
    if not rows:
        return []
    _check_size(rows)
    try:
        return (yield from _insert(rows, None, None, tries=_TRIES if autocommit else 1))
    except StatementError as error:
        if (translated := _translated(error)) is None:
            raise
        raise translated from error


def _insert(
    rows: Sequence[NewInstance], parents: Sequence[int] | None, rounds: Sequence[int] | None, tries: int
) -> Plan[list[InsertResult]]:
    if _is_plain(rows):
        (row,) = yield _plain_call(rows, parents, rounds)
        queue = rows[0].queue
        return [InsertResult(id, True, queue) for id in row["ids"]]
    found = yield from statement_retry.run(_call(rows, parents, rounds), tries)
    answers: list[InsertResult] = [None] * len(rows)  # type: ignore[list-item]  # every element is set: one row per input
    for row in found:
        answers[row["ord"] - 1] = InsertResult(
            row["id"],
            row["inserted"],
            row["queue"],
            row["holder_key"] or "",
            row["holder_status"] or "",
            row["holder_fsm"] or "",
        )
    return answers


def _check_size(rows: Sequence[NewInstance]) -> None:
    """Refuse a statement that is too large: the server would close the connection, and roll back with it."""
    if fits(sum(row.size for row in rows)):
        return
    size = sum(_bytes(value) for row in rows for value in msgspec.structs.astuple(row))
    if size > _MAX_BYTES:
        raise UsageError(
            f"{len(rows)} instances have {size} bytes together",
            f"insert at most {_MAX_BYTES} bytes per call; use one transaction (conn=) for several calls",
        )


def _bytes(value: object) -> int:
    """The size of an array element in the protocol: a length of 4 bytes and the value (if not text, about 8)."""
    if isinstance(value, str) and not value.isascii():
        value = value.encode()
    return 4 + (len(value) if isinstance(value, str | bytes) else 8)


def insert_children(
    rows: Sequence[NewInstance], parents: Sequence[int], rounds: Sequence[int]
) -> Plan[tuple[dict[int, int], set[str]]]:
    """Insert the children of parents that wait for them; return the number per parent, and the queues with work."""
    inserted: dict[int, int] = dict.fromkeys(parents, 0)
    queues: set[str] = set()
    for part in chunks(row.size for row in rows):
        answers = yield from _insert(rows[part], parents[part], rounds[part], tries=1)
        for parent, answer in zip(parents[part], answers, strict=True):
            if answer.is_new:
                inserted[parent] += 1
                queues.add(answer.queue)
    return inserted, queues


def insert_dead_letters(letters: Sequence[DeadLetter]) -> Plan[set[str]]:
    """Insert dead letters; return the queues that have work now."""
    rows = yield _SQL["insert_dead_letters"](
        receivers=[letter.fsm for letter in letters],
        contents=[letter.state for letter in letters],
        traceparents=[letter.traceparent for letter in letters],
    )
    return {row["queue"] for row in rows}


def dead_letter_failed(failed: Mapping[int, int]) -> Plan[set[str]]:
    """Insert the dead letters of failed instances (id → attempts) whose worker did not name a receiver.

    The receiver is the one that is registered for the machine.
    """
    rows = yield _SQL["dead_letter_failed"](ids=list(failed), attempts=list(failed.values()))
    return {row["queue"] for row in rows}


def _is_plain(rows: Sequence[NewInstance]) -> bool:
    """Whether these rows have no key and no rate limit, and differ only in state, concurrency key and trace."""
    first = rows[0]
    shared = (first.fsm, first.version, first.step, first.queue, first.priority, first.max_attempts)
    times = (first.eligible_at, first.delay)
    return all(
        row.unique_key is None
        and row.correlation_key is None
        and row.rate_limit is None
        and (row.fsm, row.version, row.step, row.queue, row.priority, row.max_attempts) == shared
        and (row.eligible_at, row.delay) == times
        for row in rows
    )


def _plain_call(
    rows: Sequence[NewInstance], parents: Sequence[int] | None, rounds: Sequence[int] | None
) -> Call:
    first = rows[0]
    has_keys = any(row.concurrency_key is not None for row in rows)
    has_traces = any(row.traceparent is not None for row in rows)
    return _SQL["insert_plain"](
        fsm=first.fsm,
        version=first.version,
        step=first.step,
        states=_SEPARATOR.join([row.state for row in rows]),
        queue=first.queue,
        priority=first.priority,
        eligible_at=first.eligible_at,
        delay=first.delay,
        max_attempts=first.max_attempts,
        concurrency_keys=[row.concurrency_key for row in rows] if has_keys else None,
        traceparents=[row.traceparent for row in rows] if has_traces else None,
        parent_ids=parents,
        parent_rounds=rounds,
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
    """The public error for this one, or `None`."""
    if error.sqlstate == LIMIT_REFUSED:
        facts = error.facts()
        return LimitError(facts["name"], facts["weight"], facts["burst"])
    if error.sqlstate == DATETIME_FIELD_OVERFLOW:
        return UsageError(
            "a start time is outside the range of PostgreSQL", "pass one before the year 294276"
        )
    return None
