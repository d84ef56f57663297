"""Workers behind PgBouncer: all their work, on shared server connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import AsyncClient, Settings, Spec, Status, Worker
from tests.pooler.bouncer import Bouncer
from tests.pooler.machines import ALL, Alone, Chain, Parent, Payment, Slow, Stubborn, Waiter

PATIENCE = timedelta(seconds=20)


@pytest.fixture
async def worker(durable_dsn: str, durable_settings: Settings) -> AsyncIterator[Worker]:
    async with Worker(ALL, dsn=durable_dsn, queues={"default": 20}, settings=durable_settings) as opened:
        yield opened


async def test_chains_and_retries(worker: Worker) -> None:
    chains = await worker.insert_all([Spec(Chain, number) for number in range(40)])
    stubborn = await worker.insert(Stubborn)
    assert [done.result for done in await worker.wait_all(chains, timeout=PATIENCE)] == [
        number + 3 for number in range(40)
    ]
    assert (await worker.wait(stubborn, timeout=PATIENCE)).result == 2
    assert [record.status for record in await worker.executions(stubborn)] == ["ABORTED", "ABORTED", "DONE"]


async def test_signals_and_timeouts(worker: Worker) -> None:
    called = await worker.insert_all([Spec(Waiter, 60.0, correlation_key=f"w:{n}") for n in range(20)])
    forgotten = await worker.insert(Waiter, 0.1)
    for number, ref in enumerate(called):
        # Some signals arrive before the wait, others during it; every second one by key.
        target: Any = ref if number % 2 else f"w:{number}"
        await worker.signal(target, Waiter.note, f"hello {number}", dedup_key="once")
    results = [done.result for done in await worker.wait_all(called, timeout=PATIENCE)]
    assert results == [[f"hello {number}"] for number in range(20)]
    assert (await worker.wait(forgotten, timeout=PATIENCE)).result == ["nothing came"]


async def test_children(worker: Worker) -> None:
    parents = await worker.insert_all([Spec(Parent, 20) for _ in range(5)])
    for done in await worker.wait_all(parents, timeout=PATIENCE):
        assert done.result == sum(range(20)) + 3 * 20
    assert len(await worker.children(parents[0])) == 20


async def test_keys(worker: Worker, db: Any) -> None:
    """Rows of a key run one by one, and rows of a busy key do not block others."""
    Alone.most = 0
    alone = await worker.insert_all([Spec(Alone, "x", concurrency_key="x") for _ in range(40)])
    chain = await worker.insert(Chain, 1)
    assert (await worker.wait(chain, timeout=PATIENCE)).result == 4
    await worker.wait_all(alone, timeout=PATIENCE)
    assert Alone.most == 1
    assert await db.fetchval("select count(*) from gen_durable.gen_durable where status <> 'done'") == 0


async def test_effects_run_once_and_a_failing_one_fails_only_its_outcome(worker: Worker, db: Any) -> None:
    await db.execute(
        "create table ledger (id bigint, amount int check (amount >= 0), what text, primary key (id, what))"
    )
    good = await worker.insert_all([Spec(Payment, amount) for amount in range(20)])
    bad = await worker.insert(Payment, -1)
    for done in await worker.wait_all(good, timeout=PATIENCE):
        assert done.status is Status.DONE
    refused = await worker.wait(bad, timeout=PATIENCE)
    assert refused.status is Status.FAILED
    assert "violates check constraint" in (refused.last_error or "")
    written = await db.fetch("select id, amount, what from ledger order by id, what")
    assert [tuple(row) for row in written] == [
        (ref.id, amount, what) for amount, ref in enumerate(good) for what in ("noted", "paid")
    ]
    unfinished = "select count(*) from gen_durable.executions where status = 'COMMITTED'"
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while await db.fetchval(unfinished):
            await asyncio.sleep(0.02)


async def test_long_step_keeps_its_lease(worker: Worker) -> None:
    slow = await worker.insert(Slow, 2.5)
    assert (await worker.wait(slow, timeout=PATIENCE)).result == 0
    (record,) = await worker.executions(slow)
    assert record.started_at is not None


async def test_closing_worker_releases_its_leases(
    durable_dsn: str, durable_settings: Settings, db: Any
) -> None:
    impatient = msgspec.structs.replace(durable_settings, drain_timeout=timedelta(seconds=1))
    async with AsyncClient(durable_dsn, settings=durable_settings) as client:
        refs = await client.insert_all([Spec(Slow, seconds) for seconds in (0.5, 0.5, 3600.0)])
        async with Worker([Slow], dsn=durable_dsn, settings=impatient):
            async with asyncio.timeout(PATIENCE.total_seconds()):
                while await db.fetchval(
                    "select count(*) < 3 from gen_durable.gen_durable where status = 'executing'"
                ):
                    await asyncio.sleep(0.01)
        assert [found.status for ref in refs if (found := await client.get(ref))] == [
            Status.DONE,
            Status.DONE,
            Status.RUNNABLE,
        ]


async def test_several_workers_share_five_server_connections(
    durable_dsn: str, durable_settings: Settings, bouncer: Bouncer, db: Any
) -> None:
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(Worker(ALL, dsn=durable_dsn, settings=durable_settings))
            for _ in range(4)
        ]
        refs: list[Any] = []
        for round in range(2):
            for worker in workers:
                refs += await worker.insert_all(
                    [
                        Spec(Chain, round),
                        Spec(Chain, round),
                        Spec(Parent, 5),
                        Spec(Alone, "y", concurrency_key="y"),
                    ]
                )
        for done in await workers[0].wait_all(refs, timeout=PATIENCE):
            assert done.status is Status.DONE
        name = await db.fetchval("select current_database()")
        servers = [server for server in bouncer.show("servers") if server["database"] == name]
        clients = [client for client in bouncer.show("clients") if client["database"] == name]
    assert len(servers) <= 5 < len(clients)
    doubled = await db.fetchval(
        """select count(*) from (select from gen_durable.executions where status = 'DONE'
            group by instance_id, step_seq having count(*) > 1) twice"""
    )
    assert doubled == 0


async def test_work_continues_after_a_restart_of_pgbouncer(worker: Worker, bouncer: Bouncer) -> None:
    refs = await worker.insert_all([Spec(Chain, number) for number in range(80)])
    bouncer.stop()
    await asyncio.sleep(0.3)
    bouncer.start()
    for done in await worker.wait_all(refs, timeout=PATIENCE):
        assert done.status is Status.DONE
