"""Procrastinate, with its psycopg connector."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from importlib.metadata import version

from procrastinate import App, JobContext, PsycopgConnector, RetryStrategy

from .adapter import LIMIT, Adapter, is_failing, main, progress

CONCURRENCY = 30
POOL = 20
BATCH = 1000
POLL = 0.05
"""No notification tells a worker that a lock is free."""


class Procrastinate(Adapter):
    """It fetches and finishes jobs one by one. Finished jobs are deleted: that is cheaper than to keep them."""

    version = version("procrastinate")
    settings = (
        f"concurrency={CONCURRENCY}, pool max_size={POOL}, delete_jobs=always, listen_notify=True, "
        f"fetch_job_polling_interval={POLL}"
    )
    tasks = ("noop", "suspend", "flaky", "limited", "probe")
    pending = (
        "select exists (select from procrastinate_jobs where id > 0)"  # rows of `fill` have negative ids
    )
    fill = """
        insert into procrastinate_jobs (id, task_name, queue_name, status, args)
        select -number, 'noop', 'default', 'succeeded', '{"value": 0}' from generate_series(1, :rows) as number"""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        logging.disable()
        self._app = App(connector=PsycopgConnector(conninfo=dsn, min_size=2, max_size=POOL))
        _register(self._app)

    async def install(self) -> None:
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()
        await self._app.close_async()

    async def open(self) -> None:
        await self._app.open_async()

    async def insert(self, task: str, values: Sequence[float]) -> None:
        if task == "limited":
            # Jobs with the same lock run one at a time, so LIMIT locks run LIMIT at once.
            for number in range(LIMIT):
                jobs = [{"value": value} for value in values[number::LIMIT]]
                await self._app.tasks[task].configure(lock=f"limited{number}").batch_defer_async(*jobs)
            return
        for first in range(0, len(values), BATCH):
            jobs = [{"value": value} for value in values[first : first + BATCH]]
            await self._app.tasks[task].batch_defer_async(*jobs)

    async def insert_one(self, task: str, value: float) -> None:
        await self._app.tasks[task].defer_async(value=value)

    async def work(self, task: str) -> None:
        await self._app.open_async()
        await self._app.run_worker_async(
            concurrency=CONCURRENCY,
            delete_jobs="always",
            fetch_job_polling_interval=POLL,
            install_signal_handlers=False,
        )


def _register(app: App) -> None:
    @app.task(name="noop")
    async def noop(value: int) -> None:
        progress.done += 1

    @app.task(name="suspend")
    async def suspend(value: int) -> None:
        await asyncio.sleep(0)
        progress.done += 1

    @app.task(name="flaky", pass_context=True, retry=RetryStrategy(max_attempts=2, wait=0))
    async def flaky(context: JobContext, value: int) -> None:
        if context.job.attempts == 0 and is_failing(value):
            raise RuntimeError("the first attempt fails")
        progress.done += 1

    @app.task(name="limited")
    async def limited(value: int) -> None:
        progress.done += 1

    @app.task(name="probe")
    async def probe(value: float) -> None:
        progress.started(value)


if __name__ == "__main__":
    main(Procrastinate)
