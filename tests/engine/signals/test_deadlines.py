"""Await with a timeout or a deadline."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gen_durable import (
    AsyncClient,
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    Signal,
    Status,
    Stop,
    Worker,
    step,
)
from gen_durable.testing import AsyncHarness
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, happens, holds

SOON = timedelta(milliseconds=200)


class Bounded(Machine[None, list[Any]]):
    @step
    async def start(self, ctx: Context[None]) -> Outcome[list[Any]]:
        return Await("paid", then=self.woken, timeout=SOON)

    @step
    async def woken(self, ctx: Context[None]) -> Outcome[list[Any]]:
        return Done([ctx.timed_out, ctx.attempt, ctx.step_seq, [message.name for message in ctx.inbox]])


async def test_deadline_may_be_a_datetime(durable_dsn: str, db: Any) -> None:
    moment = datetime.now(UTC) + timedelta(seconds=3600)

    class Dated(Bounded, name="Dated"):
        @step
        async def start(self, ctx: Context[None]) -> Outcome[list[Any]]:
            return Await("paid", then=self.woken, deadline=moment)

    async with Worker([Dated], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Dated)
        parked = await worker.wait(ref, timeout=PATIENCE, until="parked")
        assert parked.await_deadline == moment
        await db.execute("update gen_durable.gen_durable set await_deadline = now()")
        assert (await worker.wait(ref, timeout=PATIENCE)).result == [True, 0, 2, []]


async def test_deadline_in_the_past_wakes_at_once(durable_dsn: str) -> None:
    class Late(Bounded, name="Late"):
        @step
        async def start(self, ctx: Context[None]) -> Outcome[list[Any]]:
            return Await("paid", then=self.woken, deadline=datetime(2001, 1, 1, tzinfo=UTC))

    async with Worker([Late], dsn=durable_dsn, settings=CALM) as worker:
        assert (await worker.wait(await worker.insert(Late), timeout=PATIENCE)).result == [True, 0, 2, []]


async def test_await_without_signals_is_a_durable_sleep(durable_dsn: str, db: Any) -> None:
    class Sleep(Machine[None, bool]):
        @step
        async def start(self, ctx: Context[None]) -> Outcome[bool]:
            return Await(then=self.woken, timeout=SOON)

        @step
        async def woken(self, ctx: Context[None]) -> Outcome[bool]:
            return Done(ctx.timed_out)

    async with AsyncClient(durable_dsn, settings=CALM) as client:
        async with Worker([Sleep], dsn=durable_dsn, settings=CALM) as worker:
            ref = await worker.insert(Sleep)
            parked = await worker.wait(ref, timeout=PATIENCE, until="parked")
            assert (parked.status, parked.awaits) == (Status.AWAITING_SIGNAL, ())
        await holds(db, "select await_deadline < now() from gen_durable.gen_durable")
        async with Worker([Sleep], dsn=durable_dsn, settings=CALM):
            assert (await client.wait(ref, timeout=PATIENCE)).result is True


@pytest.mark.clause("TMO-5")
@pytest.mark.parametrize("source", ["step", "handle"])
async def test_retry_keeps_timed_out_and_a_transition_clears_it(durable_dsn: str, source: str) -> None:
    seen: list[tuple[str, int, bool]] = []

    class Again(Machine[None, None]):
        @step
        async def start(self, ctx: Context[None]) -> Outcome[None]:
            return Await("paid", then=self.woken, timeout=timedelta(0))

        @step
        async def woken(self, ctx: Context[None]) -> Outcome[None]:
            seen.append((ctx.step, ctx.attempt, ctx.timed_out))
            if ctx.attempt < 2 and source == "handle":
                raise ValueError
            return Retry() if ctx.attempt < 2 else Next(self.end)

        @step
        async def end(self, ctx: Context[None]) -> Outcome[None]:
            seen.append((ctx.step, ctx.attempt, ctx.timed_out))
            return Done()

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[None]:
            assert ctx.timed_out
            return Retry()

    async with Worker([Again], dsn=durable_dsn, settings=CALM) as worker:
        await worker.wait(await worker.insert(Again), timeout=PATIENCE)
    assert seen == [("woken", 0, True), ("woken", 1, True), ("woken", 2, True), ("end", 0, False)]


class Payment(Machine[None, str]):
    """Ships if it was paid; retries once after the deadline, then fails."""

    paid = Signal("paid", int)

    @step
    async def start(self, ctx: Context[None]) -> Outcome[str]:
        return Await(self.paid, then=self.ship, timeout=timedelta(hours=1))

    @step
    async def ship(self, ctx: Context[None]) -> Outcome[str]:
        if ctx.timed_out:
            return Retry(timedelta(hours=1)) if ctx.attempt == 0 else Stop("not paid")
        amount = ctx.awaited.get(self.paid)
        return Done(f"shipped for {amount}")


@pytest.mark.clause("TMO-6")
async def test_signal_between_deadline_and_pick_is_in_time(async_durable: AsyncHarness, db: Any) -> None:
    payment = await async_durable.insert(Payment)
    await async_durable.drain()
    await db.execute(
        "update gen_durable.gen_durable set await_deadline = now(), status = 'runnable', timed_out = true"
    )
    await async_durable.signal(payment, Payment.paid, 100)
    await async_durable.drain()
    assert async_durable.assert_done(payment) == "shipped for 100"


@pytest.mark.clause("TMO-6")
async def test_signal_that_is_not_awaited_does_not_undo_a_timeout(async_durable: AsyncHarness) -> None:
    payment = await async_durable.insert(Payment)
    await async_durable.drain()
    async_durable.advance(hours=1)
    await async_durable.signal(payment, "chatter")
    await async_durable.drain()
    async_durable.assert_failed(payment, match="not paid")


@pytest.mark.clause("TMO-5", "TMO-6")
async def test_signal_between_attempts_of_a_timed_out_step_is_in_time(async_durable: AsyncHarness) -> None:
    payment = await async_durable.insert(Payment)
    await async_durable.drain()
    async_durable.advance(hours=1)
    await async_durable.drain(collapse=False)
    assert async_durable.assert_at(payment, "ship").attempt == 1
    await async_durable.signal(payment, Payment.paid, 100)
    await async_durable.drain()
    assert async_durable.assert_done(payment) == "shipped for 100"


@pytest.mark.clause("TMO-6")
async def test_duplicate_signal_after_the_deadline_does_not_undo_a_timeout(
    async_durable: AsyncHarness,
) -> None:
    class Twice(Machine[int, list[Any]]):
        @step
        async def collect(self, ctx: Context[int]) -> Outcome[list[Any]]:
            if ctx.timed_out:
                return Done([message.payload for message in ctx.awaited])
            return Await("part", then=self.collect, timeout=timedelta(hours=1))

    ref = await async_durable.insert(Twice, 0)
    await async_durable.drain()
    await async_durable.signal(ref, "part", 1, dedup_key="1")
    await async_durable.drain()
    async_durable.advance(hours=1)
    await async_durable.signal(ref, "part", 1, dedup_key="1")
    await async_durable.drain()
    assert async_durable.assert_done(ref) == [1]


@pytest.mark.clause("TMO-6")
async def test_signal_while_a_timed_out_step_runs_is_for_the_next_step(durable_dsn: str) -> None:
    is_there, may_go = asyncio.Event(), asyncio.Event()

    class Slow(Machine[None, list[Any]]):
        @step
        async def start(self, ctx: Context[None]) -> Outcome[list[Any]]:
            return Await("paid", then=self.woken, timeout=timedelta(0))

        @step
        async def woken(self, ctx: Context[None]) -> Outcome[list[Any]]:
            is_there.set()
            await may_go.wait()
            assert ctx.timed_out
            return Next(self.end)

        @step
        async def end(self, ctx: Context[None]) -> Outcome[list[Any]]:
            return Done([ctx.timed_out, len(ctx.awaited), len(ctx.inbox)])

    async with Worker([Slow], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Slow)
        await happens(is_there)
        await worker.signal(ref, "paid")
        may_go.set()
        assert (await worker.wait(ref, timeout=PATIENCE)).result == [False, 0, 1]
