"""Workers, and what they run now."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

import msgspec

from ... import _verbs
from ..._db import dashboard, rollups, snapshots
from ..._db import workers as stored_workers
from ..._db.plan import Plan, Row
from ..._db.workers import Override
from ...operations import BlockedLoop, WorkerInfo
from ..board import Board
from ..endpoints import get
from ..live import topic

__all__ = ["workers"]

# Executing instances that are read, and those of one worker that are shown.
_MOST: Final = 5000
_SHOWN: Final = 10
_PERIOD: Final = timedelta(minutes=10)
_WIDTH: Final = timedelta(seconds=20)

WorkerState: TypeAlias = Literal["live", "draining", "blocked", "silent"]
"""`silent`: it stopped without a clean shutdown, or cannot reach the database."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that is executing."""

    id: int
    machine: str
    step: str
    queue: str
    leased_at: datetime | None
    attempt: int
    """The number of earlier attempts at the step."""
    correlation_key: str | None


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A queue, or a prefix of machines like `billing.*`, that a worker serves."""

    name: str
    is_prefix: bool
    capacity: int
    """How many of its executions the worker runs at once, without overrides."""
    concurrency: int | None
    """The override of an operator."""
    executing: int
    """Of the queue; those of a prefix are counted at their queues."""


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker and what it runs."""

    name: str
    state: WorkerState
    host: str
    pid: int
    version: str
    """Of gen_durable."""
    schema_version: int
    started_at: datetime
    seen_at: datetime
    """Its last heartbeat."""
    capacity: int
    """How many executions it runs at once."""
    executing: int
    serves: Sequence[Served]
    machines: Sequence[tuple[str, int]]
    """Names and versions."""
    blocked: BlockedLoop | None
    """What blocks its event loop."""
    rate: float
    """Executions per second, in the last complete minute."""
    history: Sequence[int]
    """Executions per 20 s of the last 10 minutes."""
    running: Sequence[Running]
    """The executions with the oldest leases, at most 10."""


class WorkersPage(msgspec.Struct, frozen=True, kw_only=True):
    """Registered workers: live ones first, then those that stopped without a clean shutdown."""

    at: datetime
    workers: Sequence[WorkerRow]


@get("/workers", summary="Workers and what they run")
async def workers(board: Board) -> WorkersPage:
    """Return workers and executing instances."""
    return await board.cached("workers", 1.0, _workers)


@topic("workers", every=2.0)
def _workers() -> Plan[WorkersPage]:
    at = yield from snapshots.now()
    found = yield from _verbs.workers()
    overrides = yield from stored_workers.overrides()
    by_worker: defaultdict[str | None, list[Row]] = defaultdict(list)
    for row in (yield from dashboard.running(_MOST)):
        by_worker[row["locked_by"]].append(row)
    ended: defaultdict[str, dict[datetime, int]] = defaultdict(dict)
    for row in (yield from rollups.workers(_PERIOD, _WIDTH)):
        ended[row["worker"]][row["at"]] = row["executions"]
    # The current interval is not complete.
    now = datetime.fromtimestamp(at.timestamp() // _WIDTH.total_seconds() * _WIDTH.total_seconds(), UTC)
    times = [now - number * _WIDTH for number in range(_PERIOD // _WIDTH, 0, -1)]
    rows = [
        _row(one, by_worker[one.name], overrides, [ended[one.name].get(time, 0) for time in times])
        for one in found
    ]
    return WorkersPage(at=at, workers=sorted(rows, key=lambda one: (one.state == "silent", one.name)))


def _row(
    one: WorkerInfo, running: Sequence[Row], overrides: Mapping[str, Override], history: Sequence[int]
) -> WorkerRow:
    counts = Counter(row["queue"] for row in running)
    total = sum(one.capacities.values())
    return WorkerRow(
        name=one.name,
        state=_state(one),
        host=one.host,
        pid=one.pid,
        version=one.version,
        schema_version=one.schema_version,
        started_at=one.started_at,
        seen_at=one.seen_at,
        capacity=total if one.capacity is None else min(one.capacity, total),
        executing=len(running),
        serves=[
            Served(
                name=name,
                is_prefix=name not in one.queues,
                capacity=capacity,
                concurrency=overrides[name].concurrency if name in overrides else None,
                executing=counts[name],
            )
            for name, capacity in one.capacities.items()
        ],
        machines=one.machines,
        blocked=one.blocked,
        rate=sum(history[-3:]) / (3 * _WIDTH.total_seconds()),
        history=history,
        running=[
            Running(
                id=row["id"],
                machine=row["fsm"],
                step=row["step"],
                queue=row["queue"],
                leased_at=row["leased_at"],
                attempt=row["attempt"],
                correlation_key=row["correlation_key"],
            )
            for row in running[:_SHOWN]
        ],
    )


def _state(one: WorkerInfo) -> WorkerState:
    if not one.is_live:
        return "silent"
    if one.blocked is not None:
        return "blocked"
    return "draining" if one.is_draining else "live"
