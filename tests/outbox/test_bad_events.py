"""Events that a sink does not accept delay their own instance only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest

from gen_durable import CloudEvent, Rejected, SinkUnavailable, Spec, Worker
from gen_durable._runtime.database_status import DatabaseStatus
from gen_durable._runtime.dispatcher import Dispatcher, _Round
from gen_durable.telemetry import OutboxFailed, Telemetry
from tests.outbox.machines import Chatter, Teller
from tests.outbox.waiting import all_published
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events


class Picky:
    """A sink that applies a rule to every request, and records what it took and when it was called."""

    def __init__(self, batch: int, rule: Callable[[Sequence[CloudEvent]], None]) -> None:
        self.batch = batch
        self.taken: list[str] = []
        self.requests: list[list[str]] = []
        self.moments: list[float] = []
        self._rule = rule

    async def publish(self, events: Sequence[CloudEvent]) -> None:
        self.requests.append([event.id for event in events])
        self.moments.append(time.monotonic())
        await asyncio.sleep(0)
        self._rule(events)
        self.taken += [event.id for event in events]


def refuse(bad: set[str], error: Callable[[], Exception]) -> Callable[[Sequence[CloudEvent]], None]:
    """A rule: requests that contain an event of one of these instances fail."""

    def rule(events: Sequence[CloudEvent]) -> None:
        if any(event.id.partition(":")[0] in bad for event in events):
            raise error()

    return rule


async def until(condition: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.clause("EVT-5", "EVT-11")
@pytest.mark.parametrize("batch", [1, 10])
async def test_refused_events_do_not_delay_a_good_one(durable_dsn: str, batch: int) -> None:
    bad: set[str] = set()
    sink = Picky(batch, refuse(bad, lambda: RuntimeError("no")))
    async with Worker([Teller], dsn=durable_dsn, sinks=sink, settings=CALM) as worker:
        events = Events(worker)
        # Paused until the instances are marked as bad, so the sink does not see them before.
        async with asyncio.timeout(PATIENCE.total_seconds()):
            refs = await worker.insert_all(
                [Spec(Teller, {}, step="last", schedule_in=timedelta(seconds=0.5)) for _ in range(5)]
            )
            bad |= {str(ref.id) for ref in refs}
            # Rounds in which nothing was accepted.
            await events.wait(OutboxFailed, count=2)
        good = await worker.insert(Teller, {}, step="last")
        await worker.wait(good, timeout=PATIENCE)
        await until(lambda: f"{good.id}:1:1" in sink.taken, 15)
        assert {event.state for event in await worker.events(good)} <= {"published", "pending"}
        assert {event.instance_id for event in await worker.events(state="pending")} >= {
            ref.id for ref in refs
        }


@pytest.mark.clause("EVT-11")
@pytest.mark.parametrize("error", [RuntimeError("no"), Rejected("no")])
async def test_failed_batch_is_split_down_to_the_bad_events(durable_dsn: str, error: Exception) -> None:
    bad: set[str] = set()
    sink = Picky(50, refuse(bad, lambda: error))
    async with Worker([Teller], dsn=durable_dsn, settings=CALM) as worker:
        refs = await worker.insert_all([Spec(Teller, {}, step="last") for _ in range(50)])
        for ref in refs:
            await worker.wait(ref, timeout=PATIENCE)
    bad |= {str(refs[place].id) for place in (3, 20, 44)}
    async with Worker([Teller], dsn=durable_dsn, sinks=sink, settings=CALM) as worker:
        await until(lambda: len(sink.taken) == 47, PATIENCE.total_seconds())
        assert len(sink.requests[0]) == 50
        # Halving, not one by one: three bad ones cost about 2 · 3 · log2(50) requests.
        assert len(sink.requests) < 40
        dead = await worker.events(state="dead")
        if isinstance(error, Rejected):
            async with asyncio.timeout(PATIENCE.total_seconds()):
                while len(dead) < 3:
                    dead = await worker.events(state="dead")
            assert {str(event.instance_id) for event in dead} == bad
        else:
            assert not dead
            bad.clear()
            await all_published(worker)
            assert len(sink.taken) == 50, "nothing twice"
    assert len(set(sink.taken)) == len(sink.taken)


@pytest.mark.clause("EVT-5")
async def test_failed_event_delays_later_events_of_its_instance(durable_dsn: str) -> None:
    """Later events of the bad instance wait; other instances of the batch continue."""
    sink = Picky(100, lambda events: None)
    async with Worker([Chatter], dsn=durable_dsn, settings=CALM) as worker:
        refs = await worker.insert_all([Spec(Chatter, 6) for _ in range(4)])
        for ref in refs:
            await worker.wait(ref, timeout=PATIENCE)
    bad = f"{refs[1].id}:3:1"
    is_bad = True

    def rule(events: Sequence[CloudEvent]) -> None:
        if is_bad and bad in [event.id for event in events]:
            raise RuntimeError("not yet")

    sink._rule = rule
    async with Worker([Chatter], dsn=durable_dsn, sinks=sink, settings=CALM) as worker:
        await until(lambda: len(sink.taken) == 20, PATIENCE.total_seconds())
        await asyncio.sleep(0.5)
        assert [id for id in sink.taken if id.startswith(f"{refs[1].id}:")] == [
            f"{refs[1].id}:{n}:1" for n in (1, 2)
        ]
        is_bad = False
        await all_published(worker)
    for ref in refs:
        line = [id for id in sink.taken if id.startswith(f"{ref.id}:")]
        assert line == [f"{ref.id}:{n}:1" for n in range(1, 7)]


@pytest.mark.clause("EVT-8")
async def test_failed_event_is_retried_forever(durable_dsn: str, db: Any) -> None:
    def never(event: CloudEvent) -> None:
        raise RuntimeError("no")

    async with Worker([Teller], dsn=durable_dsn, settings=CALM) as worker:
        await worker.wait(await worker.insert(Teller, {}, step="last"), timeout=PATIENCE)
    await db.execute("update gen_durable.outbox set attempts = 5000")
    async with Worker([Teller], dsn=durable_dsn, sinks=never, settings=CALM) as worker:
        await Events(worker).wait(OutboxFailed)
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while (event := (await worker.events())[0]).attempts == 5000:
                await asyncio.sleep(0.02)
        now = await db.fetchval("select now()")
    assert (event.state, event.attempts, event.last_error) == ("pending", 5001, "RuntimeError: no")
    assert event.next_at is not None
    assert timedelta(minutes=3) < event.next_at - now < timedelta(minutes=6.5)


@pytest.mark.clause("EVT-11")
@pytest.mark.parametrize(
    "error",
    [SinkUnavailable("away", retry_after=timedelta(seconds=1)), ConnectionRefusedError("away")],
    ids=["retry-after", "connection"],
)
async def test_unavailable_sink_is_paused(durable_dsn: str, error: Exception) -> None:
    is_away = True

    def rule(events: Sequence[CloudEvent]) -> None:
        if is_away:
            raise error

    sink = Picky(1, rule)
    async with Worker([Teller], dsn=durable_dsn, settings=CALM) as worker:
        refs = await worker.insert_all([Spec(Teller, {}, step="last") for _ in range(100)])
        for ref in refs:
            await worker.wait(ref, timeout=PATIENCE)
    async with Worker([Teller], dsn=durable_dsn, sinks=sink, settings=CALM) as worker:
        await until(lambda: bool(sink.requests), PATIENCE.total_seconds())
        await asyncio.sleep(0.3)
        calls = len(sink.requests)
        assert calls <= 16, "the round ends when the sink is away"
        for _ in range(5):  # a commit with events wakes the dispatcher, and the pause holds all the same
            worker._wakes.events()
            await asyncio.sleep(0.02)
        assert len(sink.requests) == calls
        is_away = False
        await all_published(worker)
        if isinstance(error, SinkUnavailable):
            assert sink.moments[calls] - sink.moments[0] >= 0.95
    assert len(sink.taken) == 100


@pytest.mark.clause("EVT-11")
async def test_retry_after_pause_does_not_grow(durable_dsn: str) -> None:
    """A 429 with Retry-After pauses the sink for that time, also when it repeats."""
    bad: set[str] = set()
    sink = Picky(1, refuse(bad, lambda: SinkUnavailable("full", retry_after=timedelta(seconds=0.2))))
    async with Worker([Teller], dsn=durable_dsn, sinks=sink, settings=CALM) as worker:
        refs = await worker.insert_all(
            [Spec(Teller, {}, step="last", schedule_in=timedelta(seconds=0.5)) for _ in range(5)]
        )
        bad |= {str(ref.id) for ref in refs}
        await until(lambda: len(sink.requests) >= 10, PATIENCE.total_seconds())
        good = await worker.insert(Teller, {}, step="last")
        await until(lambda: f"{good.id}:1:1" in sink.taken, 5)


@pytest.mark.clause("EVT-11")
@pytest.mark.parametrize("batch", [1, 10])
async def test_hanging_event_does_not_delay_others(durable_dsn: str, batch: int) -> None:
    hanging = asyncio.Event()

    class Hanging(Picky):
        async def publish(self, events: Sequence[CloudEvent]) -> None:
            if any(event.type == "waiting" for event in events):
                hanging.set()
                await asyncio.sleep(3600)
            await super().publish(events)

    sink = Hanging(batch, lambda events: None)
    async with Worker([Teller, Chatter], dsn=durable_dsn, sinks=sink, settings=CALM) as worker:
        await worker.insert(Teller, {}, step="awaits")
        await asyncio.wait_for(hanging.wait(), PATIENCE.total_seconds())
        for _ in range(2):
            good = await worker.insert(Chatter, 3)
            last = f"{good.id}:3:1"
            async with asyncio.timeout(10):
                while last not in sink.taken:
                    await asyncio.sleep(0.02)
            # Published events are marked while the other one still hangs.
            async with asyncio.timeout(10):
                while await worker.events(good, state="pending"):
                    await asyncio.sleep(0.02)


@pytest.mark.clause("EVT-11")
async def test_timed_out_batch_is_sent_again_one_by_one(durable_dsn: str) -> None:
    """Halving would time out again and again."""
    bad: set[str] = set()
    sink = Picky(10, refuse(bad, TimeoutError))
    async with Worker([Teller], dsn=durable_dsn, sinks=sink, settings=CALM) as worker:
        # One step per event: all are due at the same time, so they go in few batches.
        refs = await worker.insert_all(
            [Spec(Teller, {}, step="last", schedule_in=timedelta(seconds=0.5)) for _ in range(4)]
        )
        bad.add(str(refs[0].id))
        await until(lambda: len(set(sink.taken)) == 3, PATIENCE.total_seconds())
    failed = [request for request in sink.requests if f"{refs[0].id}:1:1" in request]
    assert [len(request) for request in failed[1:]] == [1] * len(failed[1:])
    assert all(len(request) == 1 for request in sink.requests if set(request) < set(failed[0]))


def dispatcher_of(sink: Picky, lease: timedelta) -> Dispatcher:
    """A dispatcher without a database, for tests of what it does after a round."""
    return Dispatcher(
        "web",
        sink,
        source="s",
        lease=lease,
        idle=lease,
        database=cast("Any", None),
        telemetry=Telemetry(),
        database_status=DatabaseStatus(),
    )


def test_sink_with_one_hanging_round_is_not_paused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink, lease = Picky(1, lambda events: None), timedelta(minutes=1)
    dispatcher = dispatcher_of(sink, lease)
    round = _Round(sink, "s", lease)
    round.error = "TimeoutError"
    dispatcher._accepted_at = time.monotonic()  # by another round, while this one lasted
    dispatcher._pause_after(round)
    assert (dispatcher._paused_until, caplog.messages) == (0.0, [])
    dispatcher._accepted_at = round.began - 1
    dispatcher._pause_after(round)
    assert dispatcher._paused_until > time.monotonic()


async def test_sink_failure_and_recovery_are_logged_once(
    durable_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    is_away = True

    def rule(events: Sequence[CloudEvent]) -> None:
        if is_away:
            raise ConnectionRefusedError("away")

    sink = Picky(1, rule)
    with caplog.at_level(logging.INFO, "gen_durable.outbox"):
        async with Worker([Teller], dsn=durable_dsn, sinks=sink, settings=CALM) as worker:
            await worker.insert(Teller, {}, step="last")
            await until(lambda: len(sink.requests) >= 2, PATIENCE.total_seconds())
            is_away = False
            await all_published(worker)
            await until(lambda: len(caplog.messages) >= 2, 5)
    assert caplog.messages == [
        "sink unavailable: 'default' (ConnectionRefusedError: away); retrying with backoff",
        "sink available again: 'default'",
    ]


def test_only_rounds_without_any_success_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A sink that answers 429 after a number of requests."""
    sink, lease = Picky(1, lambda events: None), timedelta(minutes=1)
    dispatcher = dispatcher_of(sink, lease)
    caplog.set_level(logging.INFO, "gen_durable.outbox")
    for accepted in (5, 5, 0, 0, 5, 5):
        round = _Round(sink, "s", lease)
        round.accepted, round.error, round.unavailable = accepted, "429", SinkUnavailable("429")
        dispatcher._pause_after(round)
        assert dispatcher._paused_until > time.monotonic()
    assert caplog.messages == [
        "sink unavailable: 'web' (429); retrying with backoff",
        "sink available again: 'web'",
    ]


async def test_shutdown_releases_unsent_events(durable_dsn: str) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow(event: CloudEvent) -> None:
        entered.set()
        await leave.wait()

    settings = msgspec.structs.replace(CALM, lease=timedelta(minutes=10), heartbeat=timedelta(minutes=1))
    async with Worker([Chatter], dsn=durable_dsn, settings=settings) as worker:
        ref = await worker.insert(Chatter, 5)
        await worker.wait(ref, timeout=PATIENCE)
    async with Worker([Chatter], dsn=durable_dsn, settings=settings, sinks=slow) as worker:
        await asyncio.wait_for(entered.wait(), PATIENCE.total_seconds())
        asyncio.get_running_loop().call_later(0.3, leave.set)
    sink = Picky(1, lambda events: None)
    async with Worker([Chatter], dsn=durable_dsn, settings=settings, sinks=sink) as worker:
        await asyncio.wait_for(all_published(worker), 10)
    assert sink.taken == [f"{ref.id}:{n}:1" for n in range(2, 6)]
