"""What has been executed over time, as `client.rates` and `client.step_rates` return it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal, TypeAlias

import msgspec

__all__ = [
    "BacklogPoint",
    "EdgeRates",
    "Latency",
    "MachineRates",
    "RatePoint",
    "Rates",
    "StepRates",
    "TimeRange",
]

TimeRange: TypeAlias = Literal["15m", "1h", "6h", "24h", "7d"]
"""How far back figures go: 15 minutes in points of 10 s, 1 hour of 1 min, 6 hours of 5 min, 24 hours of 15 min, 7 days
of 2 hours."""


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Durations, estimated from a histogram: off by a factor of 2 at most."""

    count: int
    p50: timedelta | None = None
    """`None` if there is no duration."""
    p95: timedelta | None = None
    p99: timedelta | None = None
    histogram: tuple[int, ...] = ()
    """The first element counts durations below 1 ms, element n those from 2 ** (n - 1) ms to below 2 ** n ms, and the
    last one, number 23, all longer ones. Trailing zeros are left out."""


class RatePoint(msgspec.Struct, frozen=True, kw_only=True):
    """What was executed in one interval."""

    at: datetime
    """When the interval begins."""
    executions: int
    started: int
    """Instances whose first execution ended."""
    done: int
    """Instances that an execution ended as done; the same for the next two. A cancel that meets no execution is not
    counted."""
    failed: int
    cancelled: int
    retried: int
    """Executions after which the same step runs again, also after a crash."""
    raised: int
    """Executions that failed by an exception, a timeout, or a crash, whether or not the instance went on."""
    stopped: int
    """Executions in which the code said so: `Stop`, `Discard`."""
    run: Latency
    """How long the steps took."""
    wait: Latency
    """How long they were due before they started. Chained steps do not count."""


class BacklogPoint(msgspec.Struct, frozen=True, kw_only=True):
    """How much there was to do: the largest figures of one interval. 10,000 or more means "at least"."""

    at: datetime
    due: int
    executing: int
    waiting: int
    """Instances that wait for signals or children."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What was executed, of one machine or of all."""

    at: datetime
    """The clock of the database."""
    machine: str | None
    width: timedelta
    """The length of an interval."""
    points: tuple[RatePoint, ...]
    """Oldest first. An interval without executions is left out."""
    total: RatePoint
    """The sum of the points."""
    backlog: tuple[BacklogPoint, ...]
    machines: tuple[tuple[str, RatePoint], ...] = ()
    """Of all machines: the sums of each, by name."""


class EdgeRates(msgspec.Struct, frozen=True, kw_only=True):
    """Executions of one step with the same outcome."""

    step: str
    version: int
    outcome: str
    """As in `ExecutionRecord.outcome`; `stale` if the lease was lost before the commit."""
    cause: str | None
    """As in `ExecutionRecord.cause`."""
    to_step: str | None
    """The step that the transition led to; `None` if it ended the instance, was aborted, or led to an undo step."""
    executions: int
    started: int = 0
    """Of them, the first executions of an instance."""


class StepRates(msgspec.Struct, frozen=True, kw_only=True):
    """The executions of one step, of all versions of its machine."""

    step: str
    executions: int
    raised: int
    """Executions that failed by an exception, a timeout, or a crash."""
    stopped: int
    """Executions in which the code said so: `Stop`, `Discard`."""
    run: Latency
    wait: Latency

    @property
    def failure_share(self) -> float:
        """The share of executions that failed other than by the code saying so."""
        return self.raised / self.executions if self.executions else 0.0


class MachineRates(msgspec.Struct, frozen=True, kw_only=True):
    """The executions of one machine by step and transition."""

    at: datetime
    machine: str
    period: timedelta
    steps: tuple[StepRates, ...]
    """The step with the most executions first."""
    edges: tuple[EdgeRates, ...]
    """By step; the most frequent first."""
