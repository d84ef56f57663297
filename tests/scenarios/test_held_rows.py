"""Rows that somebody's open transaction holds: they wait, and nobody else does."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg

from gen_durable import Context, Done, Machine, Outcome, Worker, step
from tests.scenarios.support import CALM, PATIENCE, holds

HOLD = "select from gen_durable.gen_durable where id = any($1::bigint[]) for update"
# Far below the ten seconds of an ordinary lock_timeout, far above what a commit takes.
SOON = timedelta(seconds=5)


class Gated(Machine[str, str]):
    """Ends when it is told to; the one that is told nothing ends at once."""

    def __init__(self) -> None:
        self.told = asyncio.Event()

    @step
    async def only(self, ctx: Context[str]) -> Outcome[str]:
        if ctx.state == "later":
            await self.told.wait()
        return Done(ctx.state)


async def test_many_held_rows_do_not_stall_the_commits_of_others(durable_dsn: str, db: Any) -> None:
    """More of them than there are connections to wait on."""
    machine = Gated()
    user = await asyncpg.connect(durable_dsn)
    async with Worker([machine], dsn=durable_dsn, settings=CALM, queues={"default": 20}) as worker:
        held = [await worker.insert(machine, "later") for _ in range(12)]
        await holds(db, "select count(*) = 12 from gen_durable.gen_durable where status = 'executing'")
        async with user.transaction():
            await user.fetch(HOLD, [ref.id for ref in held])
            machine.told.set()
            for _ in range(3):
                assert (await worker.wait(await worker.insert(machine, "now"), timeout=SOON)).result == "now"
        assert {(await worker.wait(ref, timeout=PATIENCE)).result for ref in held} == {"later"}
    await user.close()
