"""Write, fold and read what workers have counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Self

from .._core.histograms import BUCKETS
from .plan import Plan, Rows, statements

__all__ = [
    "FIGURES",
    "INTERVAL",
    "StepKey",
    "Total",
    "TotalKey",
    "backlog",
    "fold",
    "machines",
    "series",
    "step_series",
    "steps",
    "sweep",
    "workers",
    "write",
    "write_backlog",
]

_SQL = statements("rollups.sql")

INTERVAL: Final = 10
"""Seconds of an interval in which workers count."""
FIGURES: Final = ("done", "failed", "cancelled", "retried", "raised", "stopped")
"""What the totals of a machine count besides executions."""
# Rows are folded at this age, and kept that long.
_FOLDED_AFTER: Final = timedelta(hours=2)
_RETENTION: Final = timedelta(days=14)
# Rows that one statement folds or deletes.
_PAGE: Final = 2000
# The most rows counted per machine, queue, version and priority or status.
_MAX_COUNT: Final = 10_000


class StepKey(NamedTuple):
    """A row of `step_stats` of one worker and interval."""

    fsm: str
    version: int
    step: str
    outcome: str
    cause: str
    to_step: str


class TotalKey(NamedTuple):
    """What a row of `machine_stats` of one worker and interval counts: a version of a machine, or all machines."""

    fsm: str = ""
    version: int = 0


class Total(NamedTuple):
    """A row of `machine_stats` of one worker and interval."""

    counts: list[int]
    """Executions, first executions, and the two histograms."""
    figures: dict[str, int]

    def copy(self) -> Self:
        """Copy what may change."""
        return self._replace(counts=self.counts.copy(), figures=self.figures.copy())


def write(
    worker: str,
    incarnation: int,
    step_counts: Mapping[tuple[int, StepKey], Sequence[int]],
    totals: Mapping[tuple[int, TotalKey], Total],
) -> Plan[None]:
    """Write the counts of intervals, which begin at these seconds since 1970."""
    keys = [key for _, key in step_counts]
    rows = list(totals.values())
    yield _SQL["write"](
        worker=worker,
        incarnation=incarnation,
        step_fsms=[key.fsm for key in keys],
        step_buckets=_moments(bucket for bucket, _ in step_counts),
        versions=[key.version for key in keys],
        steps=[key.step for key in keys],
        outcomes=[key.outcome for key in keys],
        causes=[key.cause for key in keys],
        to_steps=[key.to_step for key in keys],
        **_columns("step_", step_counts.values()),
        fsms=[key.fsm for _, key in totals],
        fsm_versions=[key.version for _, key in totals],
        buckets=_moments(bucket for bucket, _ in totals),
        **_columns("", [row.counts for row in rows]),
        **{name: [row.figures[name] for row in rows] for name in FIGURES},
    )


def fold() -> Plan[bool]:
    """Fold a page of old rows; return whether there may be more."""
    (steps,) = yield _SQL["fold_steps"](age=_FOLDED_AFTER, most=_PAGE)
    (totals,) = yield _SQL["fold_machines"](age=_FOLDED_AFTER, most=_PAGE)
    return bool(max(steps["count"], totals["count"]) == _PAGE)


def sweep() -> Plan[bool]:
    """Delete a page of rows after their retention; return whether there may be more."""
    (row,) = yield _SQL["sweep"](age=_FOLDED_AFTER, retention=_RETENTION, most=_PAGE)
    return bool(row["count"] == _PAGE)


def write_backlog() -> Plan[None]:
    """Store how much there is to do, unless another worker does it in this interval. One statement."""
    yield _SQL["write_backlog"](most=_MAX_COUNT)


def series(fsm: str, period: timedelta, width: timedelta, version: int | None = None) -> Plan[Rows]:
    """Read totals of one machine per `width`, of all its versions or one; of all machines if the name is empty."""
    return (yield _SQL["series"](fsm=fsm, period=period, width=width, version=version))


def machines(period: timedelta) -> Plan[Rows]:
    """Read the totals of each machine."""
    return (yield _SQL["machines"](period=period))


def workers(period: timedelta, width: timedelta) -> Plan[Rows]:
    """Read how many executions each worker ended per `width`."""
    return (yield _SQL["workers"](period=period, width=width))


def backlog(fsm: str, period: timedelta, width: timedelta) -> Plan[Rows]:
    """Read the backlog of one machine per `width`; of all machines if the name is empty."""
    return (yield _SQL["backlog"](fsm=fsm, period=period, width=width))


def steps(fsm: str, period: timedelta) -> Plan[Rows]:
    """Read the executions of one machine by version, step, outcome, cause and next step."""
    return (yield _SQL["steps"](fsm=fsm, period=period))


def step_series(fsm: str, version: int, step: str, period: timedelta, width: timedelta) -> Plan[Rows]:
    """Read the executions of one step in one version per `width`."""
    return (yield _SQL["step_series"](fsm=fsm, version=version, step=step, period=period, width=width))


def _moments(seconds: Iterable[int]) -> list[datetime]:
    return [datetime.fromtimestamp(each, UTC) for each in seconds]


def _columns(prefix: str, rows: Iterable[Sequence[int]]) -> dict[str, list[Any]]:
    found = list(rows)
    return {
        f"{prefix}ns": [row[0] for row in found],
        f"{prefix}started": [row[1] for row in found],
        f"{prefix}runs": [_histogram(row[2 : 2 + BUCKETS]) for row in found],
        f"{prefix}waits": [_histogram(row[2 + BUCKETS :]) for row in found],
    }


def _histogram(counts: Sequence[int]) -> str:
    """A histogram without trailing zeros, as the text of a PostgreSQL array."""
    last = max((place for place, count in enumerate(counts, 1) if count), default=0)
    return "{" + ",".join(map(str, counts[:last])) + "}"
