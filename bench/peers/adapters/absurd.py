"""Absurd, with its asynchronous client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from .adapter import STEPS, Adapter, is_failing, main, progress

WORKERS = 10
BATCH = 50
POLL = 0.05


class Absurd(Adapter):
    """A worker has one connection and commits task by task, so a process runs several workers."""

    version = version("absurd-sdk")
    settings = f"{WORKERS} workers per process, each with concurrency={BATCH}, poll_interval={POLL}"
    tasks = ("noop", "suspend", "flaky", "chain", "fan", "probe")
    has_batches = False
    pending = "select exists (select from absurd.r_bench where state in ('pending', 'running', 'sleeping'))"
    fill = """
        with task as (
          insert into absurd.t_bench (task_id, task_name, params, state, enqueue_at)
          select uuidv7(), 'noop', '0', 'completed', now() from generate_series(1, :rows) returning task_id)
        insert into absurd.r_bench (run_id, task_id, attempt, state, available_at, completed_at, created_at)
        select uuidv7(), task_id, 1, 'completed', now(), now(), now() from task"""

    async def install(self) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:
            await conn.execute(BUNDLED_SCHEMA_SQL)
            for queue in ("bench", "children"):
                await conn.execute("select absurd.create_queue(%s)", [queue])

    async def open(self) -> None:
        self._conn = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)
        self._app = AsyncAbsurd(self._conn, queue_name="bench")

    async def insert(self, task: str, values: Sequence[float]) -> None:
        # The SDK inserts one task per call; this only prepares measurements.
        rows = [json.dumps(value) for value in values]
        await self._conn.execute(
            "select absurd.spawn_task('bench', %s, value::jsonb, '{}') from unnest(%s::text[]) as value",
            [task, rows],
        )

    async def insert_one(self, task: str, value: float) -> None:
        await self._app.spawn(task, value, queue="bench")

    async def work(self, task: str) -> None:
        queues = ["bench"] * WORKERS + (["children"] * WORKERS if task == "fan" else [])
        async with asyncio.TaskGroup() as group:
            for number, queue in enumerate(queues):
                app = AsyncAbsurd(self.dsn, queue_name=queue)
                if queue == "bench":
                    _register_jobs(app)
                    _register_workflows(app)
                else:
                    _register_child(app)
                group.create_task(
                    app.start_worker(worker_id=str(number), concurrency=BATCH, poll_interval=POLL)
                )


_failed: set[float] = set()


def _register_jobs(app: AsyncAbsurd) -> None:
    @app.register_task(name="noop")
    async def noop(params: Any, ctx: Any) -> None:
        progress.done += 1

    @app.register_task(name="suspend")
    async def suspend(params: Any, ctx: Any) -> None:
        await asyncio.sleep(0)
        progress.done += 1

    @app.register_task(name="flaky")
    async def flaky(params: Any, ctx: Any) -> None:
        if is_failing(params) and params not in _failed:
            _failed.add(params)
            raise RuntimeError("the first attempt fails")
        progress.done += 1

    @app.register_task(name="probe")
    async def probe(params: Any, ctx: Any) -> None:
        progress.started(params)


def _register_workflows(app: AsyncAbsurd) -> None:
    @app.register_task(name="chain")
    async def chain(params: Any, ctx: Any) -> None:
        async def one_step() -> int:
            return 1

        for number in range(STEPS):
            await ctx.step(f"step{number}", one_step)
        progress.done += 1

    @app.register_task(name="fan")
    async def fan(params: Any, ctx: Any) -> None:
        children = [await app.spawn("leaf", number, queue="children") for number in range(params)]
        for child in children:
            await ctx.await_task_result(child["task_id"], queue_name="children")
        progress.done += 1


def _register_child(app: AsyncAbsurd) -> None:
    """Children need a queue of their own: a task cannot wait for one of the same queue."""

    @app.register_task(name="leaf")
    async def leaf(params: Any, ctx: Any) -> int:
        return 1


if __name__ == "__main__":
    main(Absurd)
