"""The clock of a test: plans that shift the times of all rows in its database."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from .._db import lease as leases
from .._db import schedules
from .._db.plan import Plan
from ._sql import statements

__all__ = [
    "advance",
    "catch_up",
    "collapse",
    "due_queues",
    "end_leases",
    "fire_next",
    "fire_timeouts",
    "make_due",
]

_SQL = statements("clock.sql")


def advance(by: timedelta) -> Plan[None]:
    """Shift all stored times by `by` into the past."""
    yield _SQL["advance_instances"](by=by)
    yield _SQL["advance_buckets"](by=by)
    yield _SQL["advance_signals"](by=by)
    yield _SQL["advance_executions"](by=by)


def fire_timeouts() -> Plan[int]:
    """End every await that has a deadline; return how many there were."""
    yield _SQL["end_awaits"]()
    fired = 0
    while expired := (yield from leases.expire()):
        fired += len(expired)
    return fired


def fire_next(ahead: timedelta) -> Plan[bool]:
    """Fire the oldest due fire time, ignoring `missed=` of its schedule; return whether there was one."""
    while due := (yield from schedules.due(1, ahead=ahead)):
        if (yield from schedules.fire(due[0], due[0].first())) is not None:
            return True
    return False


def catch_up(ahead: timedelta) -> Plan[int]:
    """Fire all due schedules by their `missed=`; return the number of inserted instances."""
    count = 0
    while found := (yield from schedules.due(100, ahead=ahead)):
        for due in found:
            fired = yield from schedules.fire(due, due.firing())
            count += sum(fired.are_new) if fired else 0
    return count


def due_queues(machines: tuple[list[str], list[int]]) -> Plan[list[str]]:
    """Return the queues with due instances of these machines."""
    fsms, versions = machines
    rows = yield _SQL["due_queues"](fsms=fsms, versions=versions)
    return [row["queue"] for row in rows]


def collapse(machines: tuple[list[str], list[int]], since: datetime) -> Plan[bool]:
    """Make the next waiting instance of these machines due; return whether there was one."""
    fsms, versions = machines
    return bool((yield _SQL["collapse"](fsms=fsms, versions=versions, since=since)))


def end_leases(worker: str) -> Plan[tuple[list[int], list[int]]]:
    """Expire the leases of this worker. Return its instances, and those of other workers whose leases have expired."""
    rows = yield _SQL["end_leases"](worker=worker)
    return [row["id"] for row in rows if row["is_ours"]], [row["id"] for row in rows if not row["is_ours"]]


def make_due(ids: Collection[int]) -> Plan[None]:
    """Make these instances due now."""
    yield _SQL["make_due"](ids=list(ids))
