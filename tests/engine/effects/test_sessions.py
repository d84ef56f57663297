"""Sessions of effects: an effect that repeatedly breaks its session fails; settings do not leak."""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from gen_durable import Context, Done, Machine, Outcome, Spec, Sql, Transaction, Worker, step
from gen_durable._db import blocking, connector
from gen_durable._db.blocking import BlockingDatabase
from gen_durable._db.connector import connect
from gen_durable._db.plan import Plan, Statement, only
from gen_durable._db.pool import Database
from gen_durable._db.runner import run_asyncpg
from gen_durable._runtime import effects
from gen_durable.telemetry import ReaperReaped
from tests.support.ledger import BOOK, booked
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE, Events, happens, holds

_DIED = """
update gen_durable.gen_durable
   set status = 'executing', lease_token = 5, locked_by = 'dead', lease_expires_at = now() - interval '1 min',
       leased_at = now() - interval '2 min' where id = $1"""

_OUTAGE = """
select pg_terminate_backend(pid) from pg_stat_activity
 where datname = current_database() and application_name = 'gen_durable'"""


class Doomed(Machine[str, str]):
    """Its effect terminates its own session every time."""

    def __init__(self) -> None:
        self.runs = 0

    @step
    async def run(self, ctx: Context[str]) -> Outcome[str]:
        async def effect(tx: Transaction) -> None:
            self.runs += 1
            await tx.execute(BOOK, ctx.idempotency_key, "")
            if ctx.state == "idle":
                await asyncio.sleep(0.3)
            await tx.execute("select pg_terminate_backend(pg_backend_pid())")

        return Done("done", effect=effect)

    def handle(self, error: Exception, ctx: Context[str]) -> Outcome[str]:
        return Done(str(error))


class Plain(Machine[None, str]):
    @step
    async def run(self, ctx: Context[None]) -> Outcome[str]:
        return Done("plain")


async def test_effect_that_kills_its_sessions_fails_without_stopping_the_reaper(
    durable_dsn: str, db: Any
) -> None:
    machine = Doomed()
    async with Worker([machine], dsn=durable_dsn, settings=FAST) as worker:
        events = Events(worker)
        dead = await worker.insert(Plain, schedule_in=timedelta(hours=1))
        await db.execute(_DIED, dead.id)
        ref = await worker.insert(machine, "")
        await events.wait(ReaperReaped, lambda event: dead.id in event.ids)
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert "broke 3 times while the effect ran, 3 times when others did not" in str(ended.result)
    assert machine.runs == 3
    assert await booked(db) == []


class Patient(Machine[None, int]):
    """Its effect is cut off this many times, then ends."""

    def __init__(self, cuts: int) -> None:
        self.runs = 0
        self._cuts = cuts
        self.is_there = asyncio.Event()

    @step
    async def run(self, ctx: Context[None]) -> Outcome[int]:
        async def effect(tx: Transaction) -> None:
            self.runs += 1
            await tx.execute(BOOK, ctx.idempotency_key, "")
            if self.runs <= self._cuts:
                self.is_there.set()
                await tx.execute("select pg_sleep(20)")

        return Done(7, effect=effect)


async def _cut(machine: Patient, db: Any, *, times: int) -> None:
    """Terminate all sessions of the worker whenever the effect is about to end."""
    for _ in range(times):
        await happens(machine.is_there)
        machine.is_there.clear()
        await db.execute(_OUTAGE)


async def test_outages_do_not_fail_the_effect(durable_dsn: str, db: Any) -> None:
    machine = Patient(cuts=5)
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine)
        await _cut(machine, db, times=5)
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert (ended.result, machine.runs) == (7, 6)
    assert await booked(db) == [f"{ref.id}:1"]


async def test_effect_fails_after_repeated_outages(
    durable_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The effect may be the cause of the outages."""
    monkeypatch.setattr(effects, "_MAX_OUTAGES", 2)
    machine = Patient(cuts=5)
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine)
        await _cut(machine, db, times=2)
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert "broke 2 times while the effect ran, 0 times when others did not" in str(ended.last_error)
    assert await booked(db) == []


async def test_effect_ended_by_idle_timeout_fails_at_once(
    durable_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "_IDLE_SECONDS", 0.2)
    machine = Doomed()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(machine, "idle"), timeout=PATIENCE)
    assert "left its transaction idle" in str(ended.result)
    assert machine.runs == 1


async def test_cancel_stops_an_effect_that_is_retried(durable_dsn: str, db: Any) -> None:
    class Slow(Machine[None, str]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[str]:
            async def effect(tx: Transaction) -> None:
                runs.append(1)
                await tx.execute(BOOK, ctx.idempotency_key, "")
                await may_end.wait()
                await tx.execute("select pg_terminate_backend(pg_backend_pid())")

            return Done("done", effect=effect)

    runs: list[int] = []
    may_end = asyncio.Event()
    async with Worker([Slow], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Slow)
        await holds(db, "select status = 'executing' from gen_durable.gen_durable where id = $1", ref.id)
        await worker.cancel(ref, reason="enough")
        may_end.set()
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert (ended.status, len(runs)) == ("cancelled", 1)
    assert await booked(db) == []


@pytest.mark.parametrize(
    "verb", ["cancel($1::bigint)", "cancel($1::bigint, force => true)", "soft_delete($1::bigint)"]
)
async def test_effect_that_ends_its_own_instance_fails(durable_dsn: str, db: Any, verb: str) -> None:
    class Suicidal(Machine[None, str]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[str]:
            return Done("done", effect=Sql(f"select gen_durable.{verb}", ctx.id))

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[str]:
            return Done(str(error))

    async with Worker([Suicidal], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(Suicidal), timeout=PATIENCE)
    assert "the instance of its own outcome" in str(ended.result)
    assert await db.fetchval("select count(*) from gen_durable.audit_events") == 0


LEFT_BEHIND = [
    "select pg_advisory_lock(4711)",
    "create temp table leftover (a int)",
    "listen leftover",
    "set search_path = nowhere",
    "declare leftover cursor with hold for select 1",
]


async def test_effect_leaves_no_state_on_its_session(durable_dsn: str, db: Any) -> None:
    """Session-level settings, locks and tables of one effect are gone before the next."""

    class Messy(Machine[int, str]):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[str]:
            return Done("done", effect=Sql(LEFT_BEHIND[ctx.state]))

    class Looking(Machine[None, list[str]]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[list[str]]:
            async def look(tx: Transaction) -> None:
                found.append(await tx.fetchval("select pg_backend_pid()"))
                found.append(
                    await tx.fetchval(
                        "select to_regclass('leftover') is null and current_setting('search_path') not like 'nowhere%'"
                        " and not exists (select from pg_listening_channels())"
                        " and not exists (select from pg_cursors where name = 'leftover')"
                        " and not exists (select from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())"
                    )
                )

            return Done([], effect=look)

    found: list[Any] = []
    async with Worker([Messy, Looking], dsn=durable_dsn, settings=CALM, queues={"default": 1}) as worker:
        for number in range(len(LEFT_BEHIND)):
            assert (await worker.wait(await worker.insert(Messy, number), timeout=PATIENCE)).result == "done"
            await worker.wait(await worker.insert(Looking), timeout=PATIENCE)
        assert found[1::2] == [True] * len(LEFT_BEHIND)
        assert len(set(found[::2])) == 1, "all on one session, or nothing was tried"


async def test_role_timeouts_do_not_apply_to_effects(durable_dsn: str, db: Any) -> None:
    if await db.fetchval("select current_setting('server_version_num')::int") < 170000:
        pytest.skip("transaction_timeout is new in 17")
    name = await db.fetchval("select current_database()")

    class Slow(Machine[None, str]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[str]:
            return Done("done", effect=Sql("select pg_sleep(0.7)"))

    async with Worker([Slow], dsn=durable_dsn, settings=CALM) as worker:
        # Set now, so that it applies to connections of effects, which are opened on demand.
        await db.execute(f"alter database \"{name}\" set transaction_timeout = '300ms'")
        refs = await worker.insert_all([Spec(Slow), Spec(Slow)])
        assert {one.result for one in await worker.wait_all(refs, timeout=PATIENCE)} == {"done"}


async def test_role_transaction_timeout_is_overridden(durable_dsn: str, db: Any) -> None:
    if await db.fetchval("select current_setting('server_version_num')::int") < 170000:
        pytest.skip("transaction_timeout is new in 17")
    name = await db.fetchval("select current_database()")
    await db.execute(f"alter database \"{name}\" set transaction_timeout = '100ms'")

    def look() -> Plan[Any]:
        return (
            yield Statement("look", "select pg_sleep(0.2), current_setting('transaction_timeout') as value")()
        )

    for for_effects in (False, True):
        async with await Database.open(durable_dsn, "gen_durable", for_effects=for_effects) as pooled:
            assert (await pooled.run(look()))[0]["value"] == "0"
            assert (await pooled.run_in_transaction(look()))[0]["value"] == "0"
    with closing(BlockingDatabase(durable_dsn, "gen_durable")) as database:
        assert (await asyncio.to_thread(database.run, look()))[0]["value"] == "0"
    conn = await connect(durable_dsn)
    assert (await run_asyncpg(conn, look(), "gen_durable"))[0]["value"] == "0"
    await conn.close()


async def test_unsupported_setting_is_tried_once(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL 16 does not know transaction_timeout."""
    monkeypatch.setattr(connector, "NEWER", {"no_such_setting": "0"})
    monkeypatch.setattr(connector, "_NEWER_SINCE", 1000)
    monkeypatch.setattr(connector, "_older", set())
    tried: list[bool] = []
    really = asyncpg.connect

    async def recording_connect(*args: Any, **options: Any) -> Any:
        if args[0] == durable_dsn:  # not the heartbeat thread of an earlier test, which may still be ending
            tried.append("no_such_setting" in options["server_settings"])
        return await really(*args, **options)

    monkeypatch.setattr(asyncpg, "connect", recording_connect)
    for _ in range(2):
        async with await Database.open(durable_dsn, "gen_durable"):
            pass
    assert tried == [True, False, False]
    monkeypatch.setattr(blocking, "NEWER", {"no_such_setting": "0"})
    monkeypatch.setattr(blocking, "_OPTIONS", {True: "-c no_such_setting=0", False: "-c jit=off"})
    with closing(BlockingDatabase(durable_dsn, "gen_durable")) as database:
        rows = await asyncio.to_thread(database.run, only(Statement("look", "show jit")()))
    assert rows == [{"jit": "off"}]


async def test_slow_effects_do_not_delay_each_other(durable_dsn: str, db: Any) -> None:
    """There are as many effect connections as running steps."""

    class Effective(Machine[str, str]):
        @step
        async def run(self, ctx: Context[str]) -> Outcome[str]:
            async def effect(tx: Transaction) -> None:
                if ctx.state == "slow":
                    begun.append(ctx.id)
                    await may_end.wait()
                await tx.execute(BOOK, ctx.idempotency_key, "")

            return Done(ctx.state, effect=effect)

    begun: list[int] = []
    may_end = asyncio.Event()
    async with Worker([Effective], dsn=durable_dsn, settings=CALM, queues={"default": 13}) as worker:
        slow = await worker.insert_all([Spec(Effective, "slow") for _ in range(12)])
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while len(begun) < 12:
                await asyncio.sleep(0.01)
        assert (await worker.wait(await worker.insert(Effective, "quick"), timeout=PATIENCE)).status == "done"
        may_end.set()
        assert {one.result for one in await worker.wait_all(slow, timeout=PATIENCE)} == {"slow"}
