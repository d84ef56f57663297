"""Step timeouts."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    StepTimeoutError,
    Stop,
    Worker,
    job,
    step,
)
from gen_durable.errors import OptionError
from gen_durable.testing import Harness
from tests.support.settings import CALM
from tests.support.waiting import happens

BRIEF = timedelta(milliseconds=100)
ONE_THREAD = msgspec.structs.replace(CALM, threads=1)


class Slow(Machine[str, str]):
    """Its state says how it reacts to its timeout."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.freed = threading.Event()
        self.errors: list[Exception] = []

    @step(timeout=BRIEF)
    async def wait(self, ctx: Context[str]) -> Outcome[str]:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled.set()
            if ctx.state == "swallow":
                return Done("too late")
            if ctx.state == "translate":
                raise ValueError("interrupted") from None
            raise
        return Done("never")

    @step(timeout=BRIEF)
    def block(self, ctx: Context[str]) -> Outcome[str]:
        self.freed.wait(20)
        return Done("too late")

    @step(timeout=timedelta(seconds=20))
    async def quick(self, ctx: Context[str]) -> Outcome[str]:
        if ctx.state == "raise":
            raise TimeoutError("not ours")
        return Next(self.quick_thread)

    @step(timeout=timedelta(seconds=20))
    def quick_thread(self, ctx: Context[str]) -> Outcome[str]:
        return Done("in time")

    def handle(self, error: Exception, ctx: Context[str]) -> Outcome[str]:
        self.errors.append(error)
        return Stop(error)


@pytest.mark.clause("STO-1")
async def test_timeout_cancels_async_step_and_calls_handler(durable_dsn: str) -> None:
    machine = Slow()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        for manner in ("give in", "swallow", "translate"):
            machine.cancelled.clear()
            machine.errors.clear()
            found = await worker.wait(await worker.insert(Slow, manner))
            assert machine.cancelled.is_set(), manner
            (error,) = machine.errors
            assert isinstance(error, StepTimeoutError), manner
            assert isinstance(error, TimeoutError), manner
            assert (error.machine, error.step, error.timeout) == ("Slow", "wait", BRIEF), manner
            assert (
                found.last_error
                == "StepTimeoutError: step 'wait' of machine 'Slow' exceeded its timeout of 0:00:00.100000"
            ), manner


@pytest.mark.clause("STO-2")
async def test_timeout_abandons_thread_and_frees_its_capacity(durable_dsn: str) -> None:
    machine = Slow()
    async with Worker([machine], dsn=durable_dsn, settings=ONE_THREAD) as worker:
        await worker.wait(await worker.insert(Slow, "", step="block"))
        stuck = await worker.wait(await worker.insert(Slow, "", step="block"))
        assert [type(error) for error in machine.errors] == [StepTimeoutError] * 2
        assert (await worker.wait(await worker.insert(Slow, "", step="quick"))).result == "in time"
        machine.freed.set()
        await asyncio.sleep(0.05)
        assert (await worker.wait(await worker.insert(Slow, "", step="quick"))).result == "in time"
        again = await worker.get(stuck.id)
    assert again is not None
    assert again.last_error is not None
    assert again.last_error.startswith("StepTimeoutError"), "the late result of the thread is dropped"


async def test_timeout_does_not_count_waiting_for_a_thread(durable_dsn: str) -> None:
    begun = threading.Event()

    class Crowded(Machine[float, str]):
        @step(timeout=timedelta(seconds=1))
        def run(self, ctx: Context[float]) -> Outcome[str]:
            begun.set()
            time.sleep(ctx.state)
            return Done("in time")

    async with Worker([Crowded], dsn=durable_dsn, settings=ONE_THREAD) as worker:
        refs = [await worker.insert(Crowded, 0.4) for _ in range(4)]
        assert [(await worker.wait(ref)).result for ref in refs] == ["in time"] * 4


@pytest.mark.clause("STO-3")
async def test_own_timeout_error_is_not_a_step_timeout(durable_dsn: str) -> None:
    machine = Slow()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        assert (await worker.wait(await worker.insert(Slow, "", step="quick"))).result == "in time"
        await worker.wait(await worker.insert(Slow, "raise", step="quick"))
    (error,) = machine.errors
    assert (type(error), str(error)) == (TimeoutError, "not ours")


async def test_shutdown_is_not_a_timeout(durable_dsn: str, db: Any) -> None:
    is_there = asyncio.Event()

    class Long(Machine[None, None]):
        @step(timeout=timedelta(hours=1))
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            is_there.set()
            await asyncio.sleep(3600)
            return Done()

    hasty = msgspec.structs.replace(CALM, drain_timeout=timedelta(milliseconds=50))
    async with Worker([Long], dsn=durable_dsn, settings=hasty) as worker:
        ref = await worker.insert(Long)
        await happens(is_there)
    row = await db.fetchrow("select status::text, attempt from gen_durable.gen_durable where id = $1", ref.id)
    assert tuple(row) == ("runnable", 0)


@pytest.mark.clause("STO-4")
def test_job_timeout_is_retried(durable: Harness) -> None:
    calls: list[int] = []

    @job("slow.v1", timeout=BRIEF, max_attempts=2)
    async def slow(payload: None, ctx: Context[None]) -> int:
        calls.append(ctx.attempt)
        await asyncio.sleep(0 if ctx.attempt else 3600)
        return ctx.attempt

    ref = durable.insert(slow)
    durable.drain()
    durable.assert_done(ref, 1)
    assert calls == [0, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [(1.5, "is a number without a unit, got 1.5; use "), (timedelta(0), "it must be positive")],
)
def test_invalid_timeout_is_refused_at_definition(given: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):

        @step(timeout=given)
        def run(self: Any, ctx: Context[Any]) -> Outcome[Any]:
            return Retry()

    with pytest.raises(OptionError, match=message):
        job("x", timeout=given)
