"""Register workers, list workers and queues, and control queues at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from ..operations import QueueControl, QueueStatus, WorkerInfo
from .migrate import LATEST
from .plan import Call, Plan, Row, statements

__all__ = [
    "Override",
    "WorkerRow",
    "announce",
    "list_workers",
    "overrides",
    "pause_queue",
    "queues",
    "resume_queue",
    "set_queue",
    "unconfirmed",
    "withdraw",
]

_SQL = statements("workers.sql")
# The most rows counted per queue: a few milliseconds. Above it the exact number does not matter.
_MAX_COUNT: Final = 10_000


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker registers. The fields are the parameters of the statement."""

    name: str
    host: str
    pid: int
    version: str
    queues: list[str]
    prefixes: list[str]
    leaves_unknown: bool
    fsms: list[str]
    fsm_versions: list[int]
    fsm_steps: str = "[]"
    """JSON: for each machine, the steps at which it runs rows."""
    schema_version: int = LATEST


class Override(msgspec.Struct, frozen=True):
    """The run-time settings of a queue."""

    paused_at: datetime | None = None
    """When it was paused; identifies the pause. `None`: not paused."""
    concurrency: int | None = None


def announce(
    row: WorkerRow,
    alive_for: timedelta,
    *,
    is_draining: bool = False,
    paused: Mapping[str, datetime] | None = None,
) -> Plan[None]:
    """Register a worker, or renew its registration.

    Args:
        row: what it registers.
        alive_for: how long it counts as live without a renewal.
        is_draining: whether it takes no more work.
        paused: the pauses that it confirms, `paused_at` by queue: it starts nothing from these queues.
    """
    confirmed = paused or {}
    yield _SQL["announce"](
        **msgspec.structs.asdict(row),
        alive_for=alive_for,
        is_draining=is_draining,
        paused_queues=list(confirmed),
        paused_since=list(confirmed.values()),
    )


def withdraw(name: str) -> Plan[None]:
    """Deregister a worker."""
    yield _SQL["withdraw"](name=name)


def list_workers() -> Plan[Sequence[WorkerInfo]]:
    """Live workers, and those that have ended recently."""
    return [_worker(row) for row in (yield _SQL["workers"]())]


def overrides() -> Plan[Mapping[str, Override]]:
    """The run-time settings of all queues, by name."""
    rows = yield _SQL["overrides"]()
    return {row["name"]: Override(row["paused_at"], row["concurrency"]) for row in rows}


def queues() -> Plan[Sequence[QueueStatus]]:
    """All queues, with the number of waiting instances."""
    return [QueueStatus(**row) for row in (yield _SQL["queues"](most=_MAX_COUNT))]


def pause_queue(name: str, actor: str | None, reason: str | None = None) -> Plan[QueueControl]:
    """Pause a queue: workers start nothing from it."""
    return (yield from _control(_SQL["pause_queue"](name=name, reason=reason, actor=actor)))


def unconfirmed(name: str) -> Plan[tuple[QueueControl, tuple[str, ...]]]:
    """Read a queue, and the live workers that have not confirmed its pause."""
    (row,) = yield _SQL["unconfirmed"](name=name)
    fields = {**row}
    workers = tuple(fields.pop("workers"))
    return QueueControl(**fields), workers


def resume_queue(name: str, actor: str | None, reason: str | None = None) -> Plan[QueueControl]:
    """Resume a queue."""
    return (yield from _control(_SQL["resume_queue"](name=name, reason=reason, actor=actor)))


def set_queue(
    name: str, concurrency: int | None, actor: str | None, reason: str | None = None
) -> Plan[QueueControl]:
    """Set how many executions of a queue each worker runs concurrently (`None`: as the worker is configured)."""
    return (
        yield from _control(_SQL["set_queue"](name=name, concurrency=concurrency, reason=reason, actor=actor))
    )


def _control(call: Call) -> Plan[QueueControl]:
    (row,) = yield call
    return QueueControl(**row)


def _worker(row: Row) -> WorkerInfo:
    return WorkerInfo(
        name=row["name"],
        host=row["host"],
        pid=row["pid"],
        version=row["version"],
        schema_version=row["schema_version"],
        started_at=row["started_at"],
        seen_at=row["seen_at"],
        is_live=row["is_live"],
        is_draining=row["is_draining"],
        queues=tuple(row["queues"]),
        prefixes=tuple(row["prefixes"]),
        machines=tuple(zip(row["fsms"], row["fsm_versions"], strict=True)),
    )
