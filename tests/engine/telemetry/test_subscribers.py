"""What a worker tells while it works, and that nobody who listens can break it."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Queue,
    Retry,
    ScheduleChildren,
    Spec,
    Stop,
    Worker,
    step,
)
from gen_durable.telemetry import Event, PickStop, SchedulerDrain, SchedulerSaturation, StepStop
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events, happens


class Leaf(Machine[None, None]):
    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        return Done()


class Tour(Machine[None, None]):
    """Every outcome once."""

    @step
    async def one(self, ctx: Context[None]) -> Outcome[None]:
        await asyncio.sleep(0.02)
        return Next(self.two)

    @step
    async def two(self, ctx: Context[None]) -> Outcome[None]:
        return Retry() if ctx.attempt == 0 else Await(then=self.three, timeout=timedelta(0))

    @step
    async def three(self, ctx: Context[None]) -> Outcome[None]:
        return ScheduleChildren([Spec(Leaf)], then=self.four)

    @step
    async def four(self, ctx: Context[None]) -> Outcome[None]:
        return Stop("seen it all")


async def test_every_committed_outcome_is_told_with_its_kind_and_duration(durable_dsn: str) -> None:
    async with Worker([Tour, Leaf], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(Tour)
        await events.wait(StepStop, lambda event: event.kind == "stop")
    told = events.of(StepStop, lambda event: event.id == ref.id)
    assert [(event.step, event.kind) for event in told] == [
        *(("one", "next"), ("two", "retry"), ("two", "await")),
        *(("three", "schedule_children"), ("four", "stop")),
    ]
    assert {(event.name, event.fsm) for event in told} == {("step.stop", "Tour")}
    assert timedelta(milliseconds=15) < told[0].duration < timedelta(seconds=5)
    (leaf,) = events.of(StepStop, lambda event: event.fsm == "Leaf")
    assert (leaf.kind, leaf.step, leaf.id > ref.id) == ("done", "run", True)


async def test_picks_and_saturation_are_told_by_queue(durable_dsn: str) -> None:
    is_there, may_go = asyncio.Event(), asyncio.Event()

    class Long(Machine[None, None], queue="long"):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            is_there.set()
            await may_go.wait()
            return Done()

    async with Worker(
        [Long], dsn=durable_dsn, settings=CALM, queues={"long": Queue(concurrency=3)}
    ) as worker:
        events = Events(worker)
        empty = await events.wait(PickStop)
        assert empty == PickStop(count=0, demand=3, queue="long", worker=worker.name)
        await worker.insert_all([Spec(Long), Spec(Long)])
        assert await events.wait(PickStop, lambda event: event.count > 0) == PickStop(
            count=2, demand=3, queue="long", worker=worker.name
        )
        busy = await events.wait(SchedulerSaturation, lambda event: event.in_flight == 2)
        assert busy == SchedulerSaturation(in_flight=2, buffer=0, concurrency=3, prefetch=0, queue="long")
        after = await events.wait(PickStop, lambda event: event.demand == 1)
        assert after.count == 0
        may_go.set()
    assert (empty.name, busy.name) == ("pick.stop", "scheduler.saturation")


async def test_the_end_of_a_queue_is_told_with_what_it_gave_back(durable_dsn: str) -> None:
    is_there = asyncio.Event()

    class Long(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            is_there.set()
            await asyncio.Event().wait()
            return Done()

    settings = msgspec.structs.replace(CALM, drain_timeout=timedelta(milliseconds=100))
    queues = {"default": 5, "idle": 5}
    async with Worker([Long], dsn=durable_dsn, settings=settings, queues=queues) as worker:
        events = Events(worker)
        await worker.insert(Long)
        await happens(is_there)
    told = {event.queue: event for event in events.of(SchedulerDrain)}
    assert told["default"] == SchedulerDrain(released=1, in_flight=1, queue="default")
    assert told["idle"] == SchedulerDrain(released=0, in_flight=0, queue="idle")
    assert told["idle"].name == "scheduler.drain"


async def test_a_subscriber_that_fails_breaks_nothing_and_is_logged_once(
    durable_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def broken(event: Event) -> None:
        heard.append(event.name)
        raise RuntimeError(f"no time for {event.name}")

    async with Worker([Tour, Leaf], dsn=durable_dsn, settings=CALM) as worker:
        worker.telemetry.subscribe(broken)
        events = Events(worker)
        with caplog.at_level(logging.ERROR, logger="gen_durable.telemetry"):
            ended = await worker.wait(await worker.insert(Tour), timeout=PATIENCE)
            refs = await worker.insert_all([Spec(Leaf) for _ in range(20)])
            await worker.wait_all(refs, timeout=PATIENCE)
            await events.wait(StepStop, lambda event: event.fsm == "Leaf", count=21)
    assert ended.last_error == "seen it all"
    assert {"step.stop", "pick.stop", "scheduler.saturation", "scheduler.drain", "await.timeout"} <= set(
        heard
    )
    complaints = [record for record in caplog.records if "telemetry subscriber" in record.getMessage()]
    assert len(complaints) == 1


async def test_a_subscriber_hears_only_the_kinds_that_it_asked_for_until_it_leaves(durable_dsn: str) -> None:
    heard: list[Any] = []
    async with Worker([Leaf], dsn=durable_dsn, settings=CALM) as worker:
        leave = worker.telemetry.subscribe(heard.append, StepStop)
        events = Events(worker)
        await worker.insert(Leaf)
        await events.wait(StepStop)
        leave()
        await worker.insert(Leaf)
        await events.wait(StepStop, count=2)
    assert [type(event) for event in heard] == [StepStop]
