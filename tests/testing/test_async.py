"""The async harness has the behaviour of the blocking one."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import asyncpg
import pytest

from gen_durable import Context, Done, Machine, Outcome, Settings, Spec, step
from gen_durable.errors import NotConnectedError, UnreachableError, UsageError
from gen_durable.testing import AsyncHarness, Crash, DrainCounts
from tests.testing.machines import Checkout, Flaky, Order, Parcel, Payment, Receipt, Shipment


async def test_async_harness_runs_an_order(async_durable: AsyncHarness) -> None:
    order = await async_durable.insert(Checkout, Order(42))
    assert await async_durable.drain() == DrainCounts(awaiting=1)
    async_durable.assert_awaiting(order, Checkout.payment)
    await async_durable.signal(order, Checkout.payment, Payment(100))
    assert await async_durable.drain() == DrainCounts(done=1)
    assert async_durable.assert_done(order) == Receipt(42, 100)
    assert [t.kind for t in async_durable.outcomes(order)] == ["await", "done"]


async def test_async_harness_has_advance_and_crash_at(async_durable: AsyncHarness) -> None:
    order = await async_durable.insert(Checkout, Order(42))
    with async_durable.crash_at(Checkout.start), pytest.raises(Crash):
        await async_durable.drain()
    assert await async_durable.drain() == DrainCounts(awaiting=1)
    async_durable.advance(hours=24)
    assert await async_durable.drain() == DrainCounts(next=2, awaiting=1)
    assert async_durable.fire_timeouts() == 1
    await async_durable.drain()
    async_durable.assert_failed(order, match="never came")


async def test_async_harness_runs_children_retries_and_batches(async_durable: AsyncHarness) -> None:
    shipment, flaky = await async_durable.insert_all([Spec(Shipment, [1, 2, 3]), Spec(Flaky, 2)])
    assert await async_durable.drain() == DrainCounts(children=1, done=4, stopped=1, retry=2)
    assert async_durable.assert_done(shipment) == ["parcel 1", "parcel 2"]
    assert async_durable.assert_done(flaky) == 2
    assert len(async_durable.instances(Parcel)) == 3


async def test_wait_returns_after_a_drain(async_durable: AsyncHarness) -> None:
    parcel = await async_durable.insert(Parcel, 1)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(async_durable.wait(parcel, timeout=timedelta(seconds=10)))
        await async_durable.drain()
    assert waiting.result().result == "parcel 1"


async def test_async_steps_run_on_the_loop_of_the_test(async_durable: AsyncHarness) -> None:
    seen: list[tuple[object, bool]] = []

    class Where(Machine[None, None]):
        @step
        async def look(self, ctx: Context[None]) -> Outcome[None]:
            seen.append((asyncio.get_running_loop(), threading.current_thread() is threading.main_thread()))
            return Done()

    await async_durable.insert(Where)
    await async_durable.drain()
    assert seen == [(asyncio.get_running_loop(), True)]


async def test_concurrent_drains_are_rejected(async_durable: AsyncHarness) -> None:
    class Slow(Machine[None, None]):
        @step
        async def sleep(self, ctx: Context[None]) -> Outcome[None]:
            with pytest.raises(UsageError, match="already draining"):
                await async_durable.drain()
            return Done()

    slow = await async_durable.insert(Slow)
    await async_durable.drain()
    async_durable.assert_done(slow)


async def test_drain_recovers_rows_of_a_cancelled_drain(async_durable: AsyncHarness) -> None:
    has_begun = asyncio.Event()

    class Hangs(Machine[None, int]):
        @step
        async def hang(self, ctx: Context[None]) -> Outcome[int]:
            if ctx.attempt == 0:
                has_begun.set()
                await asyncio.sleep(3600)
            return Done(ctx.attempt)

    hangs = await async_durable.insert(Hangs)
    draining = asyncio.ensure_future(async_durable.drain())
    await has_begun.wait()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    await async_durable.drain()
    assert async_durable.assert_done(hangs) == 1


async def test_harness_verbs_take_a_callers_transaction(async_durable: AsyncHarness) -> None:
    conn = await asyncpg.connect(async_durable.dsn)
    try:
        async with conn.transaction():
            parcel = await async_durable.insert(Parcel, 1, conn=conn)
            assert await async_durable.drain() == DrainCounts()
        assert await async_durable.drain() == DrainCounts(done=1)
        async_durable.assert_done(parcel)
    finally:
        await conn.close()


async def test_harness_can_be_opened_without_the_fixture(durable_dsn: str) -> None:
    async with AsyncHarness(durable_dsn) as harness:
        parcel = await harness.insert(Parcel, 1)
        await harness.drain()
        harness.assert_done(parcel)
    with pytest.raises(NotConnectedError):
        harness.assert_done(parcel)
    with pytest.raises(NotConnectedError):
        await harness.drain()


async def test_harness_installs_the_schema(durable_dsn: str) -> None:
    async with AsyncHarness(durable_dsn, settings=Settings(schema="second")) as harness:
        parcel = await harness.insert(Parcel, 1)
        await harness.drain()
        harness.assert_done(parcel)


def test_unreachable_database_raises() -> None:
    with pytest.raises(UnreachableError), AsyncHarness("postgresql://unknown@127.0.0.1:1/nowhere"):
        pass
