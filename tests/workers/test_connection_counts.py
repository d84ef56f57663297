"""How many connections a worker opens: the numbers of docs/guides/deploying.md."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from gen_durable import Context, Done, Machine, Next, Outcome, Spec, Sql, Worker, step

QUEUES = [f"queue-{number}" for number in range(10)]
IDLE = 9
BUSY = 20
BUSY_WITH_EFFECTS = 40
COUNT = """
    select count(*) from pg_stat_activity
    where datname = current_database() and application_name = 'gen_durable' and pid <> pg_backend_pid()
"""


class Payer(Machine[bool, bool]):
    """Pays by an effect, if its state says so."""

    @step
    async def first(self, ctx: Context[bool]) -> Outcome[bool]:
        effect = Sql("select pg_sleep(0.02)") if ctx.state else None
        return Next(self.second, ctx.state, effect=effect)

    @step
    async def second(self, ctx: Context[bool]) -> Outcome[bool]:
        return Done(ctx.state)


async def test_connections_of_a_worker_of_ten_queues(direct_dsn: str, db: Any) -> None:
    counts: list[int] = []

    async def watch() -> None:
        while True:
            counts.append(await db.fetchval(COUNT))
            await asyncio.sleep(0.02)

    async with Worker([Payer], dsn=direct_dsn, queues=dict.fromkeys(QUEUES, 10)) as worker:
        await asyncio.sleep(1)
        assert 1 < await db.fetchval(COUNT) <= IDLE
        watching = asyncio.ensure_future(watch())
        for effects, least, most in ((False, 1, BUSY), (True, IDLE, BUSY_WITH_EFFECTS)):
            counts.clear()
            refs = await worker.insert_all(
                [Spec(Payer, effects, queue=queue) for queue in QUEUES for _ in range(40)]
            )
            ended = await worker.wait_all(refs, timeout=timedelta(seconds=60))
            assert all(instance.is_finished for instance in ended)
            assert least < max(counts) <= most, effects
        watching.cancel()
