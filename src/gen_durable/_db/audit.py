"""The audit in the database: reading its events, and how much of them is written."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import AuditLevel
from .plan import Plan, Row, statements

__all__ = ["events", "level", "set_level"]

_SQL = statements("audit.sql")


def events(instance_id: int, after: int, demand: int) -> Plan[Sequence[Row]]:
    """What has happened to one instance, oldest first."""
    return (yield _SQL["events"](instance_id=instance_id, after=after, demand=demand))


def level() -> Plan[AuditLevel]:
    """Which events are written."""
    (row,) = yield _SQL["level"]()
    current: AuditLevel = row["level"]
    return current


def set_level(level: AuditLevel, actor: str | None) -> Plan[AuditLevel]:
    """Write those of this level from now on; the level until now."""
    (row,) = yield _SQL["set_level"](level=level, actor=actor)
    before: AuditLevel = row["level"]
    return before
