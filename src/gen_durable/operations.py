"""Workers and queues, as `client.workers` and `client.queues` return them."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

__all__ = ["QueueControl", "QueueStatus", "WorkerInfo"]


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, as it registered itself with its last heartbeat."""

    name: str
    """The name, as in `Instance.locked_by`."""
    host: str
    pid: int
    version: str
    """The version of gen_durable."""
    schema_version: int
    """The schema version that its code was written for."""
    started_at: datetime
    seen_at: datetime
    is_live: bool
    """Whether its last heartbeat is recent. Otherwise it has crashed, or cannot reach the database."""
    is_draining: bool
    """Whether it is shutting down: it finishes running steps and leases nothing new."""
    queues: tuple[str, ...]
    prefixes: tuple[str, ...]
    machines: tuple[tuple[str, int], ...]
    """Names and versions of its machines."""


class QueueControl(msgspec.Struct, frozen=True, kw_only=True):
    """The run-time settings of a queue; they apply to every worker."""

    name: str
    is_paused: bool
    paused_at: datetime | None = None
    paused_by: str | None = None
    concurrency: int | None = None
    """Concurrency in each worker; `None`: the `queues=` of the worker applies."""


class QueueStatus(QueueControl, frozen=True, kw_only=True):
    """A queue and its counts. A count of 10,000 or more means "at least"."""

    due: int
    """Instances that could run now."""
    future: int
    """Instances that are not due yet."""
    gated: int
    """Instances that wait for a slot of their concurrency key."""
    executing: int
    oldest: timedelta | None = None
    """How long the oldest due instance has waited."""
    workers: int
    """How many live workers serve the queue by name."""
    is_registered: bool
    """Whether a machine, a live worker or an operator names this queue. Otherwise only inserts name it."""
