"""PgQueuer, with the asyncpg driver."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from importlib.metadata import version

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.errors import RetryRequested
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from .adapter import LIMIT, Adapter, is_failing, main, progress

BATCH = 500


class PgQueuerAdapter(Adapter):
    """It deletes finished jobs and keeps a row per status change in a log table."""

    version = version("pgqueuer")
    settings = (
        f"batch_size={BATCH}, asyncpg pool, uvloop, durability=balanced (jobs logged, log table unlogged)"
    )
    tasks = ("noop", "suspend", "flaky", "limited", "probe")
    pending = "select exists (select from pgqueuer where id > 0)"  # rows of `fill` have negative ids
    fill = """
        insert into pgqueuer (id, priority, execute_after, status, entrypoint)
        select -number, 0, now() + interval '1 year', 'queued', 'noop' from generate_series(1, :rows) as number"""

    async def install(self) -> None:
        pool = await asyncpg.create_pool(self.dsn, min_size=1)
        await Queries(AsyncpgPoolDriver(pool)).install()
        await pool.close()

    async def open(self) -> None:
        pool = await asyncpg.create_pool(self.dsn, min_size=1)
        self._queries = Queries(AsyncpgPoolDriver(pool))

    async def insert(self, task: str, values: Sequence[float]) -> None:
        payloads: list[bytes | None] = [repr(value).encode() for value in values]
        await self._queries.enqueue([task] * len(values), payloads, [0] * len(values))

    async def insert_one(self, task: str, value: float) -> None:
        await self._queries.enqueue(task, repr(value).encode())

    async def work(self, task: str) -> None:
        logging.disable()
        pool = await asyncpg.create_pool(self.dsn, min_size=2)
        runner = PgQueuer(AsyncpgPoolDriver(pool))

        @runner.entrypoint("noop")
        async def noop(job: Job) -> None:
            progress.done += 1

        @runner.entrypoint("suspend")
        async def suspend(job: Job) -> None:
            await asyncio.sleep(0)
            progress.done += 1

        @runner.entrypoint("flaky")
        async def flaky(job: Job) -> None:
            if job.attempts == 0 and is_failing(int(job.payload or b"")):
                raise RetryRequested(timedelta(0))
            progress.done += 1

        if task == "limited":  # a limit makes the dequeue statement of all jobs more expensive

            @runner.entrypoint("limited", concurrency_limit=LIMIT)
            async def limited(job: Job) -> None:
                progress.done += 1

        @runner.entrypoint("probe")
        async def probe(job: Job) -> None:
            progress.started(float(job.payload or b""))

        await runner.run(batch_size=BATCH)


if __name__ == "__main__":
    main(PgQueuerAdapter, uvloop.new_event_loop)
