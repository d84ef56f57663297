"""Consuming signals: a transition consumes the awaited ones, a retry none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gen_durable import (
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Spec,
    Worker,
    step,
)
from gen_durable.telemetry import StepStop
from tests.support.rows import inbox_of, row_of
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import PATIENCE, Events, happens

Names = list[list[str]]


def _names(ctx: Context[Any]) -> Names:
    """The names of the awaited signals and of the whole inbox."""
    return [[message.name for message in ctx.awaited], [message.name for message in ctx.inbox]]


class Consumer(Machine[str, Names]):
    """Awaits, makes the transition that its state names, and returns what is left."""

    def __init__(self) -> None:
        self.is_woken = asyncio.Event()
        self.may_go = asyncio.Event()

    @step
    async def start(self, ctx: Context[str]) -> Outcome[Names]:
        return Await("paid", then=self.woken)

    @step
    async def woken(self, ctx: Context[str]) -> Outcome[Names]:
        assert _names(ctx) == [["paid"], ["chatter", "paid"]]
        self.is_woken.set()
        await self.may_go.wait()
        if ctx.state == "handle":
            raise ValueError
        return Next(self.left) if ctx.state == "next" else ScheduleChildren([Spec(Leaf)], then=self.left)

    @step
    async def left(self, ctx: Context[str]) -> Outcome[Names]:
        return Await("paid", then=self.end, state=" ".join(_names(ctx)[1]))

    @step
    async def end(self, ctx: Context[str]) -> Outcome[Names]:
        return Done([ctx.state.split(), *_names(ctx)])

    def handle(self, error: Exception, ctx: Context[str]) -> Outcome[Names]:
        return Next(self.left)


class Leaf(Machine[None, None]):
    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        return Done(None)


@pytest.mark.clause("SIG-10")
@pytest.mark.parametrize("way", ["next", "children", "handle"])
async def test_transition_consumes_exactly_the_awaited_signals(durable_dsn: str, way: str) -> None:
    machine = Consumer()
    async with Worker([machine, Leaf], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine, way)
        await worker.wait(ref, timeout=PATIENCE, until="parked")
        await worker.signal(ref, "chatter")
        await worker.signal(ref, "paid", "first")
        await happens(machine.is_woken)
        # Arrives after the step read its inbox.
        await worker.signal(ref, "paid", "second")
        machine.may_go.set()
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert ended.result == [["chatter", "paid"], ["paid"], ["chatter", "paid"]]


@pytest.mark.clause("SIG-13")
@pytest.mark.parametrize("source", ["step", "handle"])
async def test_retry_keeps_the_awaited_set_and_consumes_nothing(
    durable_dsn: str, db: Any, source: str
) -> None:
    seen: list[Names] = []

    class Again(Machine[None, None]):
        @step
        async def start(self, ctx: Context[None]) -> Outcome[None]:
            return Await("paid", then=self.woken)

        @step
        async def woken(self, ctx: Context[None]) -> Outcome[None]:
            seen.append(_names(ctx))
            if ctx.attempt < 2 and source == "handle":
                raise ValueError
            return Retry() if ctx.attempt < 2 else Next(self.end, delay=AN_HOUR)

        @step
        async def end(self, ctx: Context[None]) -> Outcome[None]:
            return Done()

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[None]:
            assert _names(ctx)[0] == ["paid"]
            return Retry()

    async with Worker([Again], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(Again)
        await worker.wait(ref, timeout=PATIENCE, until="parked")
        await worker.signal(ref, "chatter")
        await worker.signal(ref, "paid")
        await events.wait(StepStop, lambda event: event.kind == "next")
        row = await row_of(db, ref.id)
    assert seen == [[["paid"], ["chatter", "paid"]]] * 3
    assert (row["awaits"], await inbox_of(db, ref.id)) == (None, ["chatter"])
