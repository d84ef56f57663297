"""Time as the test wants it: plans that move the rows of the test's own database."""

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
    """Let so much time pass. Nothing runs, and no await ends, until somebody looks."""
    yield _SQL["advance_instances"](by=by)
    yield _SQL["advance_buckets"](by=by)
    yield _SQL["advance_signals"](by=by)
    yield _SQL["advance_executions"](by=by)


def fire_timeouts() -> Plan[int]:
    """End every await that has a deadline, however far away; how many there were."""
    yield _SQL["end_awaits"]()
    fired = 0
    while expired := (yield from leases.expire()):
        fired += len(expired)
    return fired


def fire_next(ahead: timedelta) -> Plan[bool]:
    """Fire the one slot that is due longest, whatever its schedule says of slots that were missed; if there is one."""
    while due := (yield from schedules.due(1, ahead=ahead)):
        if (yield from schedules.fire(due[0], due[0].first())) is not None:
            return True
    return False


def catch_up(ahead: timedelta) -> Plan[int]:
    """Fire all that is due, by the schedules' policies; how many instances that makes."""
    count = 0
    while found := (yield from schedules.due(100, ahead=ahead)):
        for due in found:
            fired = yield from schedules.fire(due, due.firing())
            count += sum(fired.are_new) if fired else 0
    return count


def due_queues(machines: tuple[list[str], list[int]]) -> Plan[list[str]]:
    """Where there is work for these machines now."""
    fsms, versions = machines
    rows = yield _SQL["due_queues"](fsms=fsms, versions=versions)
    return [row["queue"] for row in rows]


def collapse(machines: tuple[list[str], list[int]], since: datetime) -> Plan[bool]:
    """Skip the time until the next instance of these machines is due; whether any has waited since then."""
    fsms, versions = machines
    return bool((yield _SQL["collapse"](fsms=fsms, versions=versions, since=since)))


def end_leases(worker: str) -> Plan[tuple[list[int], list[int]]]:
    """Let the leases of a dead process run out: the instances that it had, and those of others whose lease ran out."""
    rows = yield _SQL["end_leases"](worker=worker)
    return [row["id"] for row in rows if row["is_ours"]], [row["id"] for row in rows if not row["is_ours"]]


def make_due(ids: Collection[int]) -> Plan[None]:
    """Let these instances wait no longer."""
    yield _SQL["make_due"](ids=list(ids))
