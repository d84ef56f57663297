"""Register workers, list workers and queues, and control queues at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from .._running import Running
from ..findings import Finding
from ..operations import BlockedLoop, QueueControl, QueueStatus, WorkerInfo
from .migrate import LATEST
from .plan import Call, Plan, Row, statements

__all__ = [
    "Foreign",
    "Override",
    "WorkerRow",
    "announce",
    "blocked",
    "blocked_loop",
    "list_workers",
    "overrides",
    "pause_queue",
    "queues",
    "resume_queue",
    "set_queue",
    "unblocked",
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
    capacities: list[int]
    """For each queue, how many executions run at once."""
    capacity: int | None = None
    """How many executions of all queues run at once; `None`: no bound."""
    prefixes: list[str]
    prefix_capacities: list[int]
    """For each prefix, how many executions run at once."""
    leaves_unknown: bool
    fsms: list[str]
    fsm_versions: list[int]
    fsm_steps: str = "[]"
    """JSON: for each machine, the steps at which it runs rows."""
    fsm_digests: list[str] = []
    """For each machine, the digest of what it registers of it."""
    schema_version: int = LATEST


class Foreign(msgspec.Struct, frozen=True):
    """Whether other code has registered machines of a worker."""

    differs: bool
    is_orphaned: bool
    """No live worker runs that code."""


class Override(msgspec.Struct, frozen=True):
    """The run-time settings of a queue."""

    paused_at: datetime | None = None
    """When it was paused; identifies the pause. `None`: not paused."""
    concurrency: int | None = None


def announce(
    row: WorkerRow,
    alive_for: timedelta,
    *,
    in_flight: int = 0,
    is_draining: bool = False,
    paused: Mapping[str, datetime] | None = None,
) -> Plan[Foreign]:
    """Register a worker, or renew its registration; return whether other code has registered its machines.

    Args:
        row: what it registers.
        alive_for: how long it counts as live without a renewal.
        in_flight: how many executions it has leased.
        is_draining: whether it takes no more work.
        paused: the pauses that it confirms, `paused_at` by queue: it starts nothing from these queues.
    """
    confirmed = paused or {}
    (found,) = yield _SQL["announce"](
        **msgspec.structs.asdict(row),
        alive_for=alive_for,
        in_flight=in_flight,
        is_draining=is_draining,
        paused_queues=list(confirmed),
        paused_since=list(confirmed.values()),
    )
    return Foreign(**found)


def blocked(name: str, alive_for: timedelta, step: Running | None, duration: timedelta) -> Plan[None]:
    """Register that a step, or other code of the program, blocks the event loop of a worker; renew its registration."""
    facts = {} if step is None else {"machine": step.fsm, "step": step.step, "id": step.id}
    text = msgspec.json.encode(facts).decode()
    yield _SQL["blocked"](name=name, blocked=text, duration=duration, alive_for=alive_for)


def unblocked(name: str, alive_for: timedelta) -> Plan[None]:
    """Register that the event loop of a worker is free, and renew its registration."""
    yield _SQL["blocked"](name=name, blocked=None, duration=timedelta(0), alive_for=alive_for)


def blocked_loop(text: str | None) -> BlockedLoop | None:
    """Read the column `blocked`."""
    return None if text is None else msgspec.json.decode(text, type=BlockedLoop)


def store_incompatible(name: str, findings: Sequence[Finding]) -> Plan[None]:
    """Register what a worker has found at its start: instances that it cannot run."""
    yield _SQL["store_incompatible"](name=name, findings=msgspec.json.encode(findings).decode())


def incompatible() -> Plan[Sequence[tuple[str, datetime, Finding]]]:
    """Read what live workers have found at their start, with the name and the start of the worker."""
    rows = yield _SQL["incompatible"]()
    return [
        (row["worker"], row["started_at"], msgspec.json.decode(row["finding"], type=Finding)) for row in rows
    ]


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
        capacities={
            **dict(zip(row["queues"], row["capacities"], strict=True)),
            **{
                f"{prefix}*": capacity
                for prefix, capacity in zip(row["prefixes"], row["prefix_capacities"], strict=True)
            },
        },
        capacity=row["capacity"],
        in_flight=row["in_flight"],
        machines=tuple(zip(row["fsms"], row["fsm_versions"], strict=True)),
        blocked=blocked_loop(row["blocked"]),
    )
