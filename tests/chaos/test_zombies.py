"""Executions that outlive their lease commit nothing and do not renew other leases."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.arena import Arena
from tests.chaos.machines import Blocker, Chain, Payer, Work
from tests.chaos.worker_processes import CHAOS
from tests.support.tcp_proxy import LOCK_FOR_EFFECT, RENEW, Proxy, Verdict, saying

_LEASE = CHAOS.lease.total_seconds()
_HOLDER = "select split_part(locked_by, ':', 2)::int from gen_durable.gen_durable where id = $1"
_EXPIRED = "select lease_expires_at < now() from gen_durable.gen_durable where id = $1"


async def test_worker_resumed_after_its_leases_expired_commits_nothing(arena: Arena, tmp_path: Path) -> None:
    go, heirs_go = tmp_path / "go", tmp_path / "heirs go"
    work = Work(steps=2, until=str(go), heirs_until=str(heirs_go))
    zombie = await arena.workers.start()
    for number in range(9):
        await arena.producer.insert_surely(f"{number}", Payer if number % 3 == 0 else Chain, work)
    await arena.workers.wait_for(what="begin", pid=zombie.pid, count=9)
    zombie.stop()
    go.touch()
    heir = await arena.workers.start()
    await arena.workers.wait_for(what="begin", pid=heir.pid, count=9)
    zombie.resume()
    # Its steps end too late, unless the heartbeat detects the loss first.
    stale = await arena.workers.wait_for(what="event", event="outcome.stale")
    assert {line["pid"] for line in stale} == {zombie.pid}
    assert await arena.ask("select count(*) from gen_durable.executions where status <> 'ABORTED'") == 0
    heirs_go.touch()
    report = await arena.reckoning()
    assert (report.counters["reaped"], report.counters["duplicate step runs"]) == (9, 9)


async def test_heartbeat_does_not_renew_the_lease_of_another_worker(arena: Arena, tmp_path: Path) -> None:
    go = tmp_path / "go"
    zombie = await arena.workers.start()
    id = await arena.producer.insert_surely("one", Chain, Work(until=str(go), heirs_until=str(go)))
    await arena.workers.wait_for(what="begin", pid=zombie.pid)
    zombie.stop()
    heir = await arena.workers.start()
    await arena.workers.wait_for(what="begin", pid=heir.pid)
    zombie.resume()
    # Two leases, with both workers and their heartbeats running.
    for _ in range(20):
        assert await arena.ask(_HOLDER, id) == heir.pid
        assert not await arena.ask(_EXPIRED, id)
        await asyncio.sleep(_LEASE / 10)
    go.touch()
    await arena.reckoning()
    assert not arena.workers.lines(what="end", pid=zombie.pid), (
        "its step was cancelled when the lease was lost"
    )


async def test_worker_stopped_in_an_effect_keeps_its_row_locked(arena: Arena) -> None:
    async with Proxy.open(arena.dsn) as proxy:
        trap = proxy.trap(saying(LOCK_FOR_EFFECT), "answered")
        stopped = await arena.workers.start(proxy.dsn)
        await arena.workers.start(queues={"other": 1})
        id = await arena.producer.insert_surely("one", Payer, Work(steps=2))
        held = await trap.springs()
        stopped.stop()
        held.give(Verdict.PASS)
        await arena.holds(_EXPIRED, id)
        await asyncio.sleep(_LEASE)
        assert await arena.ask(_HOLDER, id) == stopped.pid, (
            "its transaction is open, so the row is not reaped"
        )
        stopped.resume()
        report = await arena.reckoning()
    assert (report.counters["reaped"], report.counters["duplicate step runs"]) == (0, 0)


async def test_worker_with_a_blocked_event_loop_keeps_its_leases(arena: Arena) -> None:
    blocked = await arena.workers.start()
    await arena.workers.start(queues={"other": 1})
    for number in range(3):
        await arena.producer.insert_surely(f"sleeper {number}", Chain, Work(pace=0.2))
    await arena.workers.wait_for(what="begin", count=3)
    await arena.producer.insert_surely("blocker", Blocker, Work(pace=3.2 * _LEASE))
    await arena.workers.wait_for(what="begin", step="block")
    report = await arena.reckoning()
    assert (report.counters["reaped"], report.counters["duplicate step runs"]) == (0, 0)
    assert {line["pid"] for line in arena.workers.lines(what="begin")} == {blocked.pid}


async def test_worker_that_leases_its_lost_row_again_keeps_both_apart(arena: Arena, tmp_path: Path) -> None:
    go, heirs_go = tmp_path / "go", tmp_path / "heirs go"
    async with Proxy.open(arena.dsn) as proxy:
        # Its heartbeat does not reach the server. Another worker reaps its rows, and it leases them again.
        trap = proxy.trap(saying(RENEW), "asked", times=None)
        await arena.workers.start(queues={"other": 1})
        worker = await arena.workers.start(proxy.dsn)
        work = Work(steps=2, until=str(go), heirs_until=str(heirs_go))
        id = await arena.producer.insert_surely("one", Chain, work)
        await trap.springs()
        begins = await arena.workers.wait_for(what="begin", instance=id, count=2)
        assert {(line["pid"], line["step_seq"]) for line in begins} == {(worker.pid, 1)}
        assert await arena.ask(_HOLDER, id) == worker.pid
        go.touch()
        await arena.workers.wait_for(what="event", event="outcome.stale", id=id)
        heirs_go.touch()
        report = await arena.reckoning()
    assert report.counters["stale outcomes"] == 1
    assert report.counters["reaped"] == 1


async def test_workers_stopped_together_keep_their_leases(arena: Arena) -> None:
    workers = [await arena.workers.start() for _ in range(2)]
    for number in range(12):
        await arena.producer.insert_surely(f"chain {number}", Chain, Work(steps=2, pace=2 * _LEASE))
    await arena.workers.wait_for(what="begin", count=12)
    for worker in workers:
        worker.stop()
    await asyncio.sleep(2.5 * _LEASE)
    for worker in workers:
        worker.resume()
    report = await arena.reckoning()
    assert (report.counters["reaped"], report.counters["duplicate step runs"]) == (0, 0)
