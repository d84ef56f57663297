"""Telemetry: subscriptions, and failing subscribers."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gen_durable import telemetry as module
from gen_durable.errors import UsageError
from gen_durable.telemetry import (
    AwaitTimeout,
    CompensationStarted,
    ConcurrencyContended,
    Event,
    GcSwept,
    HandlerMissing,
    LoopBlocked,
    OutboxDead,
    OutboxExpired,
    OutboxFailed,
    OutboxPublished,
    OutcomeStale,
    PickStop,
    ProgressStored,
    RateLimitThrottled,
    RateLimitUnknown,
    ReaperReaped,
    ScheduleFired,
    SchedulerDrain,
    SchedulerSaturation,
    StepMissing,
    StepStop,
    Telemetry,
)

STEP = StepStop(duration=timedelta(seconds=1), id=7, fsm="Checkout", step="ship", kind="next")
PICK = PickStop(count=3, demand=10, queue="default", worker="w1")
EVENTS: list[Event] = [
    STEP,
    PICK,
    SchedulerSaturation(in_flight=1, buffer=0, concurrency=10, prefetch=0, queue="default"),
    SchedulerDrain(released=1, in_flight=0, queue="default"),
    ConcurrencyContended(count=2, id=7, fsm="Checkout", concurrency_key="tenant:7"),
    RateLimitThrottled(wanted=5, granted=2, key="crm:7", queue="checkout"),
    RateLimitUnknown(count=1, key="crm:7", limit="crm", fsm="Checkout", step="fetch"),
    ReaperReaped(count=2, ids=(7, 8), capped=(8,)),
    GcSwept(count=3),
    ProgressStored(count=3),
    LoopBlocked(duration=timedelta(seconds=2), id=7, fsm="Checkout", step="ship"),
    OutcomeStale(id=7, fsm="Checkout", step="ship", step_seq=3),
    HandlerMissing(id=7, fsm="Checkout", version=1),
    StepMissing(id=7, fsm="Checkout", version=1, step="ship"),
    OutboxPublished(count=3, sink="default"),
    OutboxFailed(count=1, sink="default", error="TimeoutError"),
    OutboxDead(id="7:3:1", sink="default", type="order.paid", error="refused"),
    OutboxExpired(count=2, sink="default"),
    ScheduleFired(
        schedule="nightly",
        fsm="Report",
        fire_time=datetime(2026, 1, 1, 3, tzinfo=UTC),
        lag=timedelta(0),
        id=7,
    ),
    CompensationStarted(id=7, fsm="Checkout", step="ship"),
    AwaitTimeout(id=7, fsm="Checkout", step="ship"),
]


def test_event_names() -> None:
    assert [event.name for event in EVENTS] == [
        "step.stop",
        "pick.stop",
        "scheduler.saturation",
        "scheduler.drain",
        "concurrency.contended",
        "rate_limit.throttled",
        "rate_limit.unknown",
        "reaper.reaped",
        "gc.swept",
        "progress.stored",
        "loop.blocked",
        "outcome.stale",
        "handler.missing",
        "step.missing",
        "outbox.published",
        "outbox.failed",
        "outbox.dead",
        "outbox.expired",
        "schedule.fired",
        "compensation.started",
        "await.timeout",
    ]


def test_all_event_kinds_are_covered() -> None:
    kinds = {value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Event)}
    assert {type(event) for event in EVENTS} == kinds - {Event}


def test_events_are_immutable() -> None:
    event: Any = STEP
    with pytest.raises(AttributeError):
        event.id = 8


def test_subscriber_gets_its_kinds() -> None:
    telemetry, got = Telemetry(), list[Event]()
    telemetry.subscribe(got.append, StepStop, AwaitTimeout)
    for event in EVENTS:
        telemetry.emit(event)
    assert got == [STEP, EVENTS[-1]]


def test_subscriber_without_kinds_gets_all() -> None:
    telemetry, got = Telemetry(), list[Event]()
    telemetry.subscribe(got.append)
    for event in EVENTS:
        telemetry.emit(event)
    assert got == EVENTS


def test_unwanted_events_are_not_created() -> None:
    telemetry = Telemetry()
    assert not telemetry.is_wanted(StepStop)
    unsubscribe = telemetry.subscribe(print, StepStop)
    assert telemetry.is_wanted(StepStop)
    assert not telemetry.is_wanted(PickStop)
    unsubscribe()
    assert not telemetry.is_wanted(StepStop)


def test_unsubscribe_is_idempotent() -> None:
    telemetry, got = Telemetry(), list[Event]()
    unsubscribe = telemetry.subscribe(got.append, StepStop)
    telemetry.subscribe(got.append, StepStop)
    unsubscribe()
    unsubscribe()
    telemetry.emit(STEP)
    assert got == [STEP]


def test_raising_subscriber_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    telemetry, got = Telemetry(), list[Event]()

    def broken(event: Event) -> None:
        raise RuntimeError(event.name)

    telemetry.subscribe(broken)
    telemetry.subscribe(got.append)
    with caplog.at_level(logging.ERROR, logger="gen_durable.telemetry"):
        telemetry.emit(STEP)
        telemetry.emit(PICK)
    assert got == [STEP, PICK]
    assert [record.name for record in caplog.records] == ["gen_durable.telemetry"]
    assert "subscriber failed: " in caplog.text


def test_each_raising_subscriber_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    telemetry = Telemetry()
    for _ in range(2):
        telemetry.subscribe(lambda _: 1 / 0, StepStop)
    telemetry.emit(STEP)
    assert len(caplog.records) == 2


def test_keyboard_interrupt_propagates() -> None:
    telemetry = Telemetry()

    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    telemetry.subscribe(interrupt)
    with pytest.raises(KeyboardInterrupt):
        telemetry.emit(STEP)


def test_subscriber_may_unsubscribe_during_an_event() -> None:
    telemetry, got = Telemetry(), list[Event]()

    def once(event: Event) -> None:
        got.append(event)
        unsubscribe()

    unsubscribe = telemetry.subscribe(once)
    telemetry.emit(STEP)
    telemetry.emit(STEP)
    assert got == [STEP]


def test_async_subscriber_is_rejected() -> None:
    async def later(event: Event) -> None: ...

    with pytest.raises(UsageError, match="is an async function, which is not supported"):
        Telemetry().subscribe(later)


def test_invalid_event_kind_is_rejected() -> None:
    wrong: Any = int
    for kind in (wrong, Event):
        with pytest.raises(UsageError, match="is not a kind of event; the kinds are AwaitTimeout, Comp"):
            Telemetry().subscribe(print, kind)


def test_threads_may_subscribe_and_emit_concurrently() -> None:
    telemetry, got = Telemetry(), list[Event]()
    telemetry.subscribe(got.append, PickStop)

    def work() -> None:
        for _ in range(50):
            unsubscribe = telemetry.subscribe(lambda _: None, StepStop)
            telemetry.emit(PICK)
            unsubscribe()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 200
    assert not telemetry.is_wanted(StepStop)
