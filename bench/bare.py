"""The bare loop: pick and commit statements of the engine in batches, on two connections.

It runs no user code, renews no leases and returns no results, so its rate is the upper bound for these statements.
"""

from __future__ import annotations

import asyncio
import secrets
from datetime import timedelta

import msgspec

from gen_durable._core.model import CommitEntry, Execution, NewInstance
from gen_durable._db import commit as commits
from gen_durable._db import insert as inserts
from gen_durable._db import pick as picks
from gen_durable._db.pool import Database

__all__ = ["bare_inserts", "bare_loop"]

BATCH = 500
_LEASES = picks.Leases(timedelta(minutes=5))
_RECORDER = commits.Recorder("bare", "all")


async def bare_inserts(database: Database, rows: list[NewInstance]) -> None:
    """Insert prepared rows with one statement."""
    await database.run(inserts.insert(rows, autocommit=True))


async def bare_loop(database: Database, fsm: str, queue: str, steps: int) -> int:
    """Pick and commit until the queue is empty, each row `steps` times. Returns the number of rows."""
    picked: asyncio.Queue[list[Execution]] = asyncio.Queue(2)

    async def pick_all() -> None:
        while True:
            request = picks.PickRequest(([fsm], [1]), BATCH, secrets.randbits(62), "bare", _LEASES)
            executions = (await database.run(picks.pick(queue, request))).executions
            await picked.put(executions)
            if not executions:
                return

    count = 0
    async with asyncio.TaskGroup() as group:
        group.create_task(pick_all())
        while executions := await picked.get():
            count += len(executions)
            for number in range(steps):
                entries = [_entry(one, number, is_last=number == steps - 1) for one in executions]
                await database.run(commits.commit_plain(commits.in_lock_order(entries), _RECORDER))
    return count


def _entry(execution: Execution, number: int, *, is_last: bool) -> CommitEntry:
    return CommitEntry(
        execution=msgspec.structs.replace(execution, step_seq=number),
        kind="done" if is_last else "continue",
        step="run",
        payload="1",
    )
