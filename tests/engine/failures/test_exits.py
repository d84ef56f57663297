"""SystemExit, CancelledError and other BaseExceptions fail the step, not the worker."""

from __future__ import annotations

import asyncio
import sys

import pytest

from gen_durable import Context, Done, Machine, Outcome, Retry, Status, Transaction, Worker, step
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE


class Panic(BaseException):
    """PyO3 raises a BaseException like this."""


async def test_exit_and_cancelled_error_fail_only_the_step(durable_dsn: str) -> None:
    class Leaver(Machine[int, str]):
        @step
        async def exit(self, ctx: Context[int]) -> Outcome[str]:
            sys.exit(3)

        @step
        async def cancel(self, ctx: Context[int]) -> Outcome[str]:
            raise asyncio.CancelledError

        @step
        def exit_in_a_thread(self, ctx: Context[int]) -> Outcome[str]:
            sys.exit("bye")

        @step
        def cancel_in_a_thread(self, ctx: Context[int]) -> Outcome[str]:
            raise asyncio.CancelledError

        @step
        def stop_iteration(self, ctx: Context[int]) -> Outcome[str]:
            raise StopIteration

        @step
        async def cancelled_future(self, ctx: Context[int]) -> Outcome[str]:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
            return Done("unreachable")

        @step
        async def panic(self, ctx: Context[int]) -> Outcome[str]:
            raise Panic("now")

        @step
        def panic_in_a_thread(self, ctx: Context[int]) -> Outcome[str]:
            raise Panic("now")

        def handle(self, error: Exception, ctx: Context[int]) -> Outcome[str]:
            return Retry() if ctx.attempt == 0 else Done(str(error))

    cancelled = "raised CancelledError, but its task was not cancelled"
    wanted = {
        "exit": "called sys.exit(3)",
        "exit_in_a_thread": "called sys.exit('bye')",
        "cancel": cancelled,
        "cancel_in_a_thread": cancelled,
        "cancelled_future": cancelled,
        "stop_iteration": "a step raised StopIteration",
        "panic": "raised Panic: now",
        "panic_in_a_thread": "raised Panic: now",
    }
    async with Worker([Leaver], dsn=durable_dsn, settings=CALM) as worker:
        refs = [await worker.insert(Leaver, 0, step=name) for name in wanted]
        ended = await worker.wait_all(refs, timeout=PATIENCE)
    assert {one.step: one.result for one in ended} == wanted


async def test_generator_exit_fails_only_the_step(durable_dsn: str) -> None:
    class Leaver(Machine[None, str]):
        @step
        async def on_the_loop(self, ctx: Context[None]) -> Outcome[str]:
            raise GeneratorExit

        @step
        def in_a_thread(self, ctx: Context[None]) -> Outcome[str]:
            raise GeneratorExit

        @step
        async def in_an_effect(self, ctx: Context[None]) -> Outcome[str]:
            async def effect(tx: Transaction) -> None:
                raise GeneratorExit

            return Done("unreachable", effect=effect)

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[str]:
            return Retry() if ctx.attempt == 0 else Done(str(error))

    async with Worker([Leaver], dsn=durable_dsn, settings=CALM) as worker:
        steps = ("on_the_loop", "in_a_thread", "in_an_effect")
        refs = [await worker.insert(Leaver, step=name) for name in steps]
        ended = await worker.wait_all(refs, timeout=PATIENCE)
    assert [one.result for one in ended] == ["raised GeneratorExit"] * 3


async def test_handle_that_exits_fails_only_its_instance(durable_dsn: str) -> None:
    class Leaver(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            sys.exit(1)

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[None]:
            sys.exit(2)

    class Fine(Machine[None, str]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[str]:
            return Done("fine")

    async with Worker([Leaver, Fine], dsn=durable_dsn, settings=CALM) as worker:
        failed = await worker.wait(await worker.insert(Leaver), timeout=PATIENCE)
        assert (await worker.wait(await worker.insert(Fine), timeout=PATIENCE)).result == "fine"
    assert failed.status is Status.FAILED
    assert "then handle raised SystemExit: 2" in str(failed.last_error)


async def test_step_that_cancels_its_own_task_runs_again(
    durable_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Suicidal(Machine[None, int]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[int]:
            if ctx.attempt == 0:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            return Done(ctx.attempt)

    async with Worker([Suicidal], dsn=durable_dsn, settings=FAST) as worker:
        assert (await worker.wait(await worker.insert(Suicidal), timeout=PATIENCE)).result == 1
    assert "step cancelled its own task: Suicidal 1, step run; runs again when" in caplog.text
