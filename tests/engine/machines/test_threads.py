"""Plain `def` steps run in threads and may block."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import msgspec
import pytest

from gen_durable import Context, Done, Machine, Outcome, Queue, Spec, Status, Stop, Worker, step
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, happens

TWENTY = {"default": Queue(concurrency=20)}


class Async(Machine[None, str]):
    @step
    async def run(self, ctx: Context[None]) -> Outcome[str]:
        return Done(threading.current_thread().name)


@pytest.mark.clause("MCH-7")
async def test_plain_step_runs_in_a_thread_and_async_step_on_the_loop(durable_dsn: str) -> None:
    class Plain(Machine[None, str]):
        @step
        def run(self, ctx: Context[None]) -> Outcome[str]:
            return Done(threading.current_thread().name)

    async with Worker([Plain, Async], dsn=durable_dsn, settings=CALM) as worker:
        plain, awaited = [await worker.insert(machine) for machine in (Plain, Async)]
        assert (await worker.wait(plain, timeout=PATIENCE)).result.startswith("gen_durable step")
        assert (await worker.wait(awaited, timeout=PATIENCE)).result == threading.current_thread().name


async def test_blocked_steps_do_not_block_the_loop(durable_dsn: str) -> None:
    may_go, all_there = threading.Event(), asyncio.Event()
    loop, there = asyncio.get_running_loop(), threading.Barrier(8)

    class Blocking(Machine[None, str]):
        @step
        def run(self, ctx: Context[None]) -> Outcome[str]:
            there.wait(PATIENCE.total_seconds())
            loop.call_soon_threadsafe(all_there.set)
            return Done("ended") if may_go.wait(PATIENCE.total_seconds()) else Stop("timed out")

    async with Worker([Blocking, Async], dsn=durable_dsn, settings=CALM, queues=TWENTY) as worker:
        blocked = await worker.insert_all([Spec(Blocking) for _ in range(8)])
        await happens(all_there)
        quick = await worker.wait_all([await worker.insert(Async) for _ in range(20)], timeout=PATIENCE)
        assert {one.status for one in quick} == {Status.DONE}
        assert await worker.count(Blocking, status=Status.EXECUTING) == 8
        may_go.set()
        assert {one.result for one in await worker.wait_all(blocked, timeout=PATIENCE)} == {"ended"}


async def test_steps_wait_when_no_thread_can_be_started(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Plain(Machine[None, None]):
        @step
        def run(self, ctx: Context[None]) -> Outcome[None]:
            return Done()

    start, refusals = threading.Thread.start, iter(range(6))

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("gen_durable step") and next(refusals, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    settings = msgspec.structs.replace(CALM, threads=4)
    async with Worker([Plain], dsn=durable_dsn, settings=settings) as worker:
        refs = await worker.insert_all([Spec(Plain) for _ in range(4)])
        ended = await worker.wait_all(refs, timeout=PATIENCE)
    assert {(one.status, one.attempt, one.crash_count) for one in ended} == {(Status.DONE, 0, 0)}
    assert "thread not started: can't start new thread; retrying in" in caplog.text


@pytest.mark.clause("MCH-7")
async def test_threads_setting_limits_concurrent_plain_steps(durable_dsn: str) -> None:
    lock, inside, most = threading.Lock(), 0, 0
    pair = threading.Barrier(2)

    class Plain(Machine[None, None]):
        @step
        def run(self, ctx: Context[None]) -> Outcome[None]:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
            pair.wait(PATIENCE.total_seconds())  # two run concurrently
            with lock:
                inside -= 1
            return Done()

    settings = msgspec.structs.replace(CALM, threads=2)
    async with Worker([Plain], dsn=durable_dsn, settings=settings, queues=TWENTY) as worker:
        refs = await worker.insert_all([Spec(Plain) for _ in range(20)])
        ended = await worker.wait_all(refs, timeout=PATIENCE)
    assert {one.status for one in ended} == {Status.DONE}
    assert most == 2


async def test_context_variables_of_plain_steps_do_not_leak(durable_dsn: str) -> None:
    tenant: contextvars.ContextVar[int] = contextvars.ContextVar("tenant", default=0)

    class Plain(Machine[int, int]):
        @step
        def run(self, ctx: Context[int]) -> Outcome[int]:
            before = tenant.get()
            tenant.set(ctx.state)
            return Done(before)

    async with Worker([Plain], dsn=durable_dsn, settings=CALM) as worker:
        refs = await worker.insert_all([Spec(Plain, n) for n in range(1, 20)])
        assert {one.result for one in await worker.wait_all(refs, timeout=PATIENCE)} == {0}


async def test_plain_step_that_returns_a_coroutine_fails_with_advice(durable_dsn: str) -> None:
    class Forgot(Machine[None, None]):
        @step
        def run(self, ctx: Context[None]) -> Outcome[None]:
            return self._work(ctx)  # type: ignore[return-value]

        async def _work(self, ctx: Context[None]) -> Outcome[None]:
            return Done()

    async with Worker([Forgot], dsn=durable_dsn, settings=CALM) as worker:
        failed = await worker.wait(await worker.insert(Forgot), timeout=PATIENCE)
    assert failed.status is Status.FAILED
    assert "returned a coroutine, not an outcome; await it in an `async def`" in str(failed.last_error)
