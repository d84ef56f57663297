"""The overview: what all machines have executed, and how much there is to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from ... import _verbs
from ..._db import search
from ..._db.plan import Plan
from ...rates import BacklogPoint, Latency, RatePoint, Rates, TimeRange
from ..board import Board
from ..endpoints import get
from ..live import topic

__all__ = ["intervals", "overview", "per_minute"]

_MOST: Final = 10_000
_MINUTE: Final = timedelta(minutes=1)
# Workers write their counts up to 10 s after the end of an interval.
_LATE: Final = timedelta(seconds=10)
# An interval that has not ended is shown from this age on.
_SOON: Final = timedelta(seconds=30)
# The backlog is stored every 15 s, unless there is nothing to do.
_BACKLOG: Final = timedelta(seconds=30)


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in each interval; null: there was none."""

    p50: Sequence[timedelta | None]
    p95: Sequence[timedelta | None]
    p99: Sequence[timedelta | None]


class MachineTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine executed in the whole range."""

    started: int
    done: int
    failed: int


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """All machines in a range of time. Lists have an element for each interval, the oldest first."""

    at: datetime
    since: datetime
    """When the first interval began."""
    width: timedelta
    """The length of an interval."""
    started: Sequence[float]
    """Per minute; the same for the next two."""
    done: Sequence[float]
    failed: Sequence[float]
    run: Latencies
    """How long the steps took."""
    wait: Latencies
    """How long they were due before they started."""
    due: Sequence[int]
    """The most at a time; the same for the next one."""
    waiting: Sequence[int]
    period: timedelta
    total: RatePoint
    """The sum of the range."""
    due_now: int
    """Instances that could run. A count of 10,000 means "at least"; the same for the next two."""
    executing_now: int
    waiting_now: int
    """Instances that wait for signals or children."""
    machines: Mapping[str, MachineTotals]


@get("/overview", summary="What all machines executed, and how much there is to do")
async def overview(board: Board, *, range: TimeRange = "15m") -> Overview:
    """Return figures of a range of time."""
    return await board.cached(f"overview:{range}", 2.0, lambda: _overview(range))


@topic("overview", every=5.0, takes=True)
def _overview(range_: TimeRange) -> Plan[Overview]:
    found = yield from _verbs.rates(range_, None)
    queues = yield from _verbs.queues()
    waiting, _ = yield from search.count_up_to(
        search.Filter(statuses=["awaiting_signal", "awaiting_children"]), _MOST
    )
    moments = intervals(found)
    points = {point.at: point for point in found.points}
    shown = [points.get(moment) for moment in moments]
    backlog = _filled(found, moments)
    return Overview(
        at=found.at,
        since=moments[0],
        width=found.width,
        started=per_minute(found, moments, {point.at: point.started for point in found.points}),
        done=per_minute(found, moments, {point.at: point.done for point in found.points}),
        failed=per_minute(found, moments, {point.at: point.failed for point in found.points}),
        run=_latencies([point.run if point else None for point in shown]),
        wait=_latencies([point.wait if point else None for point in shown]),
        due=[point.due if point else 0 for point in backlog],
        waiting=[point.waiting if point else 0 for point in backlog],
        period=found.at - found.total.at,
        total=found.total,
        due_now=sum(queue.due for queue in queues),
        executing_now=sum(queue.executing for queue in queues),
        waiting_now=waiting,
        machines={
            name: MachineTotals(started=one.started, done=one.done, failed=one.failed)
            for name, one in found.machines
        },
    )


def intervals(found: Rates) -> list[datetime]:
    """Return the beginnings of all intervals whose counts are known."""
    width = found.width
    past = found.total.at.timestamp() % width.total_seconds()
    first = datetime.fromtimestamp(round(found.total.at.timestamp() - past), found.at.tzinfo)
    least = min(width + _LATE, _SOON)
    return [first + n * width for n in range(int((found.at - least - first) / width) + 1)]


def per_minute(found: Rates, moments: Sequence[datetime], counts: Mapping[datetime, int]) -> list[float]:
    """Return what was counted in each interval, per minute. The current one is not over: its rate so far."""
    covered = (min(found.width, found.at - moment - _LATE / 2) for moment in moments)
    return [
        round(counts.get(moment, 0) * _MINUTE / each, 2)
        for moment, each in zip(moments, covered, strict=True)
    ]


def _filled(found: Rates, moments: Sequence[datetime]) -> list[BacklogPoint | None]:
    """The backlog in each interval: that of the one before if none was stored in between."""
    points = {point.at: point for point in found.backlog}
    last: BacklogPoint | None = None
    filled = []
    for moment in moments:
        last = points.get(moment, last)
        filled.append(last if last is not None and moment - last.at < _BACKLOG else None)
    return filled


def _latencies(found: Sequence[Latency | None]) -> Latencies:
    return Latencies(
        p50=[one.p50 if one else None for one in found],
        p95=[one.p95 if one else None for one in found],
        p99=[one.p99 if one else None for one in found],
    )
