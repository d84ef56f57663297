"""Reads of the dashboard, and of searches for groups of failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from .plan import Plan, Row, statements

__all__ = [
    "audit",
    "dead_sinks",
    "few_pending",
    "last_audit_event",
    "last_event",
    "newest_failed",
    "newest_raised",
    "published",
    "recent_runs",
    "running",
    "server",
    "settings",
    "sinks",
    "tables",
]

_SQL = statements("dashboard.sql")
# The most rows that a count reads.
_MOST: Final = 10_000


def recent_runs(most: int) -> Plan[Sequence[Row]]:
    """Read the newest instances of each schedule."""
    return (yield _SQL["recent_runs"](most=most))


def running(most: int) -> Plan[Sequence[Row]]:
    """Read the executing instances."""
    return (yield _SQL["running"](most=most))


def sinks() -> Plan[Sequence[Row]]:
    """Count pending events by sink."""
    return (yield _SQL["sinks"](most=_MOST))


def dead_sinks() -> Plan[Sequence[Row]]:
    """Count dead letters by sink."""
    return (yield _SQL["dead_sinks"](most=_MOST))


def published(period: timedelta) -> Plan[Sequence[Row]]:
    """Read how many events were published during a period, and how fast, by sink."""
    return (yield _SQL["published"](period=period, most=_MOST))


def last_event() -> Plan[int]:
    """Read the largest number of an event of the outbox."""
    (row,) = yield _SQL["last_event"]()
    number: int = row["number"]
    return number


def newest_failed(ids: Sequence[int], most: int) -> Plan[Sequence[Row]]:
    """Read the instances that failed last: of these ids, and of those that no machine gives an expiry."""
    return (yield _SQL["newest_failed"](ids=ids, most=most))


def newest_raised(most: int) -> Plan[Sequence[Row]]:
    """Read failed attempts that were tried again, of the newest instances."""
    return (yield _SQL["newest_raised"](most=most))


def few_pending() -> Plan[bool]:
    """Check whether few events are pending, so that all of them may be read."""
    (row,) = yield _SQL["few_pending"](most=_MOST)
    return bool(row["are_few"])


def last_audit_event() -> Plan[int]:
    """Read the largest number of an audit event."""
    (row,) = yield _SQL["last_audit_event"]()
    number: int = row["number"]
    return number


def audit(
    wanted: Mapping[str, object], instance_id: int | None, since: int, before: int, demand: int
) -> Plan[Sequence[Row]]:
    """Read audit events, newest first. `wanted` has `who`, `actor`, `event` and `subject`; `None`: any."""
    if instance_id is not None:
        return (yield _SQL["audit_of"](**wanted, instance_id=instance_id, before=before, demand=demand))
    return (yield _SQL["audit"](**wanted, since=since, before=before, demand=demand))


def settings(names: Sequence[str]) -> Plan[Mapping[str, str]]:
    """Read settings of the server."""
    return {row["name"]: row["value"] for row in (yield _SQL["settings"](names=names))}


def tables(schema: str) -> Plan[Sequence[Row]]:
    """Read the sizes of the tables."""
    return (yield _SQL["tables"](schema=schema))


def server() -> Plan[Row]:
    """Read facts about the server."""
    (row,) = yield _SQL["server"]()
    return row
