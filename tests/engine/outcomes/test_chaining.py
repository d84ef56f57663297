"""Chaining: the next step runs on the same lease, as after a fresh pick, and for a bounded time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Queue,
    RateLimit,
    Retry,
    Settings,
    Worker,
    step,
)
from gen_durable.telemetry import PickStop, StepStop
from tests.support.rows import row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events, happens

ONE_SLOT = {"default": Queue(concurrency=1)}


class Count(Machine[int, int]):
    """Counts down, one step per number."""

    @step
    async def down(self, ctx: Context[int]) -> Outcome[int]:
        return Next(self.down, ctx.state - 1) if ctx.state else Done(ctx.step_seq)


@pytest.mark.clause("OUT-15")
async def test_chain_runs_on_one_lease_and_commits_every_step(durable_dsn: str, db: Any) -> None:
    async with Worker([Count], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(Count, 20)
        ended = await worker.wait(ref, timeout=PATIENCE)
        assert (ended.result, ended.step_seq) == (21, 21)
        assert [event.kind for event in events.of(StepStop)] == ["next"] * 20 + ["done"]
        assert sum(event.count for event in events.of(PickStop)) == 1
        assert (await row_of(db, ref.id))["execution"] == 21, "each step is an execution of its own"


async def test_chain_starts_after_a_rate_limited_step(durable_dsn: str) -> None:
    limit = RateLimit("crm", 100, per=timedelta(seconds=1))
    async with Worker([Count], dsn=durable_dsn, settings=CALM, limits=[limit]) as worker:
        events = Events(worker)
        await worker.wait(await worker.insert(Count, 5, rate_limit="crm"), timeout=PATIENCE)
    assert sum(event.count for event in events.of(PickStop)) == 2


@pytest.mark.clause("OUT-15")
async def test_chain_ends_after_fifty_steps(durable_dsn: str) -> None:
    async with Worker([Count], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        ended = await worker.wait(await worker.insert(Count, 120), timeout=PATIENCE)
    assert ended.result == 121
    # 50, 50 and 21; on a slow machine chain_time ends a chain earlier.
    assert sum(event.count for event in events.of(PickStop)) >= 3


@pytest.mark.clause("OUT-15")
async def test_chain_ends_after_chain_time(durable_dsn: str) -> None:
    class Slow(Machine[int, None]):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[None]:
            await asyncio.sleep(0.06)
            return Next(self.run, ctx.state - 1) if ctx.state else Done()

    usual = msgspec.structs.replace(CALM, chain_time=Settings().chain_time)
    async with Worker([Slow], dsn=durable_dsn, settings=usual) as worker:
        events = Events(worker)
        await worker.wait(await worker.insert(Slow, 5), timeout=PATIENCE)
    assert sum(event.count for event in events.of(PickStop)) >= 3


async def test_chain_does_not_starve_other_rows(durable_dsn: str) -> None:
    order: list[str] = []

    class Endless(Machine[int, None]):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[None]:
            order.append("endless")
            return Next(self.run, ctx.state + 1) if "quick" not in order else Done()

    class Quick(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            order.append("quick")
            return Done()

    async with AsyncClient(durable_dsn, settings=CALM) as client:
        endless, _ = await client.insert(Endless, 0), await client.insert(Quick)
        async with Worker([Endless, Quick], dsn=durable_dsn, settings=CALM, queues=ONE_SLOT):
            await client.wait(endless, timeout=PATIENCE)
    assert order[0] == "endless"
    assert order.index("quick") <= 50


async def test_chained_step_sees_new_signals(durable_dsn: str) -> None:
    is_there, may_go = asyncio.Event(), asyncio.Event()

    class Walk(Machine[None, list[list[str]]]):
        @step
        async def one(self, ctx: Context[None]) -> Outcome[list[list[str]]]:
            assert not ctx.inbox
            is_there.set()
            await may_go.wait()
            return Next(self.two)

        @step
        async def two(self, ctx: Context[None]) -> Outcome[list[list[str]]]:
            assert ctx.step_seq == 2
            return Done([[message.name for message in ctx.inbox], [message.name for message in ctx.awaited]])

    async with Worker([Walk], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(Walk)
        await happens(is_there)
        await worker.signal(ref, "news", {"n": 1})
        may_go.set()
        # The signal is in the inbox, but was not awaited.
        assert (await worker.wait(ref, timeout=PATIENCE)).result == [["news"], []]
        assert sum(event.count for event in events.of(PickStop)) == 1


async def test_chained_step_gets_the_committed_state(
    durable_dsn: str,
) -> None:
    kept: list[dict[str, Any]] = []

    class Walk(Machine[dict[str, Any], dict[str, Any]]):
        @step
        async def one(self, ctx: Context[dict[str, Any]]) -> Outcome[dict[str, Any]]:
            kept.append(ctx.state)
            ctx.state["n"] += 1
            return Next(self.two)

        @step
        async def two(self, ctx: Context[dict[str, Any]]) -> Outcome[dict[str, Any]]:
            kept[0]["n"] = "changed by the previous step"
            assert ctx.raw_state == '{"n":1}'
            return Done(ctx.state)

    async with Worker([Walk], dsn=durable_dsn, settings=CALM) as worker:
        assert (await worker.wait(await worker.insert(Walk, {"n": 0}), timeout=PATIENCE)).result == {"n": 1}


async def test_retry_in_a_chain_repeats_only_its_step(durable_dsn: str) -> None:
    seen: list[tuple[str, int, str]] = []

    class Walk(Machine[None, None]):
        @step
        async def one(self, ctx: Context[None]) -> Outcome[None]:
            seen.append((ctx.step, ctx.attempt, ctx.idempotency_key))
            return Next(self.two)

        @step
        async def two(self, ctx: Context[None]) -> Outcome[None]:
            seen.append((ctx.step, ctx.attempt, ctx.idempotency_key))
            return Retry() if ctx.attempt == 0 else Done()

    async with Worker([Walk], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(Walk), timeout=PATIENCE)
    assert seen == [("one", 0, f"{ended.id}:1"), ("two", 0, f"{ended.id}:2"), ("two", 1, f"{ended.id}:2")]


async def test_chained_step_does_not_see_its_predecessors_awaited_signals(durable_dsn: str) -> None:
    class Walk(Machine[None, list[int]]):
        @step
        async def start(self, ctx: Context[None]) -> Outcome[list[int]]:
            return Await("go", then=self.woken, timeout=PATIENCE)

        @step
        async def woken(self, ctx: Context[None]) -> Outcome[list[int]]:
            assert len(ctx.awaited) == 1
            return Next(self.chained)

        @step
        async def chained(self, ctx: Context[None]) -> Outcome[list[int]]:
            return Done([len(ctx.awaited), len(ctx.inbox), int(ctx.timed_out)])

    async with Worker([Walk], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Walk)
        await worker.wait(ref, timeout=PATIENCE, until="parked")
        await worker.signal(ref, "go")
        assert (await worker.wait(ref, timeout=PATIENCE)).result == [0, 0, 0]
