"""Middleware and lifespan of a worker."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from gen_durable import Context, Discard, Done, Machine, Next, Outcome, UsageError, Worker, job, step
from gen_durable.testing import Harness, run_step
from gen_durable.worker import CallNext
from tests.support.settings import CALM

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")


class Pair(Machine[str, str]):
    @step
    async def one(self, ctx: Context[str]) -> Outcome[str]:
        if ctx.state.startswith("fail"):
            raise ValueError("bad")
        return Next(self.two, f"{ctx.state} {tenant.get()}")

    @step
    def two(self, ctx: Context[str]) -> Outcome[str]:
        return Done(f"{ctx.state} {tenant.get()}")


@job("echo.v1")
async def echo(payload: str) -> str:
    return payload


def worker_with(dsn: str, *middleware: Any) -> Worker:
    return Worker([Pair, echo], dsn=dsn, settings=CALM, middleware=middleware)


async def end_of(worker: Worker, state: str = "state", machine: Any = Pair) -> Any:
    return await worker.wait(await worker.insert(machine, state))


@pytest.mark.clause("MID-1")
async def test_middleware_wraps_every_step_first_is_outermost(durable_dsn: str) -> None:
    seen: list[Any] = []

    async def outer(ctx: Context[Any], call_next: CallNext) -> Outcome[Any]:
        seen.append(("outer", ctx.step))
        outcome = await call_next()
        seen.append(("outer", outcome))
        return outcome

    class Inner:
        async def __call__(self, ctx: Context[Any], call_next: CallNext) -> Outcome[Any]:
            seen.append(("inner", ctx.step))
            return await call_next()

    async with worker_with(durable_dsn, outer, Inner()) as worker:
        assert (await end_of(worker)).result == "state none none"
        assert seen == [
            ("outer", "one"),
            ("inner", "one"),
            ("outer", Next("two", "state none")),
            ("outer", "two"),
            ("inner", "two"),
            ("outer", Done("state none none")),
        ]
        seen.clear()
        assert (await end_of(worker, "hello", echo)).result == "hello"
        assert seen == [("outer", "run"), ("inner", "run"), ("outer", Done("hello"))]


@pytest.mark.clause("MID-2")
async def test_steps_see_context_variables_of_middleware(durable_dsn: str) -> None:
    async def identify(ctx: Context[Any], call_next: CallNext) -> Outcome[Any]:
        tenant.set(f"tenant-{ctx.step}")
        return await call_next()

    async with worker_with(durable_dsn, identify) as worker:
        assert (await end_of(worker)).result == "state tenant-one tenant-two"


@pytest.mark.clause("MID-3")
async def test_middleware_may_handle_exceptions_of_a_step(durable_dsn: str) -> None:
    seen: list[BaseException] = []

    async def watch(ctx: Context[Any], call_next: CallNext) -> Outcome[Any]:
        try:
            return await call_next()
        except ValueError as error:
            seen.append(error)
            if ctx.state == "fail, but":
                return Done("answered")
            raise

    async with worker_with(durable_dsn, watch) as worker:
        assert (await end_of(worker, "fail")).last_error == "ValueError: bad"
        assert [str(error) for error in seen] == ["bad"]
        assert (await end_of(worker, "fail, but")).result == "answered"


@pytest.mark.clause("MID-4")
async def test_middleware_errors_fail_the_step(durable_dsn: str) -> None:
    async def wrong(ctx: Context[Any], call_next: CallNext) -> Outcome[Any]:
        match ctx.state:
            case "refuse":
                raise PermissionError("not today")
            case "discard":
                raise Discard("never")
            case "forget":
                await call_next()
                return None  # type: ignore[return-value]
            case _:
                await call_next()
                return await call_next()

    async with worker_with(durable_dsn, wrong) as worker:
        assert (await end_of(worker, "refuse")).last_error == "PermissionError: not today"
        assert (await end_of(worker, "discard")).last_error == "never"
        forgotten = (await end_of(worker, "forget")).last_error
        assert "middleware" in forgotten
        assert "returned None, not an outcome" in forgotten
        assert "called call_next twice" in (await end_of(worker, "twice")).last_error


def test_middleware_must_be_async() -> None:
    def plain(ctx: Any, call_next: Any) -> Any: ...

    for wrong in (plain, 7, "text"):
        with pytest.raises(UsageError, match="is not an async function; write `async def middleware"):
            Worker([Pair], middleware=[wrong])  # type: ignore[list-item]


class Tools(msgspec.Struct):
    worker: Worker
    log: list[str]


class User(Machine[None, str]):
    @step
    async def run(self, ctx: Context[None, Tools]) -> Outcome[str]:
        ctx.resources.log.append("step")
        await ctx.resources.worker.insert(echo, "from a step")
        return Next(self.then)

    @step
    def then(self, ctx: Context[None, Tools]) -> Outcome[str]:
        raise ValueError(len(ctx.resources.log))

    def handle(self, error: Exception, ctx: Context[None, Tools]) -> Outcome[str]:
        return Done(f"{error} {ctx.resources.log}")


@pytest.mark.clause("RES-1")
async def test_lifespan_covers_all_work(durable_dsn: str) -> None:
    log: list[str] = []

    @asynccontextmanager
    async def tools(worker: Worker) -> AsyncGenerator[Tools]:
        log.append("opened")
        # The worker is a client at this time, but has started no work.
        await worker.insert(User, correlation_key="first")
        yield Tools(worker, log)
        log.append("closed")

    async with Worker([User, echo], dsn=durable_dsn, settings=CALM, lifespan=tools) as worker:
        found = await worker.get("first")
        assert found is not None
        assert (await worker.wait(found.id)).result == "2 ['opened', 'step']"
        assert log == ["opened", "step"]
    assert log == ["opened", "step", "closed"]


@pytest.mark.clause("RES-2")
async def test_failed_lifespan_starts_no_work(durable_dsn: str, db: Any) -> None:
    @asynccontextmanager
    async def broken(worker: Worker) -> AsyncGenerator[None]:
        await worker.insert(echo, "")
        if worker.machines:
            raise OSError("no such host")
        yield

    with pytest.raises(OSError, match="no such host"):
        async with Worker([echo], dsn=durable_dsn, settings=CALM, lifespan=broken):
            raise AssertionError("it is not open")
    assert await db.fetchval("select execution from gen_durable.gen_durable") == 0
    query = (
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and application_name = 'gen_durable'"
    )
    assert await db.fetchval(query) == 0, "its connections are closed"


def test_harness_sets_resources(durable: Harness) -> None:
    class Reader(Machine[None, str]):
        @step
        async def run(self, ctx: Context[None, list[str]]) -> Outcome[str]:
            return Done(ctx.resources[0])

    durable.resources = ["fake"]
    ref = durable.insert(Reader)
    durable.drain()
    durable.assert_done(ref, "fake")
    assert run_step(Reader().run, None, resources=["alone"]) == Done("alone")
