"""Workers, queues, limits and checks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, get_args

from .._checks import checked_int, checked_name
from .._core.registry import Machines, Registry
from .._db import census as counted
from .._db import compatibility
from .._db import doctor as doctors
from .._db import limits as stored_limits
from .._db import machines as stored_machines
from .._db import stats as statistics
from .._db import workers as stored_workers
from .._db.plan import Plan
from .._dictionary import did_you_mean
from .._polling import Pace
from ..config import Settings
from ..errors import PauseTimeoutError, UsageError
from ..findings import Finding
from ..limits import Limit, LimitKind, checked_limits, limit_name
from ..operations import MachineInfo, QueueControl, QueueStatus, WorkerInfo
from ..refs import Insertable
from ..stats import Census, Stats
from .common import checked_actor, checked_reason, machine_name

__all__ = [
    "PauseConfirmation",
    "census",
    "check",
    "doctor",
    "limits",
    "machine_facts",
    "pause_confirmation",
    "pause_queue",
    "queues",
    "registered_machines",
    "remove_limit",
    "resume_queue",
    "set_limit",
    "set_queue",
    "stats",
    "stored_graphs",
    "workers",
]

_log: Final = logging.getLogger("gen_durable.client")
# Instances per group that `check` reads.
_SAMPLE: Final = 100


def doctor(settings: Settings) -> Plan[Sequence[Finding]]:
    """Check the database and its workers for problems."""
    return (yield from doctors.examine(settings))


def check(machines: Machines, *, every: bool) -> Plan[Sequence[Finding]]:
    """Find live instances that these machines cannot run."""
    registry = Registry(machines, makes_objects=False)
    if not len(registry):
        raise UsageError("check got no machine", "pass machine classes, jobs, or modules that define them")
    return (yield from compatibility.compare(registry, sample=None if every else _SAMPLE))


def registered_machines() -> Plan[Sequence[MachineInfo]]:
    """Return the machines that workers have registered."""
    return (yield from stored_machines.list_machines())


def machine_facts(name: str, version: int) -> Plan[stored_machines.RegisteredMachine]:
    """Return what a worker has registered about one version of a machine."""
    return (yield from stored_machines.registered(name, version))


def stored_graphs(name: str | None = None) -> Plan[Sequence[stored_machines.StoredGraph]]:
    """Return the graphs that workers have stored, of one machine or of all machines, by name and version."""
    return (yield from stored_machines.stored_graphs(name))


def stats() -> Plan[Stats]:
    """Compute statistics."""
    return (yield from statistics.stats())


def census(machine: Insertable[Any, Any] | str | None) -> Plan[Census]:
    """Count the instances of one machine, or of all machines, by version, state and step."""
    return (yield from counted.census(None if machine is None else machine_name(machine)))


def workers() -> Plan[Sequence[WorkerInfo]]:
    """Return live workers, and those that died recently."""
    return (yield from stored_workers.list_workers())


def queues() -> Plan[Sequence[QueueStatus]]:
    """Return all queues with their backlog."""
    return (yield from stored_workers.queues())


def pause_queue(
    name: str, reason: str | None, actor: str | None, warn: Callable[[str], None] = _log.warning
) -> Plan[tuple[QueueControl, set[str]]]:
    """Pause a queue. Calls `warn` if no worker serves it: the name may be misspelt."""
    checked_name(name, "the queue")
    known = {queue.name: queue for queue in (yield from stored_workers.queues())}
    workers = yield from stored_workers.list_workers()
    queue = yield from stored_workers.pause_queue(name, checked_actor(actor), checked_reason(reason))
    if not _is_served(known.get(name), workers):
        warn(
            f"no worker serves queue {name}{did_you_mean(name, [other for other in known if other != name])}"
        )
    return queue, set()


def _is_served(queue: QueueStatus | None, workers: Iterable[WorkerInfo]) -> bool:
    if queue is None or queue.workers:
        return queue is not None
    # A worker with prefixes runs instances in any queue.
    has_rows = queue.due or queue.future or queue.gated or queue.executing
    return bool(has_rows) and any(each.is_live and each.prefixes for each in workers)


def pause_confirmation(
    name: str, *, wait: bool, timeout: timedelta | None, has_conn: bool
) -> PauseConfirmation | None:
    """Return the poll for the confirmations of a pause; `None` without `wait`."""
    if wait:
        return PauseConfirmation(name, timeout, has_conn=has_conn)
    if timeout is not None:
        raise UsageError("timeout= is given without wait=True", "add wait=True or remove timeout")
    return None


class PauseConfirmation:
    """Polls until every live worker has confirmed the pause of a queue."""

    def __init__(self, name: str, timeout: timedelta | None, *, has_conn: bool) -> None:
        if has_conn:
            raise UsageError(
                "wait=True cannot be used with conn=: workers see the pause only after that transaction has committed",
                "remove one of them",
            )
        self._name = name
        self._pace = Pace(timeout)

    def plan(self) -> Plan[tuple[QueueControl, float | None]]:
        """Poll once: the queue, and the seconds until the next poll; `None` if all workers have confirmed.

        Raises:
            PauseTimeoutError: a live worker has not confirmed in time.
        """
        queue, workers = yield from stored_workers.unconfirmed(self._name)
        if not workers or not queue.is_paused:
            return queue, None
        pause = self._pace.pause()
        if pause is None:
            raise PauseTimeoutError(self._name, workers)
        return queue, pause


def resume_queue(name: str, reason: str | None, actor: str | None) -> Plan[tuple[QueueControl, set[str]]]:
    """Resume a queue."""
    checked_name(name, "the queue")
    return (yield from stored_workers.resume_queue(name, checked_actor(actor), checked_reason(reason))), {
        name
    }


def set_queue(
    name: str, concurrency: int | None, reason: str | None, actor: str | None
) -> Plan[tuple[QueueControl, set[str]]]:
    """Override the concurrency of a queue."""
    if concurrency is not None:
        checked_int(concurrency, "concurrency", 1, 2**31 - 1)
    checked_name(name, "the queue")
    queue = yield from stored_workers.set_queue(
        name, concurrency, checked_actor(actor), checked_reason(reason)
    )
    return queue, {name}


def limits() -> Plan[list[Limit]]:
    """Return all limits, by name."""
    return stored_limits.list_limits()


def set_limit(limit: Limit, reason: str | None, actor: str | None) -> Plan[None]:
    """Set a limit."""
    (checked,) = checked_limits([limit])
    return stored_limits.put(checked, checked_reason(reason), checked_actor(actor))


def remove_limit(name: str, kind: LimitKind | None, reason: str | None, actor: str | None) -> Plan[bool]:
    """Remove a limit, or the limits of both kinds; return whether there was one."""
    if kind not in (None, *get_args(LimitKind)):
        raise UsageError(f"{kind!r} is not a kind of limit", f"use one of {', '.join(get_args(LimitKind))}")
    return stored_limits.remove(limit_name(name), kind, checked_reason(reason), checked_actor(actor))
