"""Run the engine's plans one by one: lease rows, build commit entries, commit them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from gen_durable._core.model import CommitEntry, CommitResult, Execution, NewInstance
from gen_durable._db import insert, pick
from gen_durable._db.commit import Recorder
from gen_durable._db.pool import Database
from gen_durable._runtime.database_status import DatabaseStatus
from gen_durable._runtime.flusher import Flusher
from gen_durable._runtime.wake import Wakes

LEASE = timedelta(seconds=60)
MACHINES = (["A", "B"], [1, 1])
RECORDER = Recorder("worker", "all")
_tokens = itertools.count(1)


def new(fsm: str = "A", **values: Any) -> NewInstance:
    """A row to insert, with defaults."""
    plain: dict[str, Any] = {
        "fsm": fsm,
        "version": 1,
        "step": "s",
        "state": "{}",
        "queue": "default",
        "priority": 0,
        "eligible_at": None,
        "delay": None,
        "concurrency_key": None,
        "correlation_key": None,
        "correlation_scope": None,
        "unique_key": None,
        "unique_scope": None,
        "max_attempts": None,
    }
    if "correlation_key" in values:
        plain["correlation_scope"] = "{runnable,executing,awaiting_signal,awaiting_children}"
    if "unique_key" in values:
        plain["unique_scope"] = "{runnable,executing,awaiting_signal,awaiting_children,done,failed,cancelled}"
    return NewInstance(**{**plain, **values})


async def inserted(database: Database, *rows: NewInstance) -> list[int]:
    return [answer.id for answer in await database.run(insert.insert(rows, autocommit=True))]


async def picked(database: Database, demand: int = 1000, queue: str = "default") -> list[Execution]:
    """Lease due rows, with a new token per pick."""
    plan = pick.pick(queue, pick.PickRequest(MACHINES, demand, next(_tokens), "worker", pick.Leases(LEASE)))
    return await database.run(pick.load((await database.run(plan)).executions))


def entry(execution: Execution, kind: Any, **fields: Any) -> CommitEntry:
    """A commit entry of this execution, as settle builds it."""
    return CommitEntry(execution=execution, kind=kind, **{"step": "t", **fields})


async def flushed(
    database: Database, entries: Sequence[CommitEntry], effects: Database | None = None
) -> list[CommitResult]:
    """Commit in one batch, through the flusher."""
    flusher = Flusher(database, database, effects or database, RECORDER, Wakes(), DatabaseStatus())
    async with asyncio.TaskGroup() as group:
        commits = [group.create_task(flusher.commit(one)) for one in entries]
        running = group.create_task(flusher.run())
        await asyncio.wait(commits)
        running.cancel()
    await flusher.finish()  # as a worker does when it stops
    return [commit.result() for commit in commits]
