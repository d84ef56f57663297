"""The outbox and the audit log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from .._checks import checked_id, checked_int
from .._core.codec import decode
from .._db import audit as audits
from .._db import outbox, snapshots
from .._db.plan import Plan
from ..audit import AuditEvent
from ..config import AuditLevel
from ..errors import NoTargetError, UsageError
from ..events import EventRecord, EventState
from ..refs import Target
from .common import MAX_PAGE, checked_actor, checked_reason, resolve

__all__ = ["audit", "audit_level", "audit_log", "events", "replay", "set_audit"]


def events(
    target: Target | None,
    sink: str | None,
    state: EventState | None,
    before: EventRecord | int | None,
    limit: int,
) -> Plan[list[EventRecord]]:
    """Return a page of events of the outbox, newest first."""
    if state not in (None, "pending", "published", "dead"):
        raise UsageError(f"{state!r} is not an event state", "use pending, published or dead")
    checked_int(limit, "the limit of events", 1, MAX_PAGE)
    instance_id: int | None = None
    if target is not None:
        instance_id = yield from resolve(target, "list events")
    rows = yield from outbox.list_events(
        {
            "instance_id": instance_id,
            "sink": sink,
            "state": state,
            "before": None if before is None else _number(before),
        },
        limit,
    )
    return [
        EventRecord(
            number=row["id"],
            id=f"{row['instance_id']}:{row['step_seq']}:{row['n']}",
            instance_id=row["instance_id"],
            sink=row["sink"],
            type=row["type"],
            subject=row["subject"],
            data=decode(row["data"], Any, f"the data of event '{row['type']}'"),
            state=row["state"],
            attempts=row["attempts"],
            last_error=row["last_error"],
            created_at=row["created_at"],
            next_at=row["next_at"] if row["state"] == "pending" else None,
            published_at=row["published_at"],
        )
        for row in rows
    ]


def audit(target: Target, after: AuditEvent | int | None, limit: int) -> Plan[list[AuditEvent]]:
    """Return the audit events of an instance, oldest first."""
    checked_int(limit, "the limit of audit events", 1, MAX_PAGE)
    if after is not None and not isinstance(after, AuditEvent):
        after = checked_id(after)
    number = after.number if isinstance(after, AuditEvent) else after or 0
    id = yield from resolve(target, "audit")
    rows = yield from audits.events(id, number, limit)
    if not rows and not number and (yield from snapshots.get(id)) is None:
        raise NoTargetError(id, "audit")
    return [_audit_event(row) for row in rows]


def audit_log(before: AuditEvent | int | None, limit: int) -> Plan[list[AuditEvent]]:
    """Read the latest audit events of everything, newest first."""
    checked_int(limit, "the limit of audit events", 1, MAX_PAGE)
    if before is not None:
        before = before.number if isinstance(before, AuditEvent) else checked_id(before)
    return [_audit_event(row) for row in (yield from audits.latest(before, limit))]


def _audit_event(row: Mapping[str, Any]) -> AuditEvent:
    return AuditEvent(
        number=row["id"],
        instance_id=row["instance_id"],
        subject=row["subject"],
        event=row["event"],
        actor=row["actor"],
        login=row["login"],
        reason=row["reason"],
        data={} if row["data"] is None else decode(row["data"], dict[str, Any], "an audit event"),
        at=row["created_at"],
    )


def audit_level() -> Plan[AuditLevel]:
    """Return the audit level."""
    return audits.level()


def set_audit(level: AuditLevel, reason: str | None, actor: str | None) -> Plan[tuple[AuditLevel, set[str]]]:
    """Set the audit level; return the previous one."""
    if level not in get_args(AuditLevel):
        raise UsageError(f"{level!r} is not an audit level", f"use one of {', '.join(get_args(AuditLevel))}")
    return (yield from audits.set_level(level, checked_actor(actor), checked_reason(reason))), set()


def replay(chosen: Iterable[EventRecord | int], reason: str | None, actor: str | None) -> Plan[int]:
    """Publish events again that were published or are dead; return how many."""
    return (
        yield from outbox.replay(
            [_number(one) for one in chosen], checked_reason(reason), checked_actor(actor)
        )
    )


def _number(event: EventRecord | int) -> int:
    return event.number if isinstance(event, EventRecord) else checked_id(event)
