"""Statistics of instances, steps and failures, as `client.stats` returns them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

import msgspec

from .instance import Status

__all__ = [
    "Awaited",
    "Census",
    "CensusGroup",
    "CensusState",
    "FailureGroup",
    "MachineStats",
    "Stats",
    "StepStats",
]

CensusState: TypeAlias = Literal[
    "due",
    "later",
    "retrying",
    "gated",
    "executing",
    "awaiting_signal",
    "awaiting_children",
    "done",
    "failed",
    "cancelled",
]
"""A status; `runnable` is divided into due now, due later, after a failed attempt (due or not), and waiting for a slot
of the concurrency key."""


class MachineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Instances of one version of a machine, by status. Soft-deleted ones are not counted."""

    machine: str
    version: int
    counts: Mapping[Status, int]
    """A count of 10,000 or more means "at least"."""


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """The sampled executions of one step."""

    machine: str
    step: str
    executions: int
    p50: timedelta | None = None
    """Median duration; `None` if no sampled execution has one."""
    p95: timedelta | None = None
    longest: timedelta | None = None
    not_committed: int = 0
    """Executions that did not commit a transition: retried, lost or released."""


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The sampled failures of one step with one kind of error."""

    machine: str
    step: str
    error: str
    """The class of the exception; `process died`; or the reason of a `Stop`, with `N` for numbers."""
    continued: int
    """Executions after which the instance went on: by a retry, `on_failure` or `handle`."""
    failed: int
    """Executions that ended their instance as failed."""
    last_at: datetime
    last_error: str | None = None
    instance_id: int
    """The instance of the last one."""


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics at one moment."""

    at: datetime
    machines: tuple[MachineStats, ...]
    per_second: Mapping[Status, float]
    """Instances that ended per second, by their status, over the last 5 minutes, or over the last 10,000 if these
    ended later. Instances that were deleted when they were done are not counted."""
    steps: tuple[StepStats, ...]
    """The steps with the largest p95 first."""
    failures: tuple[FailureGroup, ...]
    """The most frequent first."""
    sampled: int
    """How many executions `steps` and `failures` are computed of: those of the newest instances, at most 10,000 that
    committed a transition and 10,000 that did not."""


class Awaited(msgspec.Struct, frozen=True):
    """Instances that wait for the same signals."""

    signals: tuple[str, ...]
    """The names; any of them ends the wait."""
    sampled: int
    """How many instances of the sample wait for them."""


class CensusGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Instances of one version of a machine that are in one state at one step."""

    machine: str
    version: int
    step: str
    """The step that runs next or runs; of an ended instance, the last one."""
    state: CensusState
    count: int
    at_least: bool
    """Whether there may be more: counting stopped at its bound."""
    oldest: timedelta | None = None
    """How long the oldest has been in this state, of due ones how long it has been due. Of parked and failed instances,
    a sample of those with the lowest ids decides. `None` for those that are done or cancelled."""
    awaits: tuple[Awaited, ...] = ()
    """For what the instances of the sample wait, most first."""


class Census(msgspec.Struct, frozen=True, kw_only=True):
    """Where the instances are at one moment, as `client.census` returns it. Soft-deleted ones are not counted."""

    at: datetime
    groups: tuple[CensusGroup, ...]
