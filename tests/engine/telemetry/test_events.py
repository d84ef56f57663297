"""Telemetry events of a worker."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    Await,
    Cancel,
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
    telemetry,
)
from gen_durable.telemetry import Event, PickStop, SchedulerDrain, SchedulerSaturation, StepStop
from tests.support.conformance import SPEC, table_of
from tests.support.machines import Say
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events, happens


@pytest.mark.clause("TEL-1")
def test_events_and_fields_match_the_specification() -> None:
    events = [getattr(telemetry, name) for name in telemetry.__all__]
    kinds = [
        kind for kind in events if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
    ]
    fields = {kind.name: ", ".join(kind.__struct_fields__) for kind in kinds}
    assert fields == dict(table_of(SPEC.read_text(encoding="utf-8"), "event"))


class Tour(Machine[None, None]):
    """Returns every outcome but Done."""

    @step
    async def one(self, ctx: Context[None]) -> Outcome[None]:
        await asyncio.sleep(0.02)
        return Next(self.two)

    @step
    async def two(self, ctx: Context[None]) -> Outcome[None]:
        return Retry() if ctx.attempt == 0 else Await(then=self.three, timeout=timedelta(0))

    @step
    async def three(self, ctx: Context[None]) -> Outcome[None]:
        return ScheduleChildren([Spec(Say, "a")], then=self.four)

    @step
    async def four(self, ctx: Context[None]) -> Outcome[None]:
        return Stop("seen it all")


@pytest.mark.clause("TEL-2")
async def test_every_committed_outcome_emits_an_event(durable_dsn: str) -> None:
    async with Worker([Tour, Say], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(Tour)
        await events.wait(StepStop, lambda event: event.kind == "stop")
    stops = events.of(StepStop, lambda event: event.id == ref.id)
    assert [(event.fsm, event.step, event.kind) for event in stops] == [
        ("Tour", "one", "next"),
        ("Tour", "two", "retry"),
        ("Tour", "two", "await"),
        ("Tour", "three", "schedule_children"),
        ("Tour", "four", "stop"),
    ]
    assert stops[0].duration >= timedelta(milliseconds=15)
    assert [(event.step, event.kind) for event in events.of(StepStop, lambda e: e.fsm == "Say")] == [
        ("say", "done")
    ]


@pytest.mark.clause("TEL-2")
async def test_cancelled_step_emits_an_event(durable_dsn: str) -> None:
    is_there = asyncio.Event()

    class Fickle(Machine[bool, None]):
        @step(interrupt=True)
        async def run(self, ctx: Context[bool]) -> Outcome[None]:
            if ctx.state:
                raise Cancel("never mind")
            is_there.set()
            await asyncio.sleep(60)
            return Done()

    async with Worker([Fickle], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        itself, asked = await worker.insert(Fickle, True), await worker.insert(Fickle, False)
        await happens(is_there)
        await worker.cancel(asked)
        ended = await worker.wait_all([itself, asked], timeout=PATIENCE)
        await events.wait(StepStop, count=2)
    kinds = {event.id: event.kind for event in events.of(StepStop)}
    assert {one.status for one in ended} == {"cancelled"}
    assert kinds == {itself.id: "cancel", asked.id: "release"}


@pytest.mark.clause("TEL-3", "TEL-4")
async def test_picks_and_saturation_emit_events(durable_dsn: str) -> None:
    is_there, may_go = asyncio.Event(), asyncio.Event()

    class Long(Machine[None, None], queue="long"):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            is_there.set()
            await may_go.wait()
            return Done()

    queues = {"long": Queue(concurrency=3)}
    async with Worker([Long], dsn=durable_dsn, settings=CALM, queues=queues) as worker:
        events = Events(worker)
        assert await events.wait(PickStop) == PickStop(count=0, demand=3, queue="long", worker=worker.name)
        refs = await worker.insert_all([Spec(Long), Spec(Long)])
        await happens(is_there)
        picked = await events.wait(PickStop, lambda event: event.count > 0)
        assert picked == PickStop(count=2, demand=3, queue="long", worker=worker.name)
        busy = await events.wait(SchedulerSaturation, lambda event: event.in_flight == 2)
        assert busy == SchedulerSaturation(in_flight=2, buffer=0, concurrency=3, prefetch=0, queue="long")
        may_go.set()
        await worker.wait_all(refs, timeout=PATIENCE)


@pytest.mark.clause("TEL-5")
async def test_drain_emits_an_event_per_queue(durable_dsn: str) -> None:
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
    drains = {event.queue: event for event in events.of(SchedulerDrain)}
    assert drains["default"] == SchedulerDrain(released=1, in_flight=1, queue="default")
    assert drains["idle"] == SchedulerDrain(released=0, in_flight=0, queue="idle")
    assert drains["idle"].name == "scheduler.drain"


@pytest.mark.clause("TEL-10")
async def test_failing_subscriber_is_logged_once(durable_dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def broken(event: Event) -> None:
        heard.append(event.name)
        raise RuntimeError(f"no time for {event.name}")

    async with Worker([Tour, Say], dsn=durable_dsn, settings=CALM) as worker:
        worker.telemetry.subscribe(broken)
        events = Events(worker)
        with caplog.at_level(logging.ERROR, logger="gen_durable.telemetry"):
            ended = await worker.wait(await worker.insert(Tour), timeout=PATIENCE)
            refs = await worker.insert_all([Spec(Say, "b") for _ in range(20)])
            await worker.wait_all(refs, timeout=PATIENCE)
            await events.wait(StepStop, lambda event: event.fsm == "Say", count=21)
    assert ended.last_error == "seen it all"
    assert {"step.stop", "pick.stop", "scheduler.saturation", "scheduler.drain", "await.timeout"} <= set(
        heard
    )
    complaints = [record for record in caplog.records if "telemetry subscriber" in record.getMessage()]
    assert len(complaints) == 1


async def test_subscriber_gets_only_its_kinds_until_it_unsubscribes(durable_dsn: str) -> None:
    heard: list[Any] = []
    async with Worker([Say], dsn=durable_dsn, settings=CALM) as worker:
        leave = worker.telemetry.subscribe(heard.append, StepStop)
        events = Events(worker)
        await worker.insert(Say, "a")
        await events.wait(StepStop)
        leave()
        await worker.insert(Say, "a")
        await events.wait(StepStop, count=2)
    assert [type(event) for event in heard] == [StepStop]
