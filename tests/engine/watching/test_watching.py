"""Watches of instances whose workers are killed: no execution and no end is missed."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from gen_durable import AsyncClient, Change, ExecutionRecord, Spec, Status, Worker
from tests.engine.watching.walkers import Walker
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE
from tests.support.wire_proxy import Wire
from tests.support.worker_process import program


def executions(changes: list[Change[Any, Any]]) -> list[tuple[Any, ...]]:
    return [identity(one) for change in changes for one in change.executions]


def identity(one: ExecutionRecord) -> tuple[Any, ...]:
    return (one.attempt, one.step_seq, one.step, one.outcome)


@pytest.mark.clause("WATCH-1", "WATCH-2")
async def test_watch_misses_no_execution_of_killed_workers(durable_dsn: str) -> None:
    arguments = ("tests.engine.watching.walkers", durable_dsn, msgspec.json.encode(FAST).decode())
    async with AsyncClient(durable_dsn, settings=FAST) as client:
        walkers = await client.insert_all([Spec(Walker, 200 + n) for n in range(10)])
        seen: dict[int, list[Change[Any, Any]]] = {walker.id: [] for walker in walkers}
        wakes = asyncio.Semaphore(0)

        async def watch(id: int) -> None:
            async for change in client.watch(id):
                seen[id].append(change)
                wakes.release()

        async with asyncio.timeout(4 * PATIENCE.total_seconds()), asyncio.TaskGroup() as group:
            watching = [group.create_task(watch(id)) for id in seen]
            for _ in range(3):
                async with program(*arguments) as process:
                    for _ in range(60):
                        await wakes.acquire()
                    assert not all(one.done() for one in watching)
                    await process.kill()
            async with program(*arguments):
                await asyncio.wait(watching)
        lost = 0
        for id, changes in seen.items():
            assert [change.instance.status.is_terminal for change in changes].count(True) == 1
            assert changes[-1].instance.status is Status.DONE
            recorded = await client.executions(id)
            assert executions(changes) == [identity(one) for one in recorded]
            lost += sum(one.outcome == "lease" for one in recorded)
    assert lost > 0, "no worker was killed while it executed"


async def test_watched_instance_that_is_not_kept_is_read_to_its_end(durable_dsn: str, db: Any) -> None:
    class Short(Walker, keep=False):
        pass

    async with Worker([Short], dsn=durable_dsn, settings=CALM) as worker:
        short = await worker.insert(Short, 5)
        async with asyncio.timeout(PATIENCE.total_seconds()):
            changes = [change async for change in worker.watch(short)]
            assert changes[-1].instance.status is Status.DONE
            assert sum(len(change.executions) for change in changes) <= 5
            # The watch was its only reader.
            while await db.fetchval("select count(*) from gen_durable.gen_durable"):
                await asyncio.sleep(0.02)


@pytest.mark.clause("WATCH-4")
async def test_worker_without_watches_reads_no_changes(durable_dsn: str) -> None:
    with Wire(durable_dsn) as wire:
        async with Worker([Walker], dsn=wire.dsn, settings=CALM) as worker:
            await worker.insert_all([Spec(Walker, 6) for _ in range(20)])
            async with asyncio.timeout(PATIENCE.total_seconds()):
                while await worker.count(Walker, status=Status.DONE) < 20:
                    await asyncio.sleep(0.02)
    assert "changed" not in wire.sent
