"""Awaiting signals: which signals wake a step, and what it sees."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gen_durable import (
    Await,
    Context,
    Delivered,
    Done,
    Machine,
    Outcome,
    Worker,
    step,
)
from tests.support.rows import row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, happens

Names = list[list[str]]


def _names(ctx: Context[Any]) -> Names:
    """The names of the awaited signals and of the whole inbox."""
    return [[message.name for message in ctx.awaited], [message.name for message in ctx.inbox]]


class Patient(Machine[None, Names]):
    """Awaits one of two signals, and returns what it saw."""

    @step
    async def start(self, ctx: Context[None]) -> Outcome[Names]:
        return Await("paid", "withdrawn", then=self.woken)

    @step
    async def woken(self, ctx: Context[None]) -> Outcome[Names]:
        return Done(_names(ctx))


@pytest.mark.clause("SIG-4", "SIG-9")
async def test_signal_that_is_not_awaited_does_not_wake(durable_dsn: str, db: Any) -> None:
    async with Worker([Patient], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Patient)
        await worker.wait(ref, timeout=PATIENCE, until="parked")
        assert await worker.signal(ref, "chatter") == Delivered(ref.id, is_awaited=False)
        row = await row_of(db, ref.id)
        assert (row["status"], row["execution"]) == ("awaiting_signal", 1)
        await worker.signal(ref, "paid")
        assert (await worker.wait(ref, timeout=PATIENCE)).result == [["paid"], ["chatter", "paid"]]


@pytest.mark.clause("SIG-7", "SIG-9")
async def test_await_returns_at_once_if_its_signal_is_in_the_inbox(durable_dsn: str) -> None:
    async with Worker([Patient], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Patient, queue="later", correlation_key="order:1")
        assert await worker.signal("order:1", "withdrawn") == Delivered(ref.id, is_awaited=False)
        async with Worker([Patient], dsn=durable_dsn, settings=CALM, queues={"later": 1}):
            assert (await worker.wait(ref, timeout=PATIENCE)).result == [["withdrawn"], ["withdrawn"]]


@pytest.mark.clause("SIG-8", "SIG-7")
async def test_signal_during_the_step_wakes_its_await(durable_dsn: str) -> None:
    is_there, may_go = asyncio.Event(), asyncio.Event()

    class Hesitant(Patient, name="Hesitant"):
        @step
        async def start(self, ctx: Context[None]) -> Outcome[Names]:
            assert _names(ctx) == [[], []]
            is_there.set()
            await may_go.wait()
            return Await("paid", then=self.woken)

    async with Worker([Hesitant], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Hesitant)
        await happens(is_there)
        assert await worker.signal(ref, "paid") == Delivered(ref.id, is_awaited=False)
        may_go.set()
        assert (await worker.wait(ref, timeout=PATIENCE)).result == [["paid"], ["paid"]]


async def test_unconsumed_signal_wakes_a_later_await(durable_dsn: str) -> None:
    class Two(Machine[None, Names]):
        @step
        async def start(self, ctx: Context[None]) -> Outcome[Names]:
            return Await("first", then=self.middle)

        @step
        async def middle(self, ctx: Context[None]) -> Outcome[Names]:
            assert _names(ctx) == [["first"], ["second", "first"]]
            return Await("second", then=self.end)

        @step
        async def end(self, ctx: Context[None]) -> Outcome[Names]:
            return Done(_names(ctx))

    async with Worker([Two], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Two)
        await worker.wait(ref, timeout=PATIENCE, until="parked")
        await worker.signal(ref, "second")
        await worker.signal(ref, "first")
        # Await consumes nothing: the first signal is still in the inbox.
        assert (await worker.wait(ref, timeout=PATIENCE)).result == [["second"], ["second", "first"]]
