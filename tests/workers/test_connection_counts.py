"""How many connections a worker opens: the numbers of docs/deployment.md."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

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


@pytest.mark.parametrize(("effects", "most"), [(False, BUSY), (True, BUSY_WITH_EFFECTS)])
async def test_connections_of_a_worker_of_ten_queues(
    direct_dsn: str, db: Any, effects: bool, most: int
) -> None:
    counts: list[int] = []

    async def watch() -> None:
        while True:
            counts.append(await db.fetchval(COUNT))
            await asyncio.sleep(0.02)

    async with Worker([Payer], dsn=direct_dsn, queues=dict.fromkeys(QUEUES, 10)) as worker:
        await asyncio.sleep(2)
        assert 1 < await db.fetchval(COUNT) <= IDLE
        watching = asyncio.ensure_future(watch())
        refs = await worker.insert_all(
            [Spec(Payer, effects, queue=queue) for queue in QUEUES for _ in range(40)]
        )
        ended = await worker.wait_all(refs, timeout=timedelta(seconds=60))
        watching.cancel()
    assert all(instance.is_finished for instance in ended)
    assert IDLE < max(counts) <= most if effects else max(counts) <= most
