"""Rows locked by a caller's open transaction do not block other rows."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from gen_durable import Context, Done, Machine, Outcome, Worker, step
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE, holds

HOLD = "select from gen_durable.gen_durable where id = any($1::bigint[]) for update"
# Well below a lock_timeout of 10 s, well above the time of a commit.
SOON = timedelta(seconds=5)


class Gated(Machine[str, str]):
    """Waits for the test if its state is "later"; ends at once otherwise."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    @step
    async def only(self, ctx: Context[str]) -> Outcome[str]:
        if ctx.state == "later":
            await self.may_end.wait()
        return Done(ctx.state)


async def test_locked_rows_do_not_stall_other_commits(durable_dsn: str, db: Any) -> None:
    """More locked rows than connections that wait for locks."""
    machine = Gated()
    user = await asyncpg.connect(durable_dsn)
    async with Worker([machine], dsn=durable_dsn, settings=CALM, queues={"default": 20}) as worker:
        held = [await worker.insert(machine, "later") for _ in range(12)]
        await holds(db, "select count(*) = 12 from gen_durable.gen_durable where status = 'executing'")
        async with user.transaction():
            await user.fetch(HOLD, [ref.id for ref in held])
            machine.may_end.set()
            for _ in range(3):
                assert (await worker.wait(await worker.insert(machine, "now"), timeout=SOON)).result == "now"
        assert {(await worker.wait(ref, timeout=PATIENCE)).result for ref in held} == {"later"}
    await user.close()


_DIED = """
update gen_durable.gen_durable
   set status = 'executing', lease_token = 5, locked_by = 'dead', lease_expires_at = now() + $3::text::interval,
       leased_at = now() - interval '2 min', parent_id = $2, parent_round = 1,
       concurrency_slot = case when concurrency_key is not null then 0 end
 where id = $1"""


@pytest.mark.clause("CRASH-7")
@pytest.mark.parametrize("what", ["the parent", "the next in line of its key"])
async def test_reaper_continues_past_a_locked_row(durable_dsn: str, db: Any, what: str) -> None:
    machine, settings = Gated(), msgspec.structs.replace(FAST, crash_limit=1)
    user = await asyncpg.connect(durable_dsn)
    async with Worker([machine], dsn=durable_dsn, settings=settings, queues={"other": 1}) as worker:
        at_rest, dead = [await worker.insert(machine, "now", concurrency_key="k") for _ in range(2)]
        stranger = await worker.insert(machine, "now")
        if what == "the parent":
            await db.execute(
                "update gen_durable.gen_durable set concurrency_key = null where id = $1", dead.id
            )
        # Lease it before the other row is gated: a worker repairs gated rows of a free key at once.
        await db.execute(_DIED, dead.id, at_rest.id if what == "the parent" else None, "1 hour")
        await db.execute("update gen_durable.gen_durable set gated = true where id = $1", at_rest.id)
        async with user.transaction():
            await user.fetch(HOLD, [at_rest.id])
            await db.execute(_DIED, dead.id, at_rest.id if what == "the parent" else None, "-1 minute")
            await db.execute(_DIED, stranger.id, None, "-1 minute")
            for _ in range(2):  # also the next one that is reaped
                assert (await worker.wait(stranger, timeout=SOON)).status == "failed"
                await worker.retry(stranger)
                await db.execute(_DIED, stranger.id, None, "-1 minute")
            assert await db.fetchval(
                "select status = 'executing' from gen_durable.gen_durable where id = $1", dead.id
            )
        assert (await worker.wait(dead, timeout=PATIENCE)).status == "failed"
    await user.close()


@pytest.mark.parametrize("count", [1, 30])
async def test_locked_key_holder_does_not_stall_picks(durable_dsn: str, db: Any, count: int) -> None:
    """Also when rows of that key are at the head of the queue and the worker has one free place."""
    machine = Gated()
    user = await asyncpg.connect(durable_dsn)
    async with Worker([machine], dsn=durable_dsn, settings=CALM, queues={"default": 2}) as worker:
        holder = await worker.insert(machine, "later", concurrency_key="k")
        await holds(db, "select status = 'executing' from gen_durable.gen_durable where id = $1", holder.id)
        async with user.transaction():
            await user.fetch(HOLD, [holder.id])
            line = [await worker.insert(machine, "now", concurrency_key="k") for _ in range(count)]
            for _ in range(3):
                assert (await worker.wait(await worker.insert(machine, "now"), timeout=SOON)).result == "now"
        machine.may_end.set()
        for ref in (holder, *line):
            assert (await worker.wait(ref, timeout=PATIENCE)).status == "done"
    await user.close()
