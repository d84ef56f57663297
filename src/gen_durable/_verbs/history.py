"""The outbox and the audit log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

from .._checks import checked_id, checked_int, checked_name
from .._core.codec import decode
from .._db import audit as audits
from .._db import dashboard, outbox, snapshots
from .._db.plan import Plan
from ..audit import AuditEvent
from ..config import AuditLevel
from ..errors import NoTargetError, UsageError
from ..events import EventRecord, EventState
from ..refs import Target
from .common import MAX_PAGE, checked_actor, checked_reason, resolve

__all__ = [
    "AuditWho",
    "audit",
    "audit_level",
    "audit_log",
    "audit_page",
    "check_events",
    "event_of",
    "event_page",
    "events",
    "newest_audit",
    "number_of",
    "replay",
    "set_audit",
]

AuditWho: TypeAlias = Literal["all", "people", "trouble"]
"""`people`: events with an actor. `trouble`: attempts of the engine that failed."""

# How many numbers of events a page of the dashboard reads.
_WINDOW: Final = 100_000


def events(
    target: Target | None,
    sink: str | None,
    state: EventState | None,
    before: EventRecord | int | None,
    limit: int,
) -> Plan[list[EventRecord]]:
    """Return a page of events of the outbox, newest first."""
    check_events(sink, state, limit)
    instance_id: int | None = None
    if target is not None:
        instance_id = yield from resolve(target, "list events")
    rows = yield from outbox.list_events(
        {
            "instance_id": instance_id,
            "sink": sink,
            "type": None,
            "state": state,
            "since": None,
            "before": None if before is None else number_of(before),
        },
        limit,
    )
    return [event_of(row) for row in rows]


def event_page(
    *,
    instance_id: int | None,
    sink: str | None,
    type_: str | None,
    state: EventState | None,
    before: int | None,
    limit: int,
) -> Plan[tuple[list[EventRecord], int | None]]:
    """Return events of the outbox that match, newest first, and where the next page begins; `None`: there is none.

    A page reads at most 100,000 events, so it may have fewer than `limit` although older ones match. Dead letters,
    events of an instance, and up to 10,000 pending events have indexes of their own.
    """
    check_events(sink, state, limit)
    if before is None:
        before = (yield from dashboard.last_event()) + 1
    since: int | None = max(checked_id(before) - _WINDOW, 1)
    if (
        instance_id is not None
        or state == "dead"
        or (state == "pending" and (yield from dashboard.few_pending()))
    ):
        since = None
    wanted = {
        "instance_id": instance_id,
        "sink": sink,
        "type": type_,
        "state": state,
        "since": since,
        "before": before,
    }
    rows = yield from outbox.list_events(wanted, limit)
    return [event_of(row) for row in rows], _next(rows, limit, since or 1)


def check_events(sink: str | None, state: EventState | None, limit: int) -> None:
    """Check the filters of a list of events."""
    if sink is not None:
        checked_name(sink, "the name of a sink")
    if state not in (None, "pending", "published", "dead"):
        raise UsageError(f"{state!r} is not an event state", "use pending, published or dead")
    checked_int(limit, "the limit of events", 1, MAX_PAGE)


def event_of(row: Mapping[str, Any]) -> EventRecord:
    """Build an event from its row."""
    return EventRecord(
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


def audit_page(
    *,
    who: AuditWho,
    actor: str | None,
    event: str | None,
    subject: str | None,
    instance_id: int | None,
    before: int | None,
    limit: int,
) -> Plan[tuple[list[AuditEvent], int | None]]:
    """Return audit events that match, newest first, and where the next page begins; `None`: there is none.

    A page reads at most 100,000 events, so it may have fewer than `limit` although older ones match.
    """
    checked_int(limit, "the limit of audit events", 1, MAX_PAGE)
    if before is None:
        before = (yield from dashboard.last_audit_event()) + 1
    since = max(checked_id(before) - _WINDOW, 1)
    wanted = {"who": who, "actor": actor, "event": event, "subject": subject}
    rows = yield from dashboard.audit(wanted, instance_id, since, before, limit)
    return [_audit_event(row) for row in rows], _next(rows, limit, since if instance_id is None else 1)


def _next(rows: Sequence[Mapping[str, Any]], limit: int, since: int) -> int | None:
    """Where the next page begins: after the last row, or after what was read without reaching the limit."""
    if len(rows) == limit:
        return int(rows[-1]["id"])
    return since if since > 1 else None


def newest_audit(id: int, limit: int) -> Plan[list[AuditEvent]]:
    """Return the newest audit events of an instance, oldest first."""
    return [_audit_event(row) for row in reversed((yield from audits.newest(id, limit)))]


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
            [number_of(one) for one in chosen], checked_reason(reason), checked_actor(actor)
        )
    )


def number_of(event: EventRecord | int) -> int:
    """Return the number of an event."""
    return event.number if isinstance(event, EventRecord) else checked_id(event)
