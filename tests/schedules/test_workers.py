"""Real workers, alone, many and killed: each fire time is fired once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from gen_durable import AsyncClient, Schedule, Settings, Spec, Status, UsageError, Worker
from gen_durable.telemetry import ScheduleFired
from tests.schedules.support import A_SECOND, Report, Sleeper, hourly
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE, Events, holds
from tests.support.worker_process import WorkerProcess, program

_ROOT = Path(__file__).parents[2]
# As if no worker had run for the last seconds.
_LET_PASS = """update gen_durable.schedules
   set anchor_at = anchor_at - $1::interval, next_at = next_at - $1::interval where name = $2"""


@asynccontextmanager
async def killable_worker(
    dsn: str, settings: Settings, point: str = "nowhere"
) -> AsyncIterator[WorkerProcess]:
    options = msgspec.json.encode(settings).decode()
    async with program("tests.schedules.killable_worker", dsn, options, point) as process:
        yield process


async def fired_times(db: Any, name: str) -> list[Any]:
    rows = await db.fetch(
        "select fire_time from gen_durable.gen_durable where schedule = $1 order by 1", name
    )
    return [row["fire_time"] for row in rows]


def is_every_second_once(fire_times: list[Any]) -> bool:
    return fire_times == [fire_times[0] + A_SECOND * place for place in range(len(fire_times))]


@pytest.mark.clause("CRON-1", "CRON-4", "CRON-11")
async def test_declared_schedule_is_stored_and_fired(durable_dsn: str) -> None:
    declared = Schedule("often", Spec(Report, "x"), every=A_SECOND)
    async with Worker([Report], dsn=durable_dsn, settings=CALM, schedules=[declared]) as worker:
        events = Events(worker)
        event = await events.wait(ScheduleFired)
        done = await worker.wait(event.id or 0, timeout=PATIENCE)
        assert (event.schedule, event.fsm, event.kind) == ("often", "Report", "inserted")
        assert (done.schedule, done.fire_time, done.result) == (
            "often",
            event.fire_time,
            f"x {event.fire_time}",
        )
        assert timedelta(0) <= event.lag
        await worker.pause_schedule("often")
    # The declaration replaces the stored schedule; a pause stays.
    new = Schedule("often", Spec(Report, "y"), cron="@daily")
    async with Worker([Report], dsn=durable_dsn, settings=CALM, schedules=[new]) as worker:
        record = await worker.get_schedule("often")
    assert (record.cron, record.every, record.spec["state"], record.is_paused) == (
        "0 0 * * *",
        None,
        "y",
        True,
    )


def test_two_declarations_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two schedules have the name 'hourly'"):
        Worker([Report], schedules=[hourly(), hourly()])


@pytest.mark.clause("CRON-12")
async def test_schedule_of_an_unregistered_machine_is_fired(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client:
        await client.put_schedule(hourly())
        await db.execute(_LET_PASS, timedelta(hours=1), "hourly")
        async with Worker([Sleeper], dsn=durable_dsn, settings=CALM):
            await holds(db, "select count(*) = 1 from gen_durable.gen_durable where schedule = 'hourly'")
        (instance,) = await client.list(schedule="hourly")
        assert (instance.machine, instance.step, instance.status) == ("Report", "write", "runnable")
        async with Worker([Report], dsn=durable_dsn, settings=CALM) as worker:
            assert (await worker.wait(instance.id, timeout=PATIENCE)).is_finished


async def test_many_schedules_with_many_workers(durable_dsn: str, db: Any) -> None:
    """Four workers, 300 schedules that are due at once, one instance each."""
    async with AsyncClient(durable_dsn) as client:
        await client.put_schedule(hourly())
    await db.execute(
        "insert into gen_durable.schedules (name, cron, tz, anchor_at, missed, overlap, spec, next_at)"
        " select 'many ' || n, cron, tz, anchor_at, 'all', overlap, spec, date_trunc('hour', now())"
        " from gen_durable.schedules, generate_series(1, 300) n"
    )
    workers = [Worker([Sleeper], dsn=durable_dsn, settings=CALM) for _ in range(4)]
    for worker in workers:
        await worker.__aenter__()
    await holds(db, "select count(*) = 300 from gen_durable.schedules where fired_count = 1")
    for worker in workers:
        await worker.__aexit__(None, None, None)
    counts = await db.fetch("select schedule, count(*) from gen_durable.gen_durable group by 1")
    assert {row["count"] for row in counts} == {1}
    assert len(counts) == 300


@pytest.mark.clause("CRON-3")
@pytest.mark.parametrize("point", ["before", "after"])
async def test_kill_before_or_after_firing_fires_once(durable_dsn: str, db: Any, point: str) -> None:
    async with AsyncClient(durable_dsn) as client:
        await client.put_schedule(hourly(missed="all"))
        await db.execute(
            "update gen_durable.schedules set next_at = date_trunc('hour', now()) - interval '2 hours'"
        )
        async with killable_worker(durable_dsn, FAST, point) as process:
            assert await process.ends() == -signal.SIGKILL
        assert await client.count(schedule="hourly") == (0 if point == "before" else 3)
        async with Worker([Sleeper], dsn=durable_dsn, settings=FAST):
            await holds(db, "select next_at > now() from gen_durable.schedules")
        fire_times = await fired_times(db, "hourly")
    assert len(fire_times) == 3
    assert len(set(fire_times)) == 3


@pytest.mark.clause("CRON-3")
async def test_kill_during_firing_fires_once(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client:
        spec = Spec(Report, "x", correlation_key="k", correlation_scope=[Status.RUNNABLE])
        await client.put_schedule(Schedule("hourly", spec, cron="@hourly"))
        blocker = await asyncpg.connect(durable_dsn)
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute(
            "select gen_durable.insert('Report', '\"mine\"', step => 'write', correlation_key => 'k')",
            timeout=5,
        )
        await db.execute("update gen_durable.schedules set next_at = date_trunc('hour', now())")
        waits = """select count(*) = 1 from pg_stat_activity
                    where wait_event_type = 'Lock' and query like '%fire_schedule%' and datname = current_database()"""
        async with killable_worker(durable_dsn, FAST) as process:
            await holds(db, waits)
            await process.kill()
        async with Worker([Sleeper], dsn=durable_dsn, settings=FAST):
            await asyncio.sleep(0.3)
            await transaction.rollback()
            await holds(db, "select next_at > now() from gen_durable.schedules")
        await blocker.close()
        assert len(await fired_times(db, "hourly")) == 1


@pytest.mark.clause("CRON-3", "CRON-6")
async def test_workers_killed_repeatedly_fire_every_second_once(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client:
        declared = Schedule("often", Spec(Report, "x"), every=A_SECOND, missed="all")
        await client.put_schedule(declared)
        await db.execute(_LET_PASS, timedelta(seconds=30), "often")
        for _ in range(2):
            async with killable_worker(durable_dsn, FAST) as one, killable_worker(durable_dsn, FAST) as other:
                await one.wait_for(ready=True)
                await other.wait_for(ready=True)
                before = await db.fetchval("select fired_count from gen_durable.schedules")
                await holds(db, "select fired_count > $1 from gen_durable.schedules", before)
        async with Worker([Sleeper], dsn=durable_dsn, settings=FAST):
            await holds(db, "select next_at > now() from gen_durable.schedules")
        record = await client.pause_schedule("often")
        fire_times = await fired_times(db, "often")
    assert is_every_second_once(fire_times)
    assert (len(fire_times), fire_times[-1]) == (record.fired_count, record.last_fire_time)
    assert len(fire_times) > 30


async def test_locked_schedule_does_not_delay_others(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client:
        for name in ("held", "free"):
            await client.put_schedule(hourly(name))
        await db.execute("update gen_durable.schedules set next_at = date_trunc('hour', now())")
        async with db.transaction():
            await db.execute("select from gen_durable.schedules where name = 'held' for update")
            async with Worker([Report], dsn=durable_dsn, settings=CALM):
                while not await client.count(schedule="free"):
                    await asyncio.sleep(0.01)
        assert await client.count(schedule="held") == 0


async def test_unreadable_schedule_is_left_to_other_workers(
    durable_dsn: str, db: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(durable_dsn) as client:
        await client.put_schedule(hourly())
        await client.put_schedule(hourly("odd"))
        await db.execute("update gen_durable.schedules set next_at = date_trunc('hour', now())")
        await db.execute("update gen_durable.schedules set tz = 'Mars/Olympus' where name = 'odd'")
        async with Worker([Report], dsn=durable_dsn, settings=CALM):
            await holds(db, "select count(*) = 1 from gen_durable.gen_durable")
            await asyncio.sleep(0.3)
        messages = [
            record
            for record in caplog.records
            if "schedule skipped: odd cannot be computed on this worker" in record.message
        ]
        assert len(messages) == 1
        await db.execute("update gen_durable.schedules set tz = 'UTC' where name = 'odd'")
        async with Worker([Report], dsn=durable_dsn, settings=CALM):
            await holds(db, "select count(*) = 2 from gen_durable.gen_durable")


@pytest.mark.clause("CRON-8", "CRON-11")
async def test_skipped_fire_time_emits_its_reason(
    durable_dsn: str, db: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(durable_dsn) as client:
        await client.insert(Sleeper, correlation_key="k")
        for schedule in (
            Schedule("error", Spec(Report, "x", correlation_key="k"), cron="@hourly"),
            Schedule("duplicate", Spec(Sleeper, correlation_key="k"), cron="@hourly"),
            Schedule("missed", Spec(Report, "x"), every=timedelta(hours=1), missed="skip"),
            Schedule("overlap", Spec(Sleeper), cron="@hourly", overlap="skip"),
        ):
            await client.put_schedule(schedule)
        await client.trigger_schedule("overlap")
        await db.execute("update gen_durable.schedules set next_at = date_trunc('hour', now())")
        await db.execute(
            "update gen_durable.schedules set anchor_at = now() - interval '5 hours 59 minutes',"
            " next_at = now() - interval '59 minutes' where name = 'missed'"
        )
        async with Worker([Report], dsn=durable_dsn, settings=CALM) as worker:
            events = Events(worker)
            await events.wait(ScheduleFired, count=4)
            await holds(db, "select min(next_at) > now() from gen_durable.schedules")
    kinds = {event.schedule: event.kind for event in events.of(ScheduleFired)}
    assert kinds == {name: name for name in ("error", "duplicate", "missed", "overlap")}
    assert any("schedule failed: error inserted nothing" in record.message for record in caplog.records)
