"""Cancel, delete, restore and retry instances.

`is_alone`: the statement is its own transaction, and is retried after a lost race. In a caller's transaction the caller
has to retry.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError
from . import statement_retry
from .failures import StatementError
from .plan import Call, Plan, Row, Rows, statements
from .sqlstates import KEY_TAKEN

__all__ = ["cancel", "delete", "deleted_with_key", "live_children", "restore", "retry", "unfinished_children"]

_SQL = statements("control.sql")
_TRIES = 5


def cancel(
    ids: Sequence[int], reason: str | None, actor: str | None, *, force: bool, is_alone: bool = False
) -> Plan[Sequence[Row]]:
    """Cancel instances; return a row for each that exists."""
    return (
        yield from _run(
            ids, _SQL["cancel"](ids=ids, reason=reason, actor=actor, force=force), is_alone=is_alone
        )
    )


def delete(
    ids: Sequence[int], reason: str | None, actor: str | None, *, is_alone: bool = False
) -> Plan[Sequence[Row]]:
    """Soft-delete instances; return a row for each that exists."""
    return (yield from _run(ids, _SQL["delete"](ids=ids, reason=reason, actor=actor), is_alone=is_alone))


def restore(
    ids: Sequence[int], reason: str | None, actor: str | None, *, is_alone: bool = False
) -> Plan[Sequence[Row]]:
    """Undo a soft delete; return a row for each that exists."""
    return (yield from _run(ids, _SQL["restore"](ids=ids, reason=reason, actor=actor), is_alone=is_alone))


def retry(
    ids: Sequence[int], state: str | None, reason: str | None, actor: str | None, *, is_alone: bool = False
) -> Plan[Sequence[Row]]:
    """Make ended or waiting instances runnable; return a row for each that exists."""
    return (
        yield from _run(
            ids, _SQL["retry"](ids=ids, state=state, reason=reason, actor=actor), is_alone=is_alone
        )
    )


def live_children(ids: Sequence[int]) -> Plan[list[int]]:
    """The children of these instances that have not ended."""
    return _ids((yield _SQL["live_children"](ids=ids)))


def unfinished_children(ids: Sequence[int]) -> Plan[list[int]]:
    """The children of these instances that are not done. They or their descendants may be live."""
    return _ids((yield _SQL["unfinished_children"](ids=ids)))


def deleted_with_key(key: str) -> Plan[int | None]:
    """The id of the latest deleted instance with this correlation key."""
    ids = _ids((yield _SQL["deleted_with_key"](key=key)))
    return ids[0] if ids else None


def _run(ids: Sequence[int], call: Call, *, is_alone: bool) -> Plan[Rows]:
    """Run the statement; return its rows in the order of `ids`."""
    try:
        rows = yield from statement_retry.run(call, _TRIES if is_alone else 1)
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
