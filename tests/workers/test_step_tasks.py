"""The tasks in which steps run: shared by steps that end at once, own for steps that suspend."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

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
    Spec,
    Status,
    Transaction,
    Worker,
    step,
)
from gen_durable._running import running
from gen_durable._runtime import step_tasks
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE, Events, happens, holds

HASTY = msgspec.structs.replace(CALM, drain_timeout=timedelta(milliseconds=100))
WIDE = {"default": Queue(concurrency=100)}
marker: ContextVar[int | None] = ContextVar("marker", default=None)


def current() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


class Tasks(Machine[bool, None]):
    """Records the tasks of its steps. The state says whether a step suspends."""

    def __init__(self) -> None:
        self.shared: list[asyncio.Task[Any]] = []
        self.suspended: list[asyncio.Task[Any]] = []

    @step
    async def run(self, ctx: Context[bool]) -> Outcome[None]:
        task = current()
        if ctx.state:
            await asyncio.sleep(0)
            assert current() is task
        (self.suspended if ctx.state else self.shared).append(task)
        return Done()


async def run_all(machine: Machine[Any, Any], dsn: str, specs: list[Spec[Any, Any]]) -> list[Any]:
    """Run instances that are due before the worker starts, so that one pick leases all of them."""
    async with AsyncClient(dsn, settings=CALM) as client:
        refs = await client.insert_all(specs)
    async with Worker([machine], dsn=dsn, settings=CALM, queues=WIDE) as worker:
        return [await worker.wait(ref, timeout=PATIENCE) for ref in refs]


async def test_steps_that_end_at_once_share_a_task(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_tasks, "_TIME_SLICE", 60.0)
    machine = Tasks()
    await run_all(machine, durable_dsn, [Spec(Tasks, False) for _ in range(50)])
    assert len(machine.shared) == 50
    assert len(set(machine.shared)) < 10


async def test_suspended_steps_have_a_task_of_their_own(durable_dsn: str) -> None:
    machine = Tasks()
    await run_all(machine, durable_dsn, [Spec(Tasks, True) for _ in range(50)])
    assert len(set(machine.suspended)) == 50


async def test_steps_do_not_see_context_variables_of_other_steps(durable_dsn: str) -> None:
    class Marking(Machine[int, int | None]):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[int | None]:
            seen = marker.get()
            marker.set(ctx.state)
            execution = running.get()
            assert execution is not None
            assert execution.id == ctx.id
            return Done(seen)

    ended = await run_all(Marking(), durable_dsn, [Spec(Marking, number) for number in range(50)])
    assert [one.result for one in ended] == [None] * 50


class Incomparable:
    """Like an array: whether two of them are equal is not a bool."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


async def test_context_variable_with_a_value_that_cannot_be_compared(durable_dsn: str) -> None:
    array: ContextVar[Incomparable] = ContextVar("array")
    first = Incomparable()
    array.set(first)

    class Computing(Machine[None, bool]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[bool]:
            seen = array.get()
            array.set(Incomparable())
            return Done(seen is first)

    ended = await run_all(Computing(), durable_dsn, [Spec(Computing) for _ in range(50)])
    assert [one.result for one in ended] == [True] * 50


async def test_steps_run_on_a_loop_with_a_task_factory(durable_dsn: str) -> None:
    """A factory without the argument `context`, as before Python 3.11."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, coroutine: asyncio.Task(coroutine, loop=loop))
    try:
        ended = await run_all(Tasks(), durable_dsn, [Spec(Tasks, number % 2 == 0) for number in range(10)])
    finally:
        loop.set_task_factory(None)
    assert [one.status for one in ended] == [Status.DONE] * 10


async def test_event_loop_gets_its_turn_between_many_steps(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a time slice of zero, other callbacks of the loop run between any two steps."""
    monkeypatch.setattr(step_tasks, "_TIME_SLICE", 0.0)
    turns = 0

    class Busy(Machine[None, int]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[int]:
            return Done(turns)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    ended = await run_all(Busy(), durable_dsn, [Spec(Busy) for _ in range(50)])
    counting.cancel()
    assert len({one.result for one in ended}) == 50


async def test_outcome_of_a_step_that_cancels_its_task_and_returns_commits(durable_dsn: str) -> None:
    class Hasty(Machine[bool, bool]):
        @step
        async def run(self, ctx: Context[bool]) -> Outcome[bool]:
            if ctx.state:
                current().cancel()
            return Done(current().cancelling() > 0)

    specs = [Spec(Hasty, number % 10 == 0) for number in range(50)]
    ended = await run_all(Hasty(), durable_dsn, specs)
    assert [one.result for one in ended] == [number % 10 == 0 for number in range(50)]


class Slow(Machine[int, None]):
    """Waits in its step until `may_go` is set."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.is_running, self.may_go = asyncio.Event(), asyncio.Event()

    @step
    async def run(self, ctx: Context[int]) -> Outcome[None]:
        self.begun.append(ctx.state)
        self.is_running.set()
        await self.may_go.wait()
        return Done()


async def test_cancel_ends_the_wait_for_capacity(durable_dsn: str) -> None:
    slow, queues = Slow(), {"default": Queue(concurrency=1, prefetch=1)}
    async with Worker([slow], dsn=durable_dsn, settings=FAST, queues=queues) as worker:
        await worker.insert(Slow, 1)
        await happens(slow.is_running)
        waiting = await worker.insert(Slow, 2)
        await worker.cancel(waiting)
        assert (await worker.wait(waiting, timeout=PATIENCE)).status is Status.CANCELLED
        slow.may_go.set()
    assert slow.begun == [1]


async def test_lost_lease_ends_the_wait_for_capacity(durable_dsn: str, db: Any) -> None:
    slow, queues = Slow(), {"default": Queue(concurrency=1, prefetch=1)}
    async with Worker([slow], dsn=durable_dsn, settings=FAST, queues=queues) as worker:
        await worker.insert(Slow, 1)
        await happens(slow.is_running)
        waiting = await worker.insert(Slow, 2)
        await holds(db, "select status = 'executing' from gen_durable.gen_durable where id = $1", waiting.id)
        # Another worker holds the lease now.
        await db.execute(
            "update gen_durable.gen_durable set lease_token = 1, lease_expires_at = 'infinity' where id = $1",
            waiting.id,
        )
        (runner,) = worker._engine._runners  # type: ignore[union-attr]
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while runner.in_flight > 1:
                await asyncio.sleep(0)
        slow.may_go.set()
    assert slow.begun == [1]


async def test_commit_acknowledged_after_the_drain_starts_no_step(
    durable_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    class Two(Machine[None, None]):
        @step
        async def first(self, ctx: Context[None]) -> Outcome[None]:
            begun.append("first")
            return Next(self.second)

        @step
        async def second(self, ctx: Context[None]) -> Outcome[None]:
            begun.append("second")
            return Done()

    worker = Worker([Two], dsn=durable_dsn, settings=HASTY)
    async with worker:
        engine = worker._engine
        assert engine is not None
        may_send, send = asyncio.Event(), engine._flusher._send

        async def late(entries: Any) -> Any:
            await may_send.wait()
            return await send(entries)

        monkeypatch.setattr(engine._flusher, "_send", late)
        events = Events(worker)
        await worker.insert(Two)
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while not begun:
                await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.3, may_send.set)
    assert begun == ["first"]
    assert events.seen
    row = await db.fetchrow("select status::text, step, attempt from gen_durable.gen_durable")
    assert tuple(row) == ("runnable", "second", 0)


class Failing(Machine[str, None]):
    """The effect of its step fails when `may_fail` is set. The effect of its handler ends when `may_go` is set."""

    def __init__(self) -> None:
        self.is_in_effect, self.may_fail, self.is_handled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.may_go = asyncio.Event()

    @step
    async def run(self, ctx: Context[str]) -> Outcome[None]:
        if ctx.state == "fails":
            return Done(effect=self.fail)
        if ctx.state == "lets fail":
            self.may_fail.set()
            await asyncio.sleep(0.3)
        if self.is_handled.is_set():
            self.may_go.set()
        return Done()

    async def fail(self, tx: Transaction) -> None:
        self.is_in_effect.set()
        await self.may_fail.wait()
        raise ValueError("refused")

    async def wait(self, tx: Transaction) -> None:
        await self.may_go.wait()

    async def handle(self, error: Exception, ctx: Context[str]) -> Outcome[None]:
        await asyncio.sleep(0.3)
        self.is_handled.set()
        return Done(effect=self.wait)


async def test_effect_that_fails_after_the_drain_is_not_handled(durable_dsn: str, db: Any) -> None:
    machine = Failing()
    async with Worker([machine], dsn=durable_dsn, settings=HASTY) as worker:
        await worker.insert(Failing, "fails")
        await happens(machine.is_in_effect)
        asyncio.get_running_loop().call_later(0.5, machine.may_fail.set)
    assert not machine.is_handled.is_set()
    row = await db.fetchrow("select status::text, step, attempt, crash_count from gen_durable.gen_durable")
    assert tuple(row) == ("runnable", "run", 0, 0)


async def test_capacity_of_a_handler_is_free_during_its_effect(durable_dsn: str) -> None:
    """The handler waits for capacity until the second step ends. The third one starts during its effect."""
    machine = Failing()
    async with AsyncClient(durable_dsn, settings=CALM) as client:
        refs = await client.insert_all([Spec(Failing, state) for state in ("fails", "lets fail", "lets go")])
    async with Worker([machine], dsn=durable_dsn, settings=CALM, queues={"default": 1}) as worker:
        ended = await worker.wait_all(refs, timeout=PATIENCE)
    assert [one.status for one in ended] == [Status.DONE] * 3
