"""Leases, the reaper, and crash counts."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import msgspec
import pytest

from gen_durable import (
    Context,
    Done,
    Machine,
    Outcome,
    Settings,
    Spec,
    Worker,
    step,
)
from gen_durable._db import lease as leases
from gen_durable._db.pool import Database
from gen_durable._runtime.database_status import DatabaseStatus
from gen_durable._runtime.maintenance.reaper import Reaper
from gen_durable._runtime.step_counts import StepCounts
from gen_durable._runtime.wake import Wakes
from gen_durable.telemetry import ReaperReaped, Telemetry
from gen_durable.testing import Harness
from tests.support.machines import Say
from tests.support.rows import SqlConnection, is_near
from tests.support.settings import BRISK, CALM
from tests.support.waiting import PATIENCE, Events, happens

# Short leases, renewed often enough for a busy machine.
STEADY = msgspec.structs.replace(BRISK, lease=timedelta(milliseconds=800))


class Gate(Machine[None, None]):
    """Waits in its step for the test."""

    def __init__(self) -> None:
        self.is_there, self.may_go = asyncio.Event(), asyncio.Event()

    @step
    async def wait(self, ctx: Context[None]) -> Outcome[None]:
        self.is_there.set()
        await self.may_go.wait()
        return Done()


@pytest.mark.clause("LEASE-1")
async def test_picked_row_has_a_lease(durable_dsn: str, sql: SqlConnection) -> None:
    gate, tokens = Gate(), set()
    async with Worker([gate], dsn=durable_dsn, settings=CALM) as worker:
        for _ in range(2):
            gate.is_there.clear()
            ref = await worker.insert(gate)
            await happens(gate.is_there)
            row = sql.row(ref.id)
            assert (row["status"], row["locked_by"], row["execution"]) == ("executing", worker.name, 1)
            assert row["lease_expires_at"] - row["updated_at"] == CALM.lease
            assert is_near(row["updated_at"], sql.value("select now()"))
            tokens.add(row["lease_token"])
        gate.may_go.set()
    assert len(tokens) == 2


@pytest.mark.clause("LEASE-2")
async def test_heartbeat_renews_leases(durable_dsn: str, sql: SqlConnection) -> None:
    gate = Gate()
    async with (
        Worker([gate], dsn=durable_dsn, settings=STEADY) as worker,
        Worker([Say], dsn=durable_dsn, settings=STEADY) as reaper,
    ):
        events = Events(reaper)
        ref = await worker.insert(gate)
        await happens(gate.is_there)
        before = sql.row(ref.id)
        await asyncio.sleep(1.2)
        after = sql.row(ref.id)
        gate.may_go.set()
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert after["lease_expires_at"] > before["lease_expires_at"]
    assert (after["lease_token"], after["updated_at"]) == (before["lease_token"], before["updated_at"])
    assert (ended.status, ended.crash_count, events.of(ReaperReaped)) == ("done", 0, [])


@pytest.mark.clause("CRASH-3")
def test_backoff_doubles_with_each_crash(durable: Harness, sql: SqlConnection) -> None:
    crashes = [0, 1, 2, 7, 8, 9, 18]
    for count in crashes:
        ref = durable.insert(Say, "hi")
        sql("update gen_durable.gen_durable set crash_count = %s where id = %s", count, ref.id)
        sql.abandon(ref.id)
    durable.drain(collapse=False)
    waits = sql(
        "select extract(epoch from eligible_at - updated_at)::int as s from gen_durable.gen_durable order by id"
    )
    assert [row["s"] for row in waits] == [1, 2, 4, 128, 256, 300, 300]


@pytest.mark.clause("CRASH-6", "TEL-7")
async def test_any_worker_reaps_rows_of_all_machines(durable_dsn: str, sql: SqlConnection) -> None:
    class Foreign(Machine[int, None], queue="elsewhere"):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[None]:
            return Done()

    settings = msgspec.structs.replace(BRISK, crash_limit=2)
    worker = Worker([Say], dsn=durable_dsn, settings=settings)
    events = Events(worker)
    async with worker:
        first, second = await worker.insert(Foreign, 1), await worker.insert(Foreign, 1)
        sql("update gen_durable.gen_durable set crash_count = 1 where id = %s", second.id)
        with sql.conn.transaction():
            sql.abandon(first.id)
            sql.abandon(second.id)
        reaped = await events.wait(ReaperReaped)
    assert reaped == ReaperReaped(count=2, ids=(first.id, second.id), capped=(second.id,))
    assert sql.columns(first.id, "status attempt") == ("runnable", 1)


@pytest.mark.clause("CRASH-8")
async def test_reaper_waits_one_lease_after_an_outage(
    durable_dsn: str, direct_dsn: str, sql: SqlConnection
) -> None:
    with Harness(durable_dsn) as client:
        ref = client.insert(Say, "hi")
    sql.abandon(ref.id)
    async with await Database.open(direct_dsn, "gen_durable", size=1) as database:
        # As if the server had started less than one lease ago.
        plan = leases.reap(timedelta(days=3650), leases.CrashPolicy(20, "all"))
        assert (await database.run_in_transaction(plan)).ids == []
    settings = msgspec.structs.replace(BRISK, lease=timedelta(milliseconds=600))
    worker = Worker([Say], dsn=durable_dsn, settings=settings)
    events = Events(worker)
    began = time.monotonic()
    async with worker:
        await events.wait(ReaperReaped)
    assert time.monotonic() - began >= 0.6


@pytest.mark.clause("CRASH-11")
async def test_expired_lease_can_be_renewed_before_the_reaper_takes_it(
    durable_dsn: str, direct_dsn: str, sql: SqlConnection
) -> None:
    settings = msgspec.structs.replace(BRISK, lease=timedelta(milliseconds=600), heartbeat=BRISK.lease)
    async with Worker([Say], dsn=durable_dsn, settings=settings) as worker:
        events = Events(worker)
        ref = await worker.insert(Say, "hi", schedule_in=PATIENCE)
        await asyncio.sleep(0.7)  # connected for longer than a lease
        sql.abandon(ref.id)
        began = time.monotonic()
        await events.wait(ReaperReaped)
        assert time.monotonic() - began >= settings.renew_after().total_seconds()
    sql.abandon(ref.id)
    async with await Database.open(direct_dsn, "gen_durable", size=1) as database:
        suspects = await database.run(leases.suspect())
        # Renewed, but already expired again.
        sql("update gen_durable.gen_durable set lease_expires_at = lease_expires_at + interval '1 ms'")
        reaped = await database.run_in_transaction(
            leases.reap(timedelta(0), leases.CrashPolicy(20, "all"), suspects)
        )
    assert ([one.id for one in suspects], reaped.ids) == ([ref.id], [])


@pytest.mark.clause("CRASH-11", "CRASH-7")
async def test_reaper_skips_rows_locked_by_a_caller(
    direct_dsn: str, durable: Harness, sql: SqlConnection
) -> None:
    held, free = durable.insert(Say, "held"), durable.insert(Say, "free")
    sql.abandon(held.id)
    sql.abandon(free.id)
    settings = Settings(lease=timedelta(milliseconds=2), heartbeat=timedelta(milliseconds=1))
    async with await Database.open(direct_dsn, "gen_durable", size=1) as database:
        reaper = Reaper(database, settings, Telemetry(), Wakes(), DatabaseStatus(), StepCounts())

        async def look() -> list[str]:
            await asyncio.sleep(0.005)  # longer than a lease and a heartbeat
            await reaper.tick()
            return [sql.columns(ref.id, "status")[0] for ref in (held, free)]

        with sql.another() as other:
            other.execute("select from gen_durable.gen_durable where id = %s for update", [held.id])
            assert await look() == ["executing", "executing"]
            assert await look() == ["executing", "runnable"]
        assert await look() == ["executing", "runnable"], "its holder has had no time to renew it"
        assert await look() == ["runnable", "runnable"]


@pytest.mark.clause("CRASH-1")
async def test_reaper_returns_many_rows_in_batches(
    direct_dsn: str, durable: Harness, sql: SqlConnection
) -> None:
    durable.insert_all([Spec(Say, "hi") for _ in range(1001)])
    sql(
        "update gen_durable.gen_durable set status = 'executing', lease_token = 1, locked_by = 'other',"
        " leased_at = now() - interval '1 hour', lease_expires_at = now() - interval '1 second'"
    )
    settings = Settings(lease=timedelta(milliseconds=2), heartbeat=timedelta(milliseconds=1))
    async with await Database.open(direct_dsn, "gen_durable", size=1) as database:
        reaper = Reaper(database, settings, Telemetry(), Wakes(), DatabaseStatus(), StepCounts())
        left = []
        for _ in range(4):
            await asyncio.sleep(0.005)
            pause = await reaper.tick()
            left.append(
                (sql.value("select count(*) from gen_durable.gen_durable where status = 'executing'"), pause)
            )
    none = timedelta(0)
    assert left == [(1001, settings.renew_after()), (501, none), (1, none), (0, settings.reap_interval)]
