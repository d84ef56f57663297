"""Consuming signals that were read without being awaited: `ctx.inbox.take` and `consume=`."""

from __future__ import annotations

import asyncio
import random
import signal
import string
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Await,
    Context,
    Done,
    DuplicateSignal,
    Machine,
    Message,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Stop,
    Worker,
    step,
)
from gen_durable.errors import NotLoadedError, UsageError
from gen_durable.testing import Harness, crash_everywhere
from tests.engine.signals.killable_taker import STEER, Steered
from tests.support.machines import probe
from tests.support.rows import SqlConnection
from tests.support.settings import AN_HOUR, CALM, FAST
from tests.support.waiting import PATIENCE, happens
from tests.support.worker_process import program


class Chat(Machine[list[str], list[str]]):
    """Applies each steering message to its state in `think`, and ends after three turns."""

    steer = STEER

    @step
    async def think(self, ctx: Context[list[str]]) -> Outcome[list[str]]:
        while (text := ctx.inbox.take(self.steer)) is not None:
            ctx.state.append(text)
        ctx.state.append("-")
        return Done(ctx.state) if ctx.state.count("-") == 3 else Next(self.think)


def _names(ctx: Context[Any]) -> list[str]:
    return [message.name for message in ctx.inbox]


@pytest.mark.clause("SIG-25")
def test_taken_messages_are_applied_once(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(Chat, [])
    for text in ("a", "b"):
        durable.signal(ref, STEER, text)
    durable.drain()
    durable.assert_done(ref, ["a", "b", "-", "-", "-"])
    assert sql.inbox(ref.id) == []


@pytest.mark.clause("SIG-25", "SIG-27")
def test_take_applies_each_message_once_wherever_it_crashes() -> None:
    def scenario(durable: Harness) -> None:
        ref = durable.insert(Chat, [])
        durable.signal(ref, STEER, "a", dedup_key="a")
        durable.signal(ref, STEER, "b")
        durable.drain()
        durable.assert_done(ref, ["a", "b", "-", "-", "-"])

    assert crash_everywhere(scenario) == 6


@pytest.mark.clause("SIG-25")
def test_taken_messages_are_not_in_the_inbox_any_more(durable: Harness) -> None:
    def one(ctx: Context[int]) -> Outcome[int]:
        assert (ctx.inbox.take("a"), ctx.inbox.take("a"), ctx.inbox.take("a")) == (1, 3, None)
        assert (_names(ctx), len(ctx.inbox), ctx.inbox[0].payload) == (["b"], 1, 2)
        assert "a" not in ctx.inbox
        assert (ctx.inbox.get("a"), ctx.inbox.all("a"), ctx.inbox.all("b")) == (None, [], [2])
        assert repr(ctx.inbox).count("Message(") == 1
        assert ctx.inbox.take("b") == 2
        assert not ctx.inbox
        return Done(0)

    ref = durable.insert(probe(one), 7)
    for name, payload in (("a", 1), ("b", 2), ("a", 3)):
        durable.signal(ref, name, payload)
    durable.drain()
    durable.assert_done(ref, 0)


@pytest.mark.clause("SIG-26")
@pytest.mark.parametrize("how", ["signal", "name", "message"])
@pytest.mark.parametrize("kind", ["next", "await", "children"])
def test_consume_of_each_outcome(durable: Harness, kind: str, how: str) -> None:
    """The first message of another name stays, and one that is awaited is consumed by Next without being named."""

    def one(ctx: Context[int]) -> Outcome[int]:
        chosen: Any = {
            "signal": [STEER],
            "name": ["steer"],
            "message": [m for m in ctx.inbox if m.name == "steer"],
        }
        if kind == "next":
            return Next("two", consume=chosen[how])
        if kind == "await":
            return Await("go", then="two", consume=chosen[how])
        return ScheduleChildren([], then="two", consume=chosen[how])

    def two(ctx: Context[int]) -> Outcome[int]:
        assert _names(ctx) == (["other", "go"] if kind == "await" else ["other"])
        return Done(0)

    ref = durable.insert(probe(one, two), 7)
    for name in ("steer", "other", "steer"):
        durable.signal(ref, name, "x")
    durable.drain()
    if kind == "await":
        durable.assert_awaiting(ref, "go")
        durable.signal(ref, "go")
        durable.drain()
    durable.assert_done(ref, 0)


@pytest.mark.clause("SIG-26")
def test_await_of_a_consumed_signal_waits_for_the_next_one(durable: Harness) -> None:
    def one(ctx: Context[int]) -> Outcome[int]:
        return Await(STEER, then="two", consume=[STEER])

    ref = durable.insert(probe(one, lambda ctx: Done(len(ctx.awaited))), 7)
    durable.signal(ref, STEER, "before")
    durable.drain()
    durable.assert_awaiting(ref, STEER)
    durable.signal(ref, STEER, "after")
    durable.drain()
    durable.assert_done(ref, 1)


@pytest.mark.clause("SIG-25")
def test_collecting_step_takes_awaited_messages(durable: Harness) -> None:
    """A message taken from ctx.awaited is taken from ctx.inbox too, and the next wait starts without it."""

    def one(ctx: Context[int]) -> Outcome[int]:
        assert len(ctx.awaited) <= 1
        if (text := ctx.awaited.take(STEER)) is not None:
            assert (len(ctx.awaited), len(ctx.inbox)) == (0, 0)
            if text == "last":
                return Done(0)
        return Await(STEER, then="one")

    ref = durable.insert(probe(one), 7)
    durable.drain()
    for text in ("first", "last"):
        durable.signal(ref, STEER, text)
        durable.drain()
    durable.assert_done(ref, 0)


@pytest.mark.clause("SIG-27")
@pytest.mark.parametrize("failure", ["retry", "exception", "handle"])
def test_retry_and_exception_consume_nothing(durable: Harness, failure: str) -> None:
    taken: list[Any] = []

    class Repeating(Machine[None, None], name="Repeating"):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            taken.append(ctx.inbox.take(STEER))
            if ctx.attempt < 2:
                if failure == "retry":
                    return Retry()
                raise ValueError
            return Next(self.end)

        @step
        async def end(self, ctx: Context[None]) -> Outcome[None]:
            taken.append(ctx.inbox.take(STEER))
            return Done()

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[None]:
            assert len(ctx.inbox) == 1, "handle has an inbox of its own"
            if failure == "handle" and ctx.attempt == 1:
                taken.append(ctx.inbox.take(STEER))
                return Next(self.end)
            return Retry()

    ref = durable.insert(Repeating)
    durable.signal(ref, STEER, "x", dedup_key="d")
    durable.drain()
    durable.assert_done(ref)
    assert taken == ["x", "x", "x", None]


@pytest.mark.clause("SIG-26")
@pytest.mark.parametrize("way", ["take", "consume"])
async def test_message_that_arrives_during_the_step_is_kept(durable_dsn: str, db: Any, way: str) -> None:
    is_there, may_go = asyncio.Event(), asyncio.Event()

    class Slow(Machine[None, list[str]]):
        @step
        async def read(self, ctx: Context[None]) -> Outcome[list[str]]:
            is_there.set()
            await may_go.wait()
            if way == "consume":
                return Next(self.end, consume=[STEER])
            assert ctx.inbox.take(STEER) == "early"
            return Next(self.end)

        @step
        async def end(self, ctx: Context[None]) -> Outcome[list[str]]:
            return Done(ctx.inbox.all(STEER))

    async with Worker([Slow], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Slow, schedule_in=AN_HOUR)
        await worker.signal(ref, STEER, "early", dedup_key="e")
        await db.execute("update gen_durable.gen_durable set eligible_at = now()")
        await happens(is_there)
        await worker.signal(ref, STEER, "late")
        may_go.set()
        assert (await worker.wait(ref, timeout=PATIENCE)).result == ["late"]


@pytest.mark.clause("SIG-25", "SIG-15", "SIG-16")
def test_consumed_dedup_key_still_counts(durable: Harness, sql: SqlConnection) -> None:
    def one(ctx: Context[int]) -> Outcome[int]:
        assert ctx.inbox.take(STEER) == "x"
        return Next("two")

    def two(ctx: Context[int]) -> Outcome[int]:
        return Await(STEER, then="two") if not ctx.awaited else Done(len(ctx.awaited))

    ref = durable.insert(probe(one, two), 7)
    durable.signal(ref, STEER, "x", dedup_key="d")
    durable.drain()
    durable.assert_awaiting(ref, STEER)
    assert durable.signal(ref, STEER, "x", dedup_key="d") == DuplicateSignal(ref.id)
    assert (sql.signals(ref.id), sql.inbox(ref.id)) == (1, [])
    durable.drain()
    durable.assert_awaiting(ref, STEER)


@pytest.mark.clause("SIG-26")
def test_consume_of_what_was_not_received_is_refused(durable: Harness) -> None:
    stray = Message(id=99, name="steer", payload="x", sent_at=datetime.now(UTC))
    ref = durable.insert(probe(lambda ctx: Next("two", consume=[stray])), 7)
    durable.drain()
    durable.assert_failed(
        ref, match=r"consume has message 99 \(signal 'steer'\), which is not in the inbox of this step"
    )


@pytest.mark.clause("SIG-26")
def test_consume_of_a_signal_that_has_not_arrived_does_nothing(durable: Harness) -> None:
    ref = durable.insert(probe(lambda ctx: Next("two", consume=["steer"])), 7)
    durable.drain()
    durable.assert_done(ref, 7)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("steer", "consume is of type str; give a list of messages and signals"),
        (STEER, "consume is of type Signal"),
        (7, "consume is of type int"),
        ([7], "the name of a signal in consume is of type int"),
        ([""], "the name of a signal in consume is empty"),
    ],
)
def test_invalid_consume_is_named(given: Any, reason: str) -> None:
    with pytest.raises(UsageError) as raised:
        Next("two", consume=given)
    assert reason in str(raised.value)


def test_outcomes_with_the_same_consume_are_equal() -> None:
    assert Next("two", consume=[STEER]) == Next("two", consume=["steer"])
    assert Next("two", consume=[STEER]) != Next("two")
    assert repr(Await("go", then="two", consume=[STEER])) == (
        "Await(signals=('go',), then='two', consume=('steer',))"
    )


@pytest.mark.clause("SIG-25", "SIG-24")
async def test_message_that_is_not_loaded_is_not_taken(durable_dsn: str) -> None:
    class Large(Machine[None, list[int]]):
        @step
        async def read(self, ctx: Context[None]) -> Outcome[list[int]]:
            with pytest.raises(NotLoadedError):
                ctx.inbox.take(STEER)
            assert len(ctx.inbox) == 2
            await ctx.inbox.load(STEER)
            taken = ctx.inbox.take(STEER) or ""
            return Done([len(taken), len(ctx.inbox)])

    async with Worker([Large], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Large, queue="later")
        for _ in range(2):
            await worker.signal(ref, STEER, "".join(random.choices(string.ascii_letters, k=600_000)))
        async with Worker([Large], dsn=durable_dsn, settings=CALM, queues={"later": 1}):
            assert (await worker.wait(ref, timeout=PATIENCE)).result == [600_000, 1]


class Steps(Machine[str, list[str]]):
    """Takes a message in a step of each kind."""

    @step
    def thread(self, ctx: Context[str]) -> Outcome[list[str]]:
        return _take_one(ctx)

    @step(pool="process")
    def process(self, ctx: Context[str]) -> Outcome[list[str]]:
        return _take_one(ctx)

    @step
    async def left(self, ctx: Context[str]) -> Outcome[list[str]]:
        return Done([ctx.state, *ctx.inbox.all(STEER)])


def _take_one(ctx: Context[str]) -> Outcome[list[str]]:
    taken = ctx.inbox.take(STEER) or ""
    return Next("left", state=taken)


@pytest.mark.clause("SIG-25")
@pytest.mark.parametrize("middleware", [None, "passes", "replaces"])
@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_take_in_threads_and_processes(durable_dsn: str, kind: str, middleware: str | None) -> None:
    """Also if middleware returns another outcome than the step."""

    async def around(ctx: Context[Any], call: Any) -> Any:
        outcome = await call()
        return Next(outcome.step, outcome.state) if middleware == "replaces" and ctx.step == kind else outcome

    options: Any = {"middleware": [around]} if middleware else {}
    settings = msgspec.structs.replace(CALM, pool_processes=1)
    async with Worker([Steps], dsn=durable_dsn, settings=settings, **options) as worker:
        ref = await worker.insert(Steps, "", queue="later", step=kind)
        for text in ("a", "b"):
            await worker.signal(ref, STEER, text)
        async with Worker([Steps], dsn=durable_dsn, settings=settings, queues={"later": 1}, **options):
            assert (await worker.wait(ref, timeout=PATIENCE)).result == ["a", "b"]


class Undone(Machine[list[str], None]):
    """Stops after it took a message. Its undo step takes another one."""

    @step(undo="unbook")
    async def book(self, ctx: Context[list[str]]) -> Outcome[None]:
        return Next(self.pay)

    @step(undo="refund")
    async def pay(self, ctx: Context[list[str]]) -> Outcome[None]:
        return Next(self.ship)

    @step
    async def ship(self, ctx: Context[list[str]]) -> Outcome[None]:
        return self._taken(ctx, Stop("no truck"))

    @step
    async def refund(self, ctx: Context[list[str]]) -> Outcome[None]:
        return self._taken(ctx, Done())

    @step
    async def unbook(self, ctx: Context[list[str]]) -> Outcome[None]:
        return self._taken(ctx, Done())

    def _taken(self, ctx: Context[list[str]], outcome: Outcome[None]) -> Outcome[None]:
        ctx.state.append(ctx.inbox.take(STEER) or "nothing")
        return outcome


@pytest.mark.clause("SIG-25")
def test_undo_step_does_not_see_messages_that_were_taken(durable: Harness) -> None:
    ref = durable.insert(Undone, [])
    durable.signal(ref, STEER, "a", dedup_key="a")
    durable.signal(ref, STEER, "b")
    durable.drain()
    assert durable.assert_failed(ref).state == ["a", "b", "nothing"]


@pytest.mark.clause("SIG-27")
async def test_cancelled_outcome_consumes_nothing_before_its_undo_steps(durable_dsn: str) -> None:
    is_there, may_go = asyncio.Event(), asyncio.Event()

    class Slow(Undone, name="Slow"):
        @step
        async def ship(self, ctx: Context[list[str]]) -> Outcome[None]:
            taken = ctx.inbox.take(STEER)
            is_there.set()
            await may_go.wait()
            return Stop(f"took {taken}")

    async with Worker([Slow], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Slow, [], queue="later")
        await worker.signal(ref, STEER, "a")
        async with Worker([Slow], dsn=durable_dsn, settings=CALM, queues={"later": 1}):
            await happens(is_there)
            await worker.cancel(ref)
            may_go.set()
            assert (await worker.wait(ref, timeout=PATIENCE)).state == ["a", "nothing"]


@pytest.mark.clause("SIG-25", "SIG-27")
async def test_message_taken_by_a_killed_process_is_applied_once(durable_dsn: str) -> None:
    options = msgspec.json.encode(FAST).decode()
    async with AsyncClient(durable_dsn, settings=FAST) as client:
        ref = await client.insert(Steered, [])
        for text in ("a", "b"):
            await client.signal(ref, STEER, text)
        for point in ("after take", "before the second"):
            async with program("tests.engine.signals.killable_taker", durable_dsn, options, point) as process:
                assert await process.ends() == -signal.SIGKILL
        async with Worker([Steered], dsn=durable_dsn, settings=FAST):
            assert (await client.wait(ref, timeout=PATIENCE)).result == ["a", "b"]
        records = await client.executions(ref)
    assert [each.outcome for each in records] == ["lease", "next", "lease", "next", "done"]


class Greedy(Machine[None, None]):
    """Keeps the contexts of its steps."""

    steer = STEER

    def __init__(self) -> None:
        self.kept: list[Context[None]] = []

    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        self.kept.append(ctx)
        return Done() if ctx.inbox else Await(self.steer, then=self.run)


@pytest.mark.clause("SIG-25")
async def test_take_after_the_step_has_ended_raises(durable_dsn: str) -> None:
    greedy = Greedy()
    async with Worker([greedy], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Greedy)
        await worker.signal(ref, STEER, "a")
        await worker.wait(ref, timeout=PATIENCE)
        for inbox in (greedy.kept[-1].inbox, greedy.kept[-1].awaited):
            with pytest.raises(
                UsageError, match="take of signal 'steer' was called after its step had ended"
            ):
                inbox.take(STEER)
