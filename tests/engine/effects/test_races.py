"""An effect runs without a row lock, so its row may change meanwhile; then the effect is rolled back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from gen_durable import (
    Await,
    Context,
    Done,
    ExecutionStatus,
    Machine,
    Outcome,
    Transaction,
    Worker,
    step,
)
from gen_durable._db import lease as leases
from gen_durable._db.pool import Database
from gen_durable._runtime import effects
from gen_durable.telemetry import OutcomeStale
from tests.support.ledger import BOOK, booked, busy_with
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events, happens


@asynccontextmanager
async def looking(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


_CANCEL = "update gen_durable.gen_durable set cancel_requested_at = now() where id = $1"
_EXPIRE = "update gen_durable.gen_durable set lease_expires_at = now() - interval '1 s' where id = $1"


class Booker(Machine[str, str]):
    """Its first effect books, then waits for the test."""

    def __init__(self) -> None:
        self.is_there, self.may_go = asyncio.Event(), asyncio.Event()
        self.runs: list[str] = []

    @step
    async def run(self, ctx: Context[str]) -> Outcome[str]:
        async def book(tx: Transaction) -> None:
            self.runs.append(ctx.idempotency_key)
            number = len(self.runs)
            await tx.execute(BOOK, ctx.idempotency_key, f"{number}")
            if number == 1:
                self.is_there.set()
                await self.may_go.wait()

        if ctx.state == "await":
            return Await("more", then=self.end, effect=book)
        return Done(f"attempt {ctx.attempt}", effect=book)

    @step
    async def end(self, ctx: Context[str]) -> Outcome[str]:
        return Done(f"{[message.name for message in ctx.awaited]}")


async def test_effect_whose_lease_is_lost_is_rolled_back(durable_dsn: str, db: Any) -> None:
    machine = Booker()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(machine, "done")
        await happens(machine.is_there)
        await db.execute(_EXPIRE, ref.id)
        async with await Database.open(durable_dsn, "gen_durable") as database:
            await database.run_in_transaction(
                leases.reap(timedelta(milliseconds=1), leases.CrashPolicy(20, "all"))
            )
        await db.execute("update gen_durable.gen_durable set eligible_at = now() where id = $1", ref.id)
        assert (await worker.wait(ref, timeout=PATIENCE)).result == "attempt 1"
        machine.may_go.set()
        await events.wait(OutcomeStale)
        first, second = await worker.executions(ref)
    assert machine.runs == [f"{ref.id}:1"] * 2
    assert [tuple(row) for row in await db.fetch("select key, who from ledger")] == [(f"{ref.id}:1", "2")]
    assert (first.status, first.outcome) == (ExecutionStatus.ABORTED, "lease")
    assert second.outcome == "done"


async def test_effect_of_a_cancelled_instance_is_rolled_back(durable_dsn: str, db: Any) -> None:
    machine = Booker()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(machine, "done")
        await happens(machine.is_there)
        async with asyncio.timeout(1):
            await db.execute(_CANCEL, ref.id)
        machine.may_go.set()
        ended = await worker.wait(ref, timeout=PATIENCE)
        (record,) = await worker.executions(ref)
    assert (ended.status, ended.step_seq) == ("cancelled", 0)
    assert (record.status, record.outcome) == (ExecutionStatus.ABORTED, "cancelled")
    assert await booked(db) == []
    assert events.of(OutcomeStale) == []


async def test_signal_during_an_effect_wakes_the_await(durable_dsn: str, db: Any) -> None:
    machine = Booker()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine, "await")
        await happens(machine.is_there)
        async with asyncio.timeout(1):
            await worker.signal(ref, "more")
        machine.may_go.set()
        assert (await worker.wait(ref, timeout=PATIENCE)).result == "['more']"
    assert await booked(db) == [f"{ref.id}:1"]


async def test_effect_does_not_deadlock_with_a_caller_that_updates_and_signals(
    durable_dsn: str, db: Any
) -> None:
    await db.execute("create table bill (paid int); insert into bill values (0)")
    runs: list[int] = []

    class Payer(Machine[None, str]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[str]:
            async def pay(tx: Transaction) -> None:
                runs.append(ctx.id)
                await tx.execute("update bill set paid = paid + 1")

            return Await("more", then=self.end, effect=pay)

        @step
        async def end(self, ctx: Context[None]) -> Outcome[str]:
            return Done("paid")

    async with Worker([Payer], dsn=durable_dsn, settings=CALM) as worker:
        async with db.transaction():
            await db.execute("update bill set paid = paid + 1")
            ref = await worker.insert(Payer)
            # On another connection: inside a transaction pg_stat_activity is a snapshot.
            async with looking(durable_dsn) as other:
                await busy_with(other, "update bill%")
            await worker.signal(ref, "more", conn=db)
        assert (await worker.wait(ref, timeout=PATIENCE)).result == "paid"
    assert await db.fetchval("select paid from bill") == 2
    assert len(runs) == 1, "it was not the victim of a deadlock"


async def test_effect_that_changes_its_isolation_level_fails(durable_dsn: str, db: Any) -> None:
    """Its snapshot would show neither the new signal nor the renewed lease."""
    runs: list[int] = []
    is_there, may_go = asyncio.Event(), asyncio.Event()

    class Still(Machine[None, str]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[str]:
            async def look(tx: Transaction) -> None:
                runs.append(ctx.id)
                await tx.execute("set transaction isolation level repeatable read")
                await tx.execute(BOOK, ctx.idempotency_key, "")
                is_there.set()
                await may_go.wait()

            return Await("more", then=self.end, effect=look)

        @step
        async def end(self, ctx: Context[None]) -> Outcome[str]:
            return Done("woken")

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[str]:
            return Await("more", then=self.end)

    async with Worker([Still], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Still)
        await happens(is_there)
        await worker.signal(ref, "more")
        await db.execute(
            "update gen_durable.gen_durable set lease_expires_at = lease_expires_at + interval '1 s'"
        )
        may_go.set()
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert (ended.result, len(runs)) == ("woken", 1)
    assert await booked(db) == []


class Racer(Machine[int, str]):
    """Its effect hits this many serialization failures, then books."""

    def __init__(self) -> None:
        self.runs = 0

    @step
    async def run(self, ctx: Context[int]) -> Outcome[str]:
        async def race(tx: Transaction) -> None:
            self.runs += 1
            await tx.execute(BOOK, ctx.idempotency_key, "")
            if self.runs <= ctx.state:
                await tx.execute("do $$ begin raise 'too late' using errcode = '40001'; end $$")

        return Done("done", effect=race)

    def handle(self, error: Exception, ctx: Context[int]) -> Outcome[str]:
        return Done(f"{error}")


@pytest.mark.parametrize(
    ("races", "result"),
    [
        (1, "done"),
        (
            9,
            "the effect lost 2 races against other transactions (too late (SQLSTATE 40001)); another transaction "
            "holds a lock that the effect needs: look for long transactions in pg_stat_activity",
        ),
    ],
)
async def test_effect_with_repeated_serialization_failures_fails(
    durable_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch, races: int, result: str
) -> None:
    monkeypatch.setattr(effects, "_MAX_RACES", 2)
    machine = Racer()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine, races)
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert (ended.result, machine.runs) == (result, 2)
    assert await booked(db) == ([f"{ref.id}:1"] if races == 1 else [])


async def test_effect_whose_outcome_repeatedly_times_out_fails(
    durable_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []

    class Hurried(Machine[None, str]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[str]:
            return Done("done", effect=self.shorten_timeout)

        async def shorten_timeout(self, tx: Transaction) -> None:
            runs.append(1)
            await tx.execute(BOOK, "hurried", "")
            await tx.execute("set local statement_timeout = '1ms'")

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[str]:
            return Done(f"{error}")

    await db.execute(
        "create function public.slow() returns trigger language plpgsql as"
        " $$ begin perform pg_sleep(0.1); return new; end $$"
    )
    await db.execute(
        "create trigger slow after update on gen_durable.gen_durable for each row"
        " when (new.status = 'done' and new.result = '\"done\"') execute function public.slow()"
    )
    monkeypatch.setattr(effects, "_MAX_RACES", 2)
    async with Worker([Hurried], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(Hurried), timeout=PATIENCE)
    assert ended.result.startswith("writing the outcome after the effect timed out 2 times (canceling")
    assert (len(runs), await booked(db)) == (2, [])
