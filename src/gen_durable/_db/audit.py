"""Read audit events, and get or set the audit level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..config import AuditLevel
from .plan import Plan, Row, statements

__all__ = ["events", "give_reason", "latest", "level", "newest", "set_level"]

_SQL = statements("audit.sql")


def events(instance_id: int, after: int, demand: int) -> Plan[Sequence[Row]]:
    """Read the audit events of one instance, oldest first."""
    return (yield _SQL["events"](instance_id=instance_id, after=after, demand=demand))


def latest(before: int | None, demand: int) -> Plan[Sequence[Row]]:
    """Read the latest audit events, newest first."""
    return (yield _SQL["latest"](before=before, demand=demand))


def newest(instance_id: int, demand: int) -> Plan[Sequence[Row]]:
    """Read the newest audit events of one instance, newest first."""
    return (yield _SQL["newest"](instance_id=instance_id, demand=demand))


def give_reason(
    instance_id: int, event: str, reason: str | None, actor: str | None, data: Mapping[str, object]
) -> Plan[None]:
    """Add actor and reason to the `created` or `signalled` event of this transaction. Needs a transaction."""
    yield _SQL["give_reason"](
        instance_id=instance_id,
        event=event,
        reason=reason,
        actor=actor,
        data=msgspec.json.encode(data).decode(),
    )


def level() -> Plan[AuditLevel]:
    """Read the level."""
    (row,) = yield _SQL["level"]()
    current: AuditLevel = row["level"]
    return current


def set_level(level: AuditLevel, actor: str | None, reason: str | None = None) -> Plan[AuditLevel]:
    """Set the level; return the previous one."""
    (row,) = yield _SQL["set_level"](level=level, reason=reason, actor=actor)
    before: AuditLevel = row["level"]
    return before
