"""Exceptions of a step go to `handle`, which may return any outcome."""

from __future__ import annotations

from collections.abc import Callable
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
    Retry,
    ScheduleChildren,
    Spec,
    Status,
    Stop,
    Worker,
    step,
)
from gen_durable.telemetry import StepStop
from tests.support.rows import has_no_lease, is_about, row_of
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import PATIENCE, Events

State = dict[str, int]


class Leaf(Machine[int, int]):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


class Fragile(Machine[State, Any]):
    """Raises in its first step; the test supplies `handle`."""

    def __init__(self, answer: Callable[[Fragile, Exception, Context[State]], Outcome[Any]]) -> None:
        self.answer = answer
        self.calls: list[tuple[str, int, State]] = []

    @step
    async def break_(self, ctx: Context[State]) -> Outcome[Any]:
        ctx.state["n"] += 100
        raise ValueError("broken")

    @step
    async def go_on(self, ctx: Context[State]) -> Outcome[Any]:
        return Done(
            [ctx.step_seq, ctx.attempt, ctx.state["n"], ctx.children.results(Leaf), ctx.awaited.all("go")]
        )

    def handle(self, error: Exception, ctx: Context[State]) -> Outcome[Any]:
        self.calls.append((str(error), ctx.attempt, dict(ctx.state)))
        return self.answer(self, error, ctx)


async def test_state_changes_of_handle_are_committed(durable_dsn: str) -> None:
    def answer(self: Fragile, error: Exception, ctx: Context[State]) -> Outcome[Any]:
        ctx.state["n"] += 1
        return Next(self.go_on)

    machine = Fragile(answer)
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(machine, {"n": 1}), timeout=PATIENCE)
    assert (ended.result, ended.last_error) == ([2, 0, 2, [], []], None)


async def test_retry_keeps_a_state_above_the_size_bound(durable_dsn: str) -> None:
    """The unchanged state exceeds the bound of this worker; a Retry of `handle` must not fail for that."""
    machine = Fragile(lambda self, error, ctx: Retry() if ctx.attempt < 2 else Stop(error))
    state: Any = {"n": 1, "x" * 500: 1}
    tight = msgspec.structs.replace(CALM, max_payload=100)
    async with AsyncClient(durable_dsn) as client, Worker([machine], dsn=durable_dsn, settings=tight):
        ended = await client.wait(await client.insert(machine, state), timeout=PATIENCE)
    assert (ended.last_error, ended.attempt, ended.state) == ("ValueError: broken", 2, state)
    assert [attempt for _, attempt, _ in machine.calls] == [0, 1, 2]


@pytest.mark.clause("ERR-2")
async def test_handle_may_retry_with_a_delay(durable_dsn: str, db: Any) -> None:
    machine = Fragile(lambda self, error, ctx: Retry(AN_HOUR) if ctx.attempt else Retry())
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(machine, {"n": 1})
        await events.wait(StepStop, lambda event: event.kind == "retry", count=2)
        row = await row_of(db, ref.id)
    assert (row["status"], row["step"], row["step_seq"], row["crash_count"]) == ("runnable", "break_", 0, 0)
    assert is_about(row["eligible_at"], row, AN_HOUR)
    assert (row["last_error"], row["state"]) == ("ValueError: broken", '{"n": 1}')
    assert has_no_lease(row)
    assert machine.calls == [("broken", 0, {"n": 1}), ("broken", 1, {"n": 1})]


@pytest.mark.clause("ERR-2")
async def test_handle_may_await(durable_dsn: str, db: Any) -> None:
    machine = Fragile(lambda self, error, ctx: Await("go", then=self.go_on))
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine, {"n": 1})
        parked = await worker.wait(ref, timeout=PATIENCE, until="parked")
        assert (parked.status, parked.step, parked.awaits) == (Status.AWAITING_SIGNAL, "go_on", ("go",))
        assert (parked.last_error, parked.attempt, parked.step_seq) == ("ValueError: broken", 0, 1)
        await worker.signal(ref, "go", "now")
        assert (await worker.wait(ref, timeout=PATIENCE)).result == [2, 0, 1, [], ["now"]]


@pytest.mark.clause("ERR-2")
async def test_handle_may_schedule_children(durable_dsn: str) -> None:
    machine = Fragile(
        lambda self, error, ctx: ScheduleChildren([Spec(Leaf, 5), Spec(Leaf, 6)], then=self.go_on)
    )
    async with Worker([machine, Leaf], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(machine, {"n": 1}), timeout=PATIENCE)
    assert ended.result == [2, 0, 1, [5, 6], []]


@pytest.mark.clause("ERR-2")
async def test_handle_may_return_done(durable_dsn: str) -> None:
    machine = Fragile(lambda self, error, ctx: Done("good enough"))
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(machine, {"n": 1}), timeout=PATIENCE)
    assert (ended.result, ended.last_error) == ("good enough", "ValueError: broken")


@pytest.mark.clause("ERR-4")
async def test_handle_that_raises_fails_the_instance(durable_dsn: str) -> None:
    def answer(self: Fragile, error: Exception, ctx: Context[State]) -> Outcome[Any]:
        raise KeyError("lost")

    machine = Fragile(answer)
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(machine, {"n": 1}), timeout=PATIENCE)
    assert ended.status is Status.FAILED
    assert ended.last_error == "ValueError: broken; then handle raised KeyError: 'lost'"
    assert len(machine.calls) == 1


@pytest.mark.clause("OUT-1")
async def test_handle_that_returns_no_outcome_fails_the_instance(durable_dsn: str) -> None:
    machine = Fragile(lambda self, error, ctx: None)  # type: ignore[arg-type,return-value]
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(machine, {"n": 1}), timeout=PATIENCE)
    assert ended.status is Status.FAILED
    assert "handle of break_" in str(ended.last_error)
    assert "returned None, not an outcome" in str(ended.last_error)


@pytest.mark.clause("ERR-1")
async def test_returned_retry_does_not_call_handle(durable_dsn: str) -> None:
    handled: list[Exception] = []
    seen: list[tuple[int, int, str]] = []

    class Again(Machine[None, int]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[int]:
            seen.append((ctx.attempt, ctx.step_seq, ctx.idempotency_key))
            return Retry() if ctx.attempt < 2 else Done(ctx.attempt)

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[int]:
            handled.append(error)
            return Stop(error)

    async with Worker([Again], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(Again), timeout=PATIENCE)
    assert (ended.result, ended.last_error, handled) == (2, None, [])
    assert seen == [(attempt, 1, f"{ended.id}:1") for attempt in range(3)]


async def test_handle_may_be_async(durable_dsn: str) -> None:
    class Fallible(Machine[None, str]):
        @step
        def run(self, ctx: Context[None]) -> Outcome[str]:
            raise RuntimeError("in a thread")

        async def handle(self, error: Exception, ctx: Context[None]) -> Outcome[str]:
            return Done(f"{type(error).__name__} {error}")

    async with Worker([Fallible], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(Fallible), timeout=PATIENCE)
    assert ended.result == "RuntimeError in a thread"
