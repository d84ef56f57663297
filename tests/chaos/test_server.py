"""A server that crashes, is down for longer than a lease, or freezes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from gen_durable import AsyncClient
from tests.chaos.arena import Arena
from tests.chaos.cluster import Cluster
from tests.chaos.machines import Chain, Payer, Work
from tests.chaos.worker_processes import CHAOS, PATIENT
from tests.chaos.workload import mixed, place

_LEASE = CHAOS.lease.total_seconds()
_A_BACKEND = (
    "select pid from pg_stat_activity where application_name = 'gen_durable' order by random() limit 1"
)


async def test_server_crash_under_load_loses_nothing(durable_cluster: Cluster, tmp_path: Path) -> None:
    async with Arena.open(durable_cluster.dsn, tmp_path, PATIENT) as arena:
        for _ in range(2):
            await arena.workers.start()
        rng = random.Random(4)
        async with asyncio.TaskGroup() as group:
            for order in mixed(rng, 24, pace=0.1):
                group.create_task(place(arena.producer, order, rng))
            for _ in range(3):
                await asyncio.sleep(rng.uniform(0.2, 0.5))
                durable_cluster.crash()
                await asyncio.to_thread(durable_cluster.start)
                await arena.seal()
        report = await arena.reckoning()
    assert report.counters["duplicate step runs"] == 0, (
        "no worker died, so no step that had begun was taken away"
    )


async def test_killed_backend_and_crash_recovery_lose_nothing(cluster: Cluster, tmp_path: Path) -> None:
    async with Arena.open(cluster.dsn, tmp_path, PATIENT) as arena:
        for _ in range(2):
            await arena.workers.start()
        rng = random.Random(5)
        async with asyncio.TaskGroup() as group:
            for order in mixed(rng, 24, pace=0.1):
                group.create_task(place(arena.producer, order, rng))
            for _ in range(2):
                await asyncio.sleep(rng.uniform(0.2, 0.4))
                # The postmaster closes all connections and recovers.
                os.kill(await arena.ask(_A_BACKEND), signal.SIGKILL)
                await arena.comes_back()
        report = await arena.reckoning()
    assert report.counters["duplicate step runs"] == 0


@pytest.mark.parametrize("kind", ["stopped", "crashed", "frozen"])
async def test_live_workers_keep_their_leases_over_a_long_outage(
    durable_cluster: Cluster, tmp_path: Path, kind: str
) -> None:
    away: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "stopped": (durable_cluster.stop, durable_cluster.start),
        "crashed": (durable_cluster.crash, durable_cluster.start),
        "frozen": (durable_cluster.freeze, durable_cluster.thaw),
    }
    async with Arena.open(durable_cluster.dsn, tmp_path) as arena:
        workers = [await arena.workers.start() for _ in range(2)]
        go = tmp_path / "go"
        for number in range(12):
            await arena.producer.insert_surely(f"long {number}", Chain, Work(until=str(go)))
        for number in range(4):
            # Ends during the outage; its outcome waits.
            await arena.producer.insert_surely(f"short {number}", Chain, Work(steps=2, pace=_LEASE))
        await arena.workers.wait_for(what="begin", count=16)
        goes, returns = away[kind]
        goes()
        await asyncio.sleep(2.5 * _LEASE)
        await asyncio.to_thread(returns)
        # Two more leases, in which a wrong reap would happen.
        await asyncio.sleep(2 * _LEASE)
        go.touch()
        report = await arena.reckoning()
    assert (report.counters["reaped"], report.counters["duplicate step runs"]) == (0, 0)
    assert {line["pid"] for line in arena.workers.lines(what="begin")} == {worker.pid for worker in workers}


async def test_payments_interrupted_by_an_outage_are_made_once(
    durable_cluster: Cluster, tmp_path: Path
) -> None:
    async with Arena.open(durable_cluster.dsn, tmp_path, PATIENT) as arena:
        for _ in range(2):
            await arena.workers.start()
        for number in range(20):
            await arena.producer.insert_surely(f"payer {number}", Payer, Work(steps=6, pace=0.05))
        for pause in (0.3, 0.3, 0.3):
            await asyncio.sleep(pause)
            durable_cluster.crash()
            await asyncio.to_thread(durable_cluster.start)
        report = await arena.reckoning()
    assert (report.counters["payments"], report.counters["transitions"]) == (120, 120)
    assert report.counters["duplicate step runs"] == 0


@pytest.mark.clause("WATCH-2")
async def test_watch_over_crashes_of_the_server_misses_no_execution(
    durable_cluster: Cluster, tmp_path: Path
) -> None:
    async with (
        Arena.open(durable_cluster.dsn, tmp_path, PATIENT) as arena,
        AsyncClient(durable_cluster.dsn) as client,
    ):
        await arena.workers.start()
        await arena.producer.insert_surely("long", Chain, Work(steps=40, pace=0.05))
        (long,) = await client.list(Chain)
        seen: list[int] = []

        async def watch() -> None:
            async for change in client.watch(long):
                seen.extend(one.attempt for one in change.executions)
            assert change.instance.status == "done"

        watching = asyncio.ensure_future(watch())
        for _ in range(3):
            await asyncio.sleep(0.4)
            durable_cluster.crash()
            await asyncio.sleep(0.2)
            await asyncio.to_thread(durable_cluster.start)
        async with asyncio.timeout(60):
            await watching
        # The watch may begin after the first execution.
        recorded = [one.attempt for one in await client.executions(long)]
        assert seen == recorded[-len(seen) :]
        assert len(seen) >= len(recorded) - 2
        await arena.reckoning()
