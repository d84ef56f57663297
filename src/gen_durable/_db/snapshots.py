"""Read instances: snapshots, executions, inbox, children and audit events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from .plan import Plan, Row, statements

__all__ = [
    "audit",
    "briefs",
    "children_counts",
    "children_of",
    "children_summary",
    "details",
    "executions",
    "get",
    "inbox",
    "messages",
    "newest_children",
    "newest_executions",
    "now",
    "pulse",
]

_SQL = statements("snapshots.sql")


def get(target: int | str) -> Plan[Row | None]:
    """Read one instance by id or correlation key."""
    call = _SQL["get"](id=target) if isinstance(target, int) else _SQL["get_by_key"](key=target)
    rows = yield call
    return rows[0] if rows else None


def children_of(parent_id: int, *, every: bool) -> Plan[Sequence[Row]]:
    """Read the children of one instance, in the order of their specs."""
    return (yield _SQL["children_of"](id=parent_id, every=every))


def executions(id: int) -> Plan[Sequence[Row]]:
    """Read all executions of one instance, oldest first."""
    return (yield _SQL["executions"](id=id))


def details(id: int) -> Plan[Row | None]:
    """Read the columns of one instance that are not in its snapshot."""
    rows = yield _SQL["details"](id=id)
    return rows[0] if rows else None


def briefs(ids: Sequence[int]) -> Plan[Sequence[Row]]:
    """Read instances for a list, newest first, without states and results."""
    return (yield _SQL["briefs"](ids=ids))


def inbox(id: int) -> Plan[Sequence[Row]]:
    """Count the unread signals of one instance by name."""
    return (yield _SQL["inbox"](id=id))


def messages(id: int, most: int) -> Plan[Sequence[Row]]:
    """Read the newest unread signals of one instance, oldest first."""
    return (yield _SQL["messages"](id=id, most=most))


def newest_children(id: int, most: int) -> Plan[Sequence[Row]]:
    """Read the newest children of one instance, oldest first, without states and results."""
    return (yield _SQL["newest_children"](id=id, most=most))


def children_counts(id: int) -> Plan[Sequence[Row]]:
    """Count the children of one instance by status, at most 10,000 of them."""
    return (yield _SQL["children_counts"](id=id))


def newest_executions(id: int, most: int) -> Plan[Sequence[Row]]:
    """Read the newest executions of one instance, oldest first."""
    return (yield _SQL["newest_executions"](id=id, most=most))


def pulse(id: int) -> Plan[Row | None]:
    """Read the columns of one instance that change while it lives."""
    rows = yield _SQL["pulse"](id=id)
    return rows[0] if rows else None


def children_summary(id: int) -> Plan[Sequence[Row]]:
    """Read all children of one instance, without states and results."""
    return (yield _SQL["children_summary"](id=id))


def audit(id: int) -> Plan[Sequence[Row]]:
    """Read the audit events of one instance."""
    return (yield _SQL["audit"](id=id))


def now() -> Plan[datetime]:
    """Read the clock of the database."""
    rows = yield _SQL["now"]()
    moment: datetime = rows[0]["now"]
    return moment
