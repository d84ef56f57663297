"""DBOS Transact, with asynchronous workflows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from dbos import DBOS, DBOSClient

from .adapter import LIMIT, STEPS, Adapter, is_failing, main, progress

POOL = 20
POLL = 0.05


class Dbos(Adapter):
    """Every job is a workflow that a queue starts."""

    version = version("dbos")
    settings = (
        f"async workflows, sys_db_pool_size={POOL}, polling_interval_sec={POLL}, worker_concurrency=100"
    )
    tasks = ("noop", "suspend", "flaky", "limited", "chain", "fan", "probe")
    has_batches = False
    pending = """
        select exists (select from dbos.workflow_status
                        where status in ('ENQUEUED', 'PENDING') and queue_name in ('bench', 'limited'))"""
    fill = """
        insert into dbos.workflow_status (workflow_uuid, status, name, queue_name, executor_id, application_version,
                                          application_id, created_at, updated_at)
        select 'filled-' || number, 'SUCCESS', 'noop', 'bench', '1', '1', 'bench', 0, 0
          from generate_series(1, :rows) as number"""

    async def install(self) -> None:
        self._launch()
        await DBOS.register_queue_async("bench", worker_concurrency=100, polling_interval_sec=POLL)
        await DBOS.register_queue_async("limited", global_concurrency=LIMIT, polling_interval_sec=POLL)

    async def open(self) -> None:
        self._client = DBOSClient(system_database_url=self.dsn)

    async def insert(self, task: str, values: Sequence[float]) -> None:
        # DBOS enqueues one workflow per call; this only prepares measurements.
        waiting = iter(values)

        async def enqueue_some() -> None:
            for value in waiting:
                await self.insert_one(task, value)

        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(enqueue_some())

    async def insert_one(self, task: str, value: float) -> None:
        queue = "limited" if task == "limited" else "bench"
        await self._client.enqueue_async(
            {"queue_name": queue, "workflow_name": task, "app_version": "1"}, value
        )

    async def work(self, task: str) -> None:
        self._launch()

    def _launch(self) -> None:
        DBOS(
            config={
                "name": "bench",
                "system_database_url": self.dsn,
                "sys_db_pool_size": POOL,
                "application_version": "1",
                "executor_id": str(os.getpid()),
                "log_level": "CRITICAL",
                "enable_otlp": False,
            }
        )
        DBOS.launch()


@DBOS.workflow(name="noop")
async def noop(value: int) -> None:
    """Return at once."""
    progress.done += 1


@DBOS.workflow(name="suspend")
async def suspend(value: int) -> None:
    """Yield to the event loop once."""
    await asyncio.sleep(0)
    progress.done += 1


_failed: set[float] = set()


@DBOS.step(retries_allowed=True, max_attempts=3, interval_seconds=0.001)
async def failing_step(value: int) -> None:
    """Fail once, for 1 % of the jobs."""
    if is_failing(value) and value not in _failed:
        _failed.add(value)
        raise RuntimeError("the first attempt fails")


@DBOS.workflow(name="flaky")
async def flaky(value: int) -> None:
    """DBOS retries steps, not workflows."""
    await failing_step(value)
    progress.done += 1


@DBOS.workflow(name="limited")
async def limited(value: int) -> None:
    """Run in the queue with a limit."""
    progress.done += 1


@DBOS.step()
async def one_step(value: int) -> int:
    """Return at once."""
    return value


@DBOS.workflow(name="chain")
async def chain(value: int) -> None:
    """Run durable steps."""
    for number in range(STEPS):
        await one_step(number)
    progress.done += 1


@DBOS.workflow(name="leaf")
async def leaf(value: int) -> int:
    """A child."""
    return value


@DBOS.workflow(name="fan")
async def fan(value: int) -> None:
    """Start children and wait for all of them."""
    handles: list[Any] = [await DBOS.enqueue_workflow_async("bench", leaf, number) for number in range(value)]
    for handle in handles:
        await handle.get_result()
    progress.done += 1


@DBOS.workflow(name="probe")
async def probe(value: float) -> None:
    """Record the latency."""
    progress.started(value)


if __name__ == "__main__":
    main(Dbos)
