"""Workers and queues, as `client.workers` and `client.queues` return them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

__all__ = ["BlockedLoop", "MachineInfo", "QueueControl", "QueueStatus", "WorkerInfo"]


class BlockedLoop(msgspec.Struct, frozen=True, kw_only=True):
    """What blocks the event loop of a worker: no other `async def` step of it runs."""

    machine: str | None = None
    """The machine; `None` if other code of the program blocks it."""
    step: str | None = None
    id: int | None = None
    """The instance."""
    since: datetime

    def __str__(self) -> str:
        by = f"{self.machine} {self.id}, step {self.step}" if self.machine else "code outside of its steps"
        return f"blocked since {self.since.isoformat(sep=' ', timespec='seconds')} by {by}"


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
    capacities: Mapping[str, int] = {}
    """How many executions of each queue, and of each prefix (`billing.*`), it runs at once, without overrides."""
    capacity: int | None = None
    """How many executions it runs at once; `None`: only the capacities of its queues and prefixes count."""
    in_flight: int = 0
    """How many executions it had leased at the last heartbeat: running, waiting to run, or being committed."""
    machines: tuple[tuple[str, int], ...]
    """Names and versions of its machines."""
    blocked: BlockedLoop | None = None
    """What blocks its event loop for longer than `loop_blocked_after`; `None`: nothing."""


class MachineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a machine or job, as a worker has registered it."""

    name: str
    version: int
    queue: str
    steps: tuple[str, ...]
    """Its steps, in the order of the class."""
    signals: tuple[str, ...]
    """The signals that it declares."""
    streams: tuple[str, ...]
    """The streams that it declares."""
    registered_at: datetime
    """When a worker registered it, or registered a change."""
    workers: tuple[str, ...]
    """The live workers that run it, by name."""


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
