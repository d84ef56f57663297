"""The database answers with errors: a missing privilege, a renamed table, a full disk, a lock."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import pytest

from gen_durable import Context, Done, Machine, Outcome, Sql, Status, Worker, WorkerStoppedError, step
from gen_durable._db.failures import StatementError, is_repairable
from gen_durable._db.pool import Database
from gen_durable._db.runner import from_asyncpg
from gen_durable._runtime import database_status
from gen_durable._runtime.database_status import DatabaseRetry, DatabaseStatus
from gen_durable.errors import DatabaseError
from tests.support.machines import Plain
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, holds

REFUSES = "database refuses a statement"
ACCEPTS = "database accepts statements again"
BREAKS = {
    "a renamed table": (
        "alter table gen_durable.gen_durable rename to elsewhere",
        "alter table gen_durable.elsewhere rename to gen_durable",
        "42P01",
    ),
    "a renamed column": (
        "alter table gen_durable.gen_durable rename column eligible_at to elsewhere",
        "alter table gen_durable.gen_durable rename column elsewhere to eligible_at",
        "42703",
    ),
    "a publication of a table without replica identity": (
        """alter table gen_durable.gen_durable replica identity nothing;
           create publication hasty for table gen_durable.gen_durable""",
        "drop publication hasty; alter table gen_durable.gen_durable replica identity default",
        "55000",
    ),
    "a full disk": (
        """create function public.is_full() returns trigger language plpgsql as
           $$ begin raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$;
           create trigger is_full before insert or update on gen_durable.gen_durable
           for each row execute function public.is_full();
           create trigger is_full before insert or update on gen_durable.workers
           for each row execute function public.is_full()""",
        "drop function public.is_full cascade",
        "53100",
    ),
}


class Slow(Machine[int, int]):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        await asyncio.sleep(0.5)
        return Done(ctx.state)


class Payer(Machine[int, int]):
    @step
    async def pay(self, ctx: Context[int]) -> Outcome[int]:
        await asyncio.sleep(0.5)
        return Done(ctx.attempt, effect=Sql("insert into public.ledger values ($1)", ctx.id))


@pytest.fixture
async def worker(durable_dsn: str, db: Any, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Worker]:
    await db.execute("create table public.ledger (id bigint)")
    caplog.set_level(logging.INFO, "gen_durable.worker")
    async with Worker([Plain, Slow, Payer], dsn=durable_dsn, settings=CALM) as opened:
        yield opened


async def says(caplog: pytest.LogCaptureFixture, text: str) -> None:
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while text not in caplog.text:
            await asyncio.sleep(0.02)


@pytest.mark.clause("DEP-5")
@pytest.mark.parametrize("fault", BREAKS)
async def test_worker_retries_until_the_fault_is_fixed(
    worker: Worker, db: Any, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    broken, repaired, sqlstate = BREAKS[fault]
    running = await worker.insert(Slow, 1)
    await holds(db, "select status = 'executing' from gen_durable.gen_durable where id = $1", running.id)
    waiting = [await worker.insert(Plain, number) for number in range(5)]
    await db.execute(broken)
    await says(caplog, REFUSES)
    await asyncio.sleep(1)  # the step ends, and each service retries several times
    await db.execute(repaired)
    for ref in (running, *waiting):
        assert (await worker.wait(ref, timeout=PATIENCE)).status is Status.DONE
    await says(caplog, ACCEPTS)
    lines = [record.getMessage() for record in caplog.records if "database" in record.getMessage()]
    assert len(lines) == 2, lines
    assert f"SQLSTATE {sqlstate}" in lines[0]
    assert "; retrying " in lines[0]


async def test_effect_is_not_blamed_for_a_renamed_table(worker: Worker, db: Any) -> None:
    ref = await worker.insert(Payer, 1)
    await holds(db, "select status = 'executing' from gen_durable.gen_durable where id = $1", ref.id)
    await db.execute(BREAKS["a renamed table"][0])
    await asyncio.sleep(1)
    await db.execute(BREAKS["a renamed table"][1])
    ended = await worker.wait(ref, timeout=PATIENCE)
    assert (ended.status, ended.result) == (Status.DONE, 0)
    assert await db.fetchval("select count(*) from public.ledger") == 1


async def test_worker_stops_if_the_fault_is_not_fixed_in_time(
    durable_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_status, "REPAIR_WITHIN", 1.0)
    with pytest.raises(WorkerStoppedError, match=r"does not exist \(SQLSTATE 42P01\)"):
        async with asyncio.timeout(PATIENCE.total_seconds()):
            async with Worker([Plain], dsn=durable_dsn, settings=CALM):
                await db.execute(BREAKS["a renamed table"][0])
                await asyncio.Event().wait()


async def test_wait_raises_a_refusal_at_once(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> NoReturn:
        raise StatementError("42P01", 'relation "gen_durable.gen_durable" does not exist')

    ref = await worker.insert(Slow, 1)
    monkeypatch.setattr("gen_durable._db.changes.read", refused)
    async with asyncio.timeout(10):
        with pytest.raises(DatabaseError, match="gen-durable db status"):
            await worker.wait(ref)


async def test_worker_is_not_ready_during_a_refusal(worker: Worker, db: Any) -> None:
    await db.execute(BREAKS["a renamed table"][0])
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while "refuses a statement:" not in worker._ready()[1]:
            await asyncio.sleep(0.02)
    await db.execute(BREAKS["a renamed table"][1])
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while worker._ready()[1] != "ready":
            await asyncio.sleep(0.02)


def test_missing_right_names_the_grant(caplog: pytest.LogCaptureFixture) -> None:
    error = StatementError("42501", "permission denied for table gen_durable")
    assert is_repairable(error)
    DatabaseRetry("queue default", DatabaseStatus("db/shop")).pause(error)
    assert "grant select, insert, update, delete on gen_durable to this role" in caplog.text


def test_log_of_silence_names_server_and_duration(caplog: pytest.LogCaptureFixture) -> None:
    database_status = DatabaseStatus("postgresql://db:5432/shop")
    database_status._last_reply -= 40
    DatabaseRetry("queue default", database_status).pause(from_asyncpg(TimeoutError()))
    assert "database unreachable: queue default: no reply from postgresql://db:5432/shop for 40.0 s" in (
        caplog.text
    )
    assert "TimeoutError" not in caplog.text


def test_intermittent_write_failures_are_one_outage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    now = [1000.0]
    monkeypatch.setattr("gen_durable._runtime.database_status.time.monotonic", lambda: now[0])
    database_status = DatabaseStatus("db/shop")
    commit, pick = DatabaseRetry("commit", database_status), DatabaseRetry("queue default", database_status)
    for _ in range(20):
        now[0] += 0.1
        commit.pause(StatementError("53100", "could not extend file"))
        now[0] += 0.1
        pick.succeeded()
        commit.succeeded()
    assert len(caplog.messages) == 1
    now[0] += 2
    pick.succeeded()
    assert caplog.messages[1] == f"{ACCEPTS} after 3.9 s"
    commit.pause(StatementError("53100", "could not extend file"))
    assert len(caplog.messages) == 3


@pytest.fixture
async def short_lock_timeout(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lock timeouts of 300 ms instead of 10 s, and a schema in which the machine is registered."""
    async with Worker([Plain], dsn=durable_dsn, settings=CALM):
        pass
    original = Database.open.__func__  # type: ignore[attr-defined]

    async def open(cls: type[Database], *args: Any, **options: Any) -> Any:
        return await original(cls, *args, **{"lock_timeout": "300ms", **options})

    monkeypatch.setattr(Database, "open", classmethod(open))


@pytest.mark.usefixtures("short_lock_timeout")
@pytest.mark.parametrize(
    "lock", ["lock table gen_durable.machines", "update gen_durable.machines set fsm = fsm"]
)
async def test_start_names_the_locked_table_and_retries(
    durable_dsn: str, db: Any, caplog: pytest.LogCaptureFixture, lock: str
) -> None:
    worker = Worker([Plain], dsn=durable_dsn, settings=CALM)
    # Other code has registered the machine.
    await db.execute(
        "insert into gen_durable.machines (fsm, fsm_version, initial_step, queue) values ('Plain', 1, 's', 'q')"
        " on conflict (fsm, fsm_version) do update set digest = null"
    )
    async with db.transaction():
        await db.execute(lock)
        opening = asyncio.get_running_loop().create_task(worker.__aenter__())
        await says(caplog, 'start: waiting for a lock on table "gen_durable"."machines"')
        assert not opening.done()
    await opening
    ref = await worker.insert(Plain, 1)
    assert (await worker.wait(ref, timeout=PATIENCE)).result == 1
    await worker.__aexit__(None, None, None)


@pytest.mark.usefixtures("short_lock_timeout")
async def test_signal_ends_a_startup_that_waits_for_a_lock(
    durable_dsn: str, db: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker([Plain], dsn=durable_dsn, settings=CALM)
    async with db.transaction():
        await db.execute("lock table gen_durable.machines")
        running = asyncio.get_running_loop().create_task(worker._run_until_stopped(None, lambda: None))
        await says(caplog, "start: waiting for")
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            await running
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)
