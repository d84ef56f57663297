"""Compute statistics from bounded reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from ..instance import Status
from ..stats import FailureGroup, MachineStats, Stats, StepStats
from .plan import Plan, Row, Rows, statements
from .snapshots import now

__all__ = ["failures", "stats"]

_SQL = statements("stats.sql")
# The most rows that a statement counts per group, or samples.
_MOST: Final = 10_000
_PERIOD: Final = timedelta(minutes=5)
_ENDS: Final = (Status.DONE, Status.FAILED, Status.CANCELLED)


def stats() -> Plan[Stats]:
    """Compute statistics of all machines, in five statements."""
    at = yield from now()
    counts: defaultdict[tuple[str, int], dict[Status, int]] = defaultdict(dict)
    for row in (yield _SQL["counts"](most=_MOST)):
        counts[row["fsm"], row["fsm_version"]][Status(row["status"])] = row["count"]
    per_second = _rates((yield _SQL["ended"](period=_PERIOD, most=_MOST)))
    steps = yield _SQL["steps"](most=_MOST)
    failed = yield from failures()
    return Stats(
        at=at,
        machines=tuple(
            MachineStats(machine=fsm, version=version, counts=found)
            for (fsm, version), found in counts.items()
        ),
        per_second=per_second,
        steps=tuple(map(_step, steps)),
        failures=failed,
        sampled=sum(row["executions"] for row in steps),
    )


def failures() -> Plan[tuple[FailureGroup, ...]]:
    """Group the failures of a sample of the newest executions, most first. One statement."""
    return tuple(map(_failure, (yield _SQL["failures"](most=_MOST))))


def _rates(rows: Rows) -> Mapping[Status, float]:
    rates = dict.fromkeys(_ENDS, 0.0)
    for row in rows:
        period = _PERIOD if row["count"] < _MOST else row["now"] - row["since"]
        rates[Status(row["status"])] = row["count"] / max(period.total_seconds(), 1.0)
    return rates


def _step(row: Row) -> StepStats:
    return StepStats(
        machine=row["fsm"],
        step=row["step"],
        executions=row["executions"],
        p50=_duration(row["p50"]),
        p95=_duration(row["p95"]),
        longest=_duration(row["longest"]),
        not_committed=row["not_committed"],
    )


def _failure(row: Row) -> FailureGroup:
    return FailureGroup(
        machine=row["fsm"],
        step=row["step"],
        error=row["error"],
        continued=row["continued"],
        failed=row["failed"],
        last_at=row["last_at"],
        last_error=row["last_error"],
        instance_id=row["instance_id"],
    )


def _duration(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
