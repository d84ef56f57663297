"""Cancelling, deleting, restoring and retrying instances."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError
from .failures import StatementError
from .plan import Plan, Row, Rows, statements

__all__ = ["cancel", "delete", "live_children", "restore", "retry"]

_SQL = statements("control.sql")


def cancel(ids: Sequence[int], reason: str | None, actor: str | None, *, force: bool) -> Plan[Sequence[Row]]:
    """Cancel instances; an answer for each that exists."""
    return (yield _SQL["cancel"](ids=ids, reason=reason, actor=actor, force=force))


def delete(ids: Sequence[int], reason: str | None, actor: str | None) -> Plan[Sequence[Row]]:
    """Delete instances softly; an answer for each that exists."""
    return (yield _SQL["delete"](ids=ids, reason=reason, actor=actor))


def restore(ids: Sequence[int], actor: str | None) -> Plan[Sequence[Row]]:
    """Undo a soft delete; an answer for each that exists."""
    try:
        return (yield _SQL["restore"](ids=ids, actor=actor))
    except StatementError as error:
        raise _translated(error) from error


def retry(
    ids: Sequence[int], state: str | None, reason: str | None, actor: str | None
) -> Plan[Sequence[Row]]:
    """Let instances go on; an answer for each that exists."""
    try:
        return (yield _SQL["retry"](ids=ids, state=state, reason=reason, actor=actor))
    except StatementError as error:
        raise _translated(error) from error


def live_children(ids: Sequence[int]) -> Plan[list[int]]:
    """The children of these that have not ended."""
    return _ids((yield _SQL["live_children"](ids=ids)))


def _ids(rows: Rows) -> list[int]:
    return [row["id"] for row in rows]


def _translated(error: StatementError) -> Exception:
    if error.sqlstate == "GD004":
        return UsageError(error.message, "end that one first, or insert this one anew")
    return error
