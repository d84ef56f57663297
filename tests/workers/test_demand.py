"""How much a worker leases: prefetch, min_demand, weights, and chained steps."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import click
import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Queue,
    RateLimit,
    Settings,
    SettingsError,
    Spec,
    Worker,
    step,
)
from gen_durable._db.pick import MAX_ROWS, Picked, PickRequest
from gen_durable._db.plan import Plan, Statement
from gen_durable._runtime.pick_source import FromQueue
from gen_durable.cli.options import prefix, queue
from gen_durable.telemetry import PickStop, SchedulerDrain, SchedulerSaturation
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events, happens, holds

HASTY = msgspec.structs.replace(CALM, drain_timeout=timedelta(milliseconds=100))
BY_STATUS = "select status::text, count(*) from gen_durable.gen_durable group by status"


class Gate(Machine[None, None]):
    """Stays in its step until `may_go` is set."""

    def __init__(self) -> None:
        self.begun = 0
        self.is_full, self.may_go = asyncio.Event(), asyncio.Event()
        self.full_at = 2

    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        self.begun += 1
        if self.begun == self.full_at:
            self.is_full.set()
        await self.may_go.wait()
        return Done()


@pytest.mark.clause("FED-1")
async def test_prefetched_rows_start_when_capacity_is_free(durable_dsn: str, db: Any) -> None:
    gate = Gate()
    queues = {"default": Queue(concurrency=2, prefetch=3)}
    async with Worker([gate], dsn=durable_dsn, settings=CALM, queues=queues) as worker:
        events = Events(worker)
        refs = await worker.insert_all([Spec(Gate) for _ in range(8)])
        await happens(gate.is_full)
        await holds(db, "select count(*) = 5 from gen_durable.gen_durable where status = 'executing'")
        full = await events.wait(SchedulerSaturation, lambda event: event.buffer == 3)
        assert (full.in_flight, full.concurrency, full.prefetch, full.queue) == (2, 2, 3, "default")
        assert gate.begun == 2
        gate.may_go.set()
        for ref in refs:
            await worker.wait(ref)
    assert not [event for event in events.of(SchedulerSaturation) if event.buffer > 3 or event.in_flight > 7]


@pytest.mark.clause("FED-2")
async def test_drain_releases_prefetched_rows_at_once(durable_dsn: str, db: Any) -> None:
    gate = Gate()
    patient = msgspec.structs.replace(CALM, drain_timeout=timedelta(seconds=20))
    queues = {"default": Queue(concurrency=2, prefetch=3)}
    worker = Worker([gate], dsn=durable_dsn, settings=patient, queues=queues)
    async with worker:
        events = Events(worker)
        await worker.insert_all([Spec(Gate) for _ in range(8)])
        await events.wait(SchedulerSaturation, lambda event: event.buffer == 3)
        closing = asyncio.ensure_future(worker.__aexit__(None, None, None))
        # Long before the drain timeout of the running steps.
        await holds(db, "select count(*) = 6 from gen_durable.gen_durable where status = 'runnable'")
        assert gate.begun == 2
        gate.may_go.set()
        await closing
    assert dict(await db.fetch(BY_STATUS)) == {"done": 2, "runnable": 6}
    left = "select distinct attempt, crash_count, eligible_at = inserted_at from gen_durable.gen_durable where status = 'runnable'"
    assert [tuple(row) for row in await db.fetch(left)] == [(0, 0, True)]
    assert events.of(SchedulerDrain) == [SchedulerDrain(released=3, in_flight=5, queue="default")]


async def test_a_demand_of_more_than_one_pick_is_filled_without_a_pause(durable_dsn: str) -> None:
    gate = Gate()
    gate.full_at = MAX_ROWS + 1
    pause = timedelta(minutes=1)
    slow = msgspec.structs.replace(CALM, poll_interval=pause, min_poll_interval=pause)
    async with AsyncClient(durable_dsn, settings=slow) as client:
        await client.insert_all([Spec(Gate) for _ in range(gate.full_at)])
    queues = {"default": Queue(concurrency=2 * MAX_ROWS)}
    async with Worker([gate], dsn=durable_dsn, settings=slow, queues=queues) as worker:
        events = Events(worker)
        await happens(gate.is_full)
        gate.may_go.set()
    assert max(event.demand for event in events.of(PickStop)) == MAX_ROWS


@pytest.mark.clause("FED-3")
async def test_picks_wait_for_min_demand(durable_dsn: str) -> None:
    class Quick(Machine[int, None]):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[None]:
            await asyncio.sleep(0.001 * (ctx.state % 10))
            return Done()

    # Long enough that no pick happens because poll_interval has passed.
    slow = msgspec.structs.replace(CALM, poll_interval=timedelta(seconds=15))
    queues = {"default": Queue(concurrency=10, min_demand=5)}
    async with Worker([Quick], dsn=durable_dsn, settings=slow, queues=queues) as worker:
        events = Events(worker)
        refs = await worker.insert_all([Spec(Quick, number) for number in range(100)])
        for ref in refs:
            await worker.wait(ref)
        demands = [event.demand for event in events.of(PickStop)]
    assert min(demands) >= 5


@pytest.mark.clause("FED-6")
async def test_picks_of_a_backlog_wait_for_half_of_the_capacity(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Quick(Machine[int, None]):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[None]:
            await asyncio.sleep(0.0005 * (ctx.state % 4))
            return Done()

    pick = FromQueue.pick

    def slow_pick(self: FromQueue, request: PickRequest) -> Plan[Picked]:
        yield Statement("slow", "select pg_sleep(0.1)")()
        return (yield from pick(self, request))

    monkeypatch.setattr(FromQueue, "pick", slow_pick)
    patient = msgspec.structs.replace(CALM, min_poll_interval=timedelta(milliseconds=100))
    async with Worker([Quick], dsn=durable_dsn, settings=patient, queues={"default": 20}) as worker:
        events = Events(worker)
        refs = await worker.insert_all([Spec(Quick, number) for number in range(100)])
        for ref in refs:
            await worker.wait(ref)
        demands = [event.demand for event in events.of(PickStop) if event.count]
    assert min(demands) >= 10, demands


async def test_capacity_freed_during_a_pick_starts_a_row_with_a_rate_limit(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pick is sent without capacity, so it leaves the row. The only step ends before the pick returns."""
    gate = Gate()
    gate.full_at = 1
    pick = FromQueue.pick

    def slow_pick(self: FromQueue, request: PickRequest) -> Plan[Picked]:
        picked = yield from pick(self, request)
        if picked.is_awaiting_capacity:
            gate.may_go.set()
            yield Statement("slow", "select pg_sleep(0.5)")()
        return picked

    monkeypatch.setattr(FromQueue, "pick", slow_pick)
    limit = RateLimit("crm", 10, timedelta(seconds=1))
    queues = {"default": Queue(concurrency=1, prefetch=1)}
    async with Worker([gate], dsn=durable_dsn, settings=CALM, limits=[limit], queues=queues) as worker:
        first = await worker.insert(Gate)
        await happens(gate.is_full)
        second = await worker.insert(Gate, rate_limit="crm")
        for ref in (first, second):
            await worker.wait(ref, timeout=PATIENCE)
    assert gate.begun == 2


async def test_demand_below_min_demand_waits_one_poll_interval(durable_dsn: str) -> None:
    gate = Gate()
    gate.full_at = 3
    queues = {"default": Queue(concurrency=3, min_demand=3)}
    async with Worker([gate], dsn=durable_dsn, settings=HASTY, queues=queues) as worker:
        for _ in range(3):
            await worker.insert(Gate)
        await happens(gate.is_full)


@pytest.mark.clause("FED-4")
async def test_queues_share_a_worker_by_weight(durable_dsn: str) -> None:
    order: list[str] = []

    class Job(Machine[str, None]):
        @step
        async def run(self, ctx: Context[str]) -> Outcome[None]:
            order.append(ctx.state)
            await asyncio.sleep(0.001)
            return Done()

    shared = msgspec.structs.replace(CALM, concurrency=2)
    queues = {"high": Queue(concurrency=10, weight=3), "low": Queue(concurrency=10, weight=1)}
    async with Worker([Job], dsn=durable_dsn, settings=shared, queues=queues) as worker:
        events = Events(worker)
        refs = await worker.insert_all(
            [Spec(Job, name, queue=name) for name in ("low", "high") for _ in range(80)]
        )
        for ref in refs:
            await worker.wait(ref)
    shares = Counter(order[:80])
    assert 50 <= shares["high"] <= 70, shares
    assert all(event.demand <= 2 for event in events.of(PickStop))


async def test_a_worker_runs_no_more_than_its_concurrency(durable_dsn: str, db: Any) -> None:
    gate = Gate()
    gate.full_at = 3
    shared = msgspec.structs.replace(HASTY, concurrency=3)
    async with Worker([gate], dsn=durable_dsn, settings=shared, queues={"a": 10, "b": 10}) as worker:
        await worker.insert_all([Spec(Gate, queue=name) for name in "ab" for _ in range(5)])
        await happens(gate.is_full)
        await asyncio.sleep(0.3)
        assert gate.begun == 3
        assert dict(await db.fetch(BY_STATUS)) == {"executing": 3, "runnable": 7}
        gate.may_go.set()
        await holds(db, "select count(*) = 10 from gen_durable.gen_durable where status = 'done'")


@pytest.mark.clause("FED-5")
@pytest.mark.parametrize(
    ("steps", "time", "turns"),
    [(3, timedelta(seconds=20), 2), (1, timedelta(seconds=20), 6), (9, timedelta(0), 6)],
)
async def test_chain_ends_after_chain_steps_or_chain_time(
    durable_dsn: str, steps: int, time: timedelta, turns: int
) -> None:
    class Walk(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            return Next(self.run) if ctx.step_seq < 6 else Done()

    settings = msgspec.structs.replace(CALM, chain_steps=steps, chain_time=time)
    async with Worker([Walk], dsn=durable_dsn, settings=settings) as worker:
        events = Events(worker)
        await worker.wait(await worker.insert(Walk))
        assert sum(event.count for event in events.of(PickStop)) == turns


def test_command_line_sets_all_queue_options() -> None:
    assert queue("mail=10") == ("mail", Queue())
    assert queue("mail=4,prefetch=5,min-demand=3,weight=2") == (
        "mail",
        Queue(concurrency=4, prefetch=5, min_demand=3, weight=2),
    )
    assert queue("a,b=c=4,weight=2") == ("a,b=c", Queue(concurrency=4, weight=2))
    assert prefix("billing.,weight=3") == ("billing.", Queue(weight=3))
    for wrong in ("mail=4,prefetc=5", "mail=4,prefetch=x", "mail=4,weight=0", "mail=2,min-demand=3"):
        with pytest.raises(click.BadParameter):
            queue(wrong)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prefetch": -1}, "queue.prefetch must be at least 0"),
        ({"weight": 0}, "queue.weight must be at least 1"),
        ({"concurrency": 2, "prefetch": 1, "min_demand": 4}, r"prefetch \(3\), got 4"),
    ],
)
def test_invalid_queue_options_are_refused(given: dict[str, int], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Queue(**given)
    with pytest.raises(SettingsError, match=r"settings\.chain_steps must be at least 1"):
        Settings(chain_steps=0)
