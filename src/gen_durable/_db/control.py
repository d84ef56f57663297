"""Cancel, delete, restore, retry and edit instances.

`autocommit`: the statement is its own transaction, and is retried after a lost race. In a caller's transaction the
caller has to retry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from ..errors import LimitError, UsageError
from . import search, statement_retry
from .failures import StatementError
from .plan import Call, Plan, Row, Rows, statements
from .sqlstates import KEY_TAKEN, LIMIT_REFUSED

__all__ = [
    "cancel",
    "delete",
    "deleted_with_key",
    "edit",
    "fork",
    "in_batches",
    "leads_to",
    "live_children",
    "matching_ids",
    "restore",
    "retry",
    "unfinished_children",
]

_SQL = statements("control.sql")
_TRIES = 5
_BATCH = 500  # instances per statement of a bulk change
_PAGE = 10_000  # ids per statement that reads them

T = TypeVar("T")


def cancel(
    ids: Sequence[int],
    reason: str | None,
    actor: str | None,
    *,
    force: bool,
    undo: bool = True,
    autocommit: bool = False,
) -> Plan[Sequence[Row]]:
    """Cancel instances; return a row for each that exists."""
    return (
        yield from _run(
            ids,
            _SQL["cancel"](ids=ids, reason=reason, actor=actor, force=force, undo=undo),
            autocommit=autocommit,
        )
    )


def leads_to(ids: Sequence[int]) -> Plan[Mapping[int, str | None]]:
    """Return where a cancel leads each of these instances before it ends: compensating, on_cancel, undo or `None`."""
    return {row["id"]: row["leads_to"] for row in (yield _SQL["leads_to"](ids=list(ids)))}


def delete(
    ids: Sequence[int], reason: str | None, actor: str | None, *, autocommit: bool = False
) -> Plan[Sequence[Row]]:
    """Soft-delete instances; return a row for each that exists."""
    return (yield from _run(ids, _SQL["delete"](ids=ids, reason=reason, actor=actor), autocommit=autocommit))


def restore(
    ids: Sequence[int], reason: str | None, actor: str | None, *, autocommit: bool = False
) -> Plan[Sequence[Row]]:
    """Undo a soft delete; return a row for each that exists."""
    return (yield from _run(ids, _SQL["restore"](ids=ids, reason=reason, actor=actor), autocommit=autocommit))


def retry(
    ids: Sequence[int],
    state: str | None,
    reason: str | None,
    actor: str | None,
    *,
    step: str | None = None,
    autocommit: bool = False,
) -> Plan[Sequence[Row]]:
    """Retry failed or cancelled instances; return a row for each that exists."""
    return (
        yield from _run(
            ids,
            _SQL["retry"](ids=ids, state=state, step=step, reason=reason, actor=actor),
            autocommit=autocommit,
        )
    )


def edit(
    id: int,
    state: str | None,
    step: str | None,
    *,
    expected_seq: int | None,
    expected_version: int | None,
    wake: bool,
    reason: str | None,
    actor: str | None,
    autocommit: bool = False,
) -> Plan[Row | None]:
    """Change the state or the step of an instance that is not executing; `None` if it does not exist."""
    rows = yield from statement_retry.run(
        _SQL["edit"](
            id=id,
            state=state,
            step=step,
            expected_seq=expected_seq,
            expected_version=expected_version,
            wake=wake,
            reason=reason,
            actor=actor,
        ),
        _TRIES if autocommit else 1,
    )
    return rows[0] if rows else None


def fork(
    id: int,
    at: int | None,
    state: str | None,
    step: str | None,
    *,
    expected_version: int | None = None,
    correlation_key: str | None = None,
    unique_key: bytes | None = None,
    computed_keys: Mapping[str, str | None] | None = None,
    reason: str | None = None,
    actor: str | None = None,
) -> Plan[Row | None]:
    """Insert a new instance that starts after a transition of another one; `None` if that does not exist.

    `computed_keys` may have `concurrency_key` and `rate_limit`; others are those of the origin.

    Raises:
        LimitError: the computed rate limit does not exist, or the weight exceeds its burst.
    """
    try:
        rows = yield _SQL["fork"](
            id=id,
            at=at,
            state=state,
            step=step,
            expected_version=expected_version,
            correlation_key=correlation_key,
            unique_key=unique_key,
            computed_keys=msgspec.json.encode(computed_keys).decode() if computed_keys else None,
            reason=reason,
            actor=actor,
        )
    except StatementError as error:
        if error.sqlstate != LIMIT_REFUSED:
            raise
        facts = error.facts()
        raise LimitError(facts["name"], facts["weight"], facts["burst"]) from error
    return rows[0] if rows else None


def in_batches(
    ids: Sequence[int],
    change: Callable[[Sequence[int]], Plan[T]],
    on_changed: Callable[[T], object],
    on_refused: Callable[[int, UsageError], object] | None = None,
) -> Plan[None]:
    """Run a bulk change over any number of instances, in their order.

    A change fails as a whole if another instance has one of the keys: such a batch is halved until only the refused
    instances are left out.
    """
    batches = [ids[start : start + _BATCH] for start in range(0, len(ids), _BATCH)][::-1]
    while batches:
        batch = batches.pop()
        try:
            changed = yield from change(batch)
        except UsageError as error:
            if half := len(batch) // 2:
                batches += [batch[half:], batch[:half]]
            elif on_refused is not None:
                on_refused(batch[0], error)
        else:
            on_changed(changed)


def matching_ids(wanted: search.Filter, before: int | None = None) -> Plan[list[int]]:
    """Read the ids of all matching instances, newest first."""
    ids: list[int] = []
    while page := (yield from search.ids(wanted, _PAGE, before)):
        ids += page
        before = page[-1]
    return ids


def live_children(ids: Sequence[int]) -> Plan[list[int]]:
    """The children of these instances that have not ended."""
    return _ids((yield _SQL["live_children"](ids=ids)))


def unfinished_children(ids: Sequence[int]) -> Plan[list[int]]:
    """The children of these instances that are not done. They or their descendants may be live."""
    return _ids((yield _SQL["unfinished_children"](ids=ids)))


def deleted_with_key(key: str) -> Plan[int | None]:
    """The id of the latest deleted instance with this correlation key."""
    (row,) = yield _SQL["deleted_with_key"](key=key)
    id: int | None = row["id"]
    return id


def _run(ids: Sequence[int], call: Call, *, autocommit: bool) -> Plan[Rows]:
    """Run the statement; return its rows in the order of `ids`."""
    try:
        rows = yield from statement_retry.run(call, _TRIES if autocommit else 1)
    except StatementError as error:
        if error.sqlstate == KEY_TAKEN:
            raise _key_taken(error) from error
        raise
    answers = {row["id"]: row for row in rows}
    return [answers[id] for id in dict.fromkeys(ids) if id in answers]


def _key_taken(error: StatementError) -> UsageError:
    if not error.detail:
        return UsageError(error.message, "restore or retry them one by one")
    return UsageError(
        error.message, f"delete {error.facts()['id']} first, or insert a new instance with another key"
    )


def _ids(rows: Rows) -> list[int]:
    return [row["id"] for row in rows]
