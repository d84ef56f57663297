"""Read instances: snapshots, executions, inbox, children and audit events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from .plan import Plan, Row, statements

__all__ = [
    "audit",
    "children_of",
    "children_summary",
    "details",
    "executions",
    "finished_or_parked",
    "get",
    "inbox",
    "now",
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


def inbox(id: int) -> Plan[Sequence[Row]]:
    """Count the unread signals of one instance by name."""
    return (yield _SQL["inbox"](id=id))


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


def finished_or_parked(waiting: Mapping[int, bool]) -> Plan[Mapping[int, Row | None]]:
    """Of these ids, return those that have ended, or (value `True`) are parked. `None`: the instance does not exist."""
    rows = yield _SQL["finished_or_parked"](ids=list(waiting), parked=list(waiting.values()))
    return {row["wanted_id"]: None if row["id"] is None else row for row in rows}
