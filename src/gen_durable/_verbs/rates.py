"""What has been executed over time, from the counts of the workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, get_args

from .._core.histograms import quantile
from .._db import rollups
from .._db.plan import Plan, Row
from .._db.snapshots import now
from ..errors import UsageError
from ..rates import BacklogPoint, EdgeRates, Latency, MachineRates, RatePoint, Rates, StepRates, TimeRange
from ..refs import Insertable
from .common import machine_name

__all__ = ["edge_rates", "rates", "step_rates"]

# The period of each range, and the length of its intervals. Rows older than 2 hours are sums over 5 minutes.
_RANGES: Final[Mapping[str, tuple[timedelta, timedelta]]] = {
    "15m": (timedelta(minutes=15), timedelta(seconds=10)),
    "1h": (timedelta(hours=1), timedelta(minutes=1)),
    "6h": (timedelta(hours=6), timedelta(minutes=5)),
    "24h": (timedelta(hours=24), timedelta(minutes=15)),
    "7d": (timedelta(days=7), timedelta(hours=2)),
}
_FIGURES: Final = ("executions", "started", "done", "failed", "cancelled", "retried", "raised", "stopped")


def rates(
    range_: TimeRange, machine: Insertable[Any, Any] | str | None, version: int | None = None
) -> Plan[Rates]:
    """Return what one machine, or all machines, have executed, per interval. `version`: only of this one."""
    period, width = _range(range_)
    name = None if machine is None else machine_name(machine)
    at = yield from now()
    rows = yield from rollups.series(name or "", period, width, version)
    points = [_point(row, row["at"]) for row in rows]
    backlog = yield from rollups.backlog(name or "", period, width)
    machines = () if name is not None else (yield from rollups.machines(period))
    return Rates(
        at=at,
        machine=name,
        width=width,
        points=tuple(points),
        total=_sum(points, at - period),
        backlog=tuple(BacklogPoint(**row) for row in backlog),
        machines=tuple((row["fsm"], _point(row, at - period)) for row in machines),
    )


def step_rates(
    machine: Insertable[Any, Any] | str, range_: TimeRange, version: int | None = None
) -> Plan[MachineRates]:
    """Return what one machine has executed, by step and transition. `version`: the figures of steps are of this one."""
    period, _ = _range(range_)
    name = machine_name(machine)
    at = yield from now()
    rows = yield from rollups.steps(name, period)
    by_step: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if version in (None, row["version"]):
            by_step[row["step"]].append(row)
    steps = [_step(step, found) for step, found in by_step.items()]
    return MachineRates(
        at=at,
        machine=name,
        period=period,
        steps=tuple(sorted(steps, key=lambda each: -each.executions)),
        edges=tuple(map(_edge, rows)),
    )


def edge_rates(machine: str, period: timedelta) -> Plan[tuple[EdgeRates, ...]]:
    """Return what one machine has executed in this time, by transition."""
    return tuple(map(_edge, (yield from rollups.steps(machine, period))))


def _range(given: str) -> tuple[timedelta, timedelta]:
    found = _RANGES.get(given)
    if found is None:
        raise UsageError(f"the range is {given!r}", f"give one of {', '.join(get_args(TimeRange))}")
    return found


def _point(row: Row, at: datetime) -> RatePoint:
    return RatePoint(
        at=at,
        **{name: row[name] for name in _FIGURES},
        run=_latency(row["run"]),
        wait=_latency(row["wait"]),
    )


def _sum(points: Sequence[RatePoint], at: datetime) -> RatePoint:
    figures = {name: sum(getattr(point, name) for point in points) for name in _FIGURES}
    run, wait = (
        _latency(_added(getattr(point, name).histogram for point in points)) for name in ("run", "wait")
    )
    return RatePoint(at=at, **figures, run=run, wait=wait)


def _edge(row: Row) -> EdgeRates:
    return EdgeRates(
        step=row["step"],
        version=row["version"],
        outcome=row["outcome"],
        cause=row["cause"] or None,
        to_step=row["to_step"] or None,
        executions=row["executions"],
        started=row["started"],
    )


def _step(step: str, rows: Sequence[Row]) -> StepRates:
    return StepRates(
        step=step,
        executions=sum(row["executions"] for row in rows),
        raised=sum(row["executions"] for row in rows if row["cause"] not in ("", "stop")),
        stopped=sum(row["executions"] for row in rows if row["cause"] == "stop"),
        run=_latency(_added(row["run"] for row in rows)),
        wait=_latency(_added(row["wait"] for row in rows)),
    )


def _added(histograms: Iterable[Sequence[int | None]]) -> list[int]:
    total: list[int] = []
    for histogram in histograms:
        total += [0] * (len(histogram) - len(total))
        for place, count in enumerate(histogram):
            total[place] += count or 0
    return total


def _latency(counts: Sequence[int | None]) -> Latency:
    filled = [count or 0 for count in counts]
    while filled and not filled[-1]:
        filled.pop()
    return Latency(
        count=sum(filled),
        p50=quantile(filled, 0.5),
        p95=quantile(filled, 0.95),
        p99=quantile(filled, 0.99),
        histogram=tuple(filled),
    )
