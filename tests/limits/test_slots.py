"""Concurrency limits: at most this many executions of a key, over all workers."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import asyncpg
import pytest

from gen_durable import AsyncClient, ConcurrencyLimit, Spec, Worker
from gen_durable._db.admission import gate
from gen_durable._db.commit import commit
from gen_durable._db.pool import Database
from gen_durable._db.runner import run_asyncpg
from tests.limits.conservation import most_at_once
from tests.limits.machines import Job
from tests.limits.workers import finished, worker_process
from tests.support.engine_plans import RECORDER, entry, flushed, inserted, new, picked


async def busy(db: Any) -> int:
    return int(
        await db.fetchval("select count(*) from gen_durable.gen_durable where concurrency_slot is not null")
    )


@pytest.mark.clause("FLOW-1", "FLOW-2")
async def test_key_has_as_many_slots_as_its_limit(durable_dsn: str, db: Any) -> None:
    limits = [ConcurrencyLimit("tenant", 3)]
    async with Worker([Job], dsn=durable_dsn, limits=limits) as worker:
        for key in ("tenant:1", "tenant", "other:1"):
            await worker.insert_all([Spec(Job, 0.02, concurrency_key=key) for _ in range(9)])
        await finished(worker, 27)
    assert await most_at_once(db, "tenant:1") == 3
    assert await most_at_once(db, "tenant") == 3
    assert await most_at_once(db, "other:1") == 1
    assert await busy(db) == 0


@pytest.mark.clause("FLOW-3")
async def test_raised_limit_admits_waiting_rows(durable_dsn: str, client: AsyncClient, db: Any) -> None:
    async with Worker([Job], dsn=durable_dsn, queues={"default": 20}):
        await client.insert_all([Spec(Job, 0.4, concurrency_key="tenant") for _ in range(12)])
        async with asyncio.timeout(10):
            while not await db.fetchval("select count(*) from gen_durable.gen_durable where gated"):
                await asyncio.sleep(0.01)
        assert await busy(db) == 1
        await client.set_limit(ConcurrencyLimit("tenant", 8))
        async with asyncio.timeout(10):
            while await busy(db) < 8:
                await asyncio.sleep(0.01)
        await client.set_limit(ConcurrencyLimit("tenant", 4))
        await finished(client, 12)
    assert await most_at_once(db, "tenant") == 8
    assert not await db.fetchval("select count(*) from gen_durable.gen_durable where gated")


@pytest.mark.clause("FLOW-4")
async def test_slots_of_killed_workers_are_reused_and_never_shared(
    direct_dsn: str, client: AsyncClient, db: Any
) -> None:
    await client.set_limit(ConcurrencyLimit("tenant", 4))
    await client.insert_all([Spec(Job, 0.03, concurrency_key="tenant") for _ in range(60)])
    async with worker_process(direct_dsn, 0.6) as first:
        async with asyncio.timeout(30):
            while not await db.fetchval(
                "select count(*) from gen_durable.gen_durable where concurrency_slot is not null and locked_by like $1",
                f"%:{first.pid}:%",
            ):
                await asyncio.sleep(0.005)
        async with worker_process(direct_dsn, 0.6):
            first.send(signal.SIGKILL)
            await first.ends()
            await finished(client, 60)
    assert await most_at_once(db, "tenant") <= 4
    assert await busy(db) == 0
    assert not await db.fetchval("select count(*) from gen_durable.gen_durable where gated")


@pytest.mark.clause("FLOW-4")
@pytest.mark.parametrize("side", ["gate", "release"])
async def test_kill_around_gating_leaves_no_gated_row_behind(
    direct_dsn: str, client: AsyncClient, db: Any, side: str
) -> None:
    """The connection is cut between the last statement and COMMIT."""
    await client.set_limit(ConcurrencyLimit("k", 2))
    async with await Database.open(direct_dsn, "gen_durable") as database:
        await inserted(database, *[new(concurrency_key="k") for _ in range(6)])
        (first, *_) = held = await picked(database, 2)
        assert len(held) == 2
        if side == "release":
            await database.run_in_transaction(gate(["k"]))
        plan = gate(["k"]) if side == "gate" else commit([entry(first, "done", payload="1")], RECORDER)
        victim = await asyncpg.connect(direct_dsn)
        transaction = victim.transaction()
        await transaction.start()
        await run_asyncpg(victim, plan, "gen_durable")
        assert await db.fetchval("select pg_terminate_backend($1)", victim.get_server_pid())
        victim.terminate()
        async with asyncio.timeout(20):
            while held:
                await flushed(database, [entry(one, "done", payload="1") for one in held])
                held = await picked(database, 2)
    assert await db.fetchval("select count(*) from gen_durable.gen_durable where status = 'done'") == 6
    assert await busy(db) == 0


@pytest.mark.clause("FLOW-5")
async def test_rows_of_a_limited_key_start_in_order(durable_dsn: str, client: AsyncClient, db: Any) -> None:
    await client.set_limit(ConcurrencyLimit("tenant", 2))
    rows = await client.insert_all(
        [Spec(Job, 0.0, concurrency_key="tenant", priority=-number // 3) for number in range(12)]
    )
    async with Worker([Job], dsn=durable_dsn):
        await finished(client, 12)
    started = await db.fetch(
        "select g.id, g.priority, x.leased_at from gen_durable.executions x join gen_durable.gen_durable g"
        " on g.id = x.instance_id order by x.leased_at, g.priority, g.id"
    )
    assert [(row["priority"], row["id"]) for row in started] == sorted(
        (row["priority"], row["id"]) for row in started
    )
    assert len(started) == len(rows)
