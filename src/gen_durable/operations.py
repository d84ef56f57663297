"""What operators see and say: workers, queues, findings of the doctor, and why an instance does not run."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

__all__ = ["QueueControl", "QueueStatus", "WorkerInfo"]


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, as it has told of itself."""

    name: str
    """As in `Instance.locked_by`."""
    host: str
    pid: int
    version: str
    """Of gen_durable."""
    schema_version: int
    """The schema version that its code was written for."""
    started_at: datetime
    seen_at: datetime
    is_live: bool
    """Whether it was there a short while ago. One that is not is dead or cut off from the database."""
    is_draining: bool
    """It finishes what it has and takes no more."""
    queues: tuple[str, ...]
    prefixes: tuple[str, ...]
    machines: tuple[tuple[str, int], ...]
    """Names and versions."""


class QueueControl(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for a queue in every worker from now on."""

    name: str
    is_paused: bool
    paused_at: datetime | None = None
    paused_by: str | None = None
    concurrency: int | None = None
    """How many at once in each worker; `None`: as the worker was told."""


class QueueStatus(QueueControl, frozen=True, kw_only=True):
    """A queue, and how much waits in it. Figures of 10,000 and above mean "at least"."""

    due: int
    """Instances that could run now."""
    future: int
    """Instances whose time has not come."""
    gated: int
    """Instances whose concurrency key is busy."""
    executing: int
    oldest: timedelta | None = None
    """How long the one that has been due for longest has waited."""
    workers: int
    """How many live workers serve it by its name."""
    is_registered: bool
    """Whether a machine, a live worker or an operator has named it; otherwise only the inserts of producers have."""
