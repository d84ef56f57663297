"""This engine. Options: --records LEVEL (execution records), --keep off (finished jobs are deleted in the commit)."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, get_args

from gen_durable import (
    AsyncClient,
    ConcurrencyLimit,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Queue,
    Retry,
    ScheduleChildren,
    Settings,
    Spec,
    Worker,
    step,
)
from gen_durable._version import VERSION
from gen_durable.config import RecordLevel

from .adapter import LIMIT, STEPS, Adapter, is_failing, main, progress

_parser = argparse.ArgumentParser()
_parser.add_argument("--records", choices=get_args(RecordLevel), default="all")
_parser.add_argument("--keep", choices=("on", "off"), default="on")
VARIANT, _ = _parser.parse_known_args()
CLASS_OPTIONS: dict[str, Any] = {} if VARIANT.keep == "on" else {"keep": False}


class Noop(Machine[int, int], **CLASS_OPTIONS):
    """Returns at once."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        progress.done += 1
        return Done(ctx.state)


class Suspend(Machine[int, int], **CLASS_OPTIONS):
    """Yields to the event loop once."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        await asyncio.sleep(0)
        progress.done += 1
        return Done(ctx.state)


class Flaky(Machine[int, int], **CLASS_OPTIONS):
    """Fails once, for 1 % of the jobs."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        if ctx.attempt == 0 and is_failing(ctx.state):
            raise RuntimeError("the first attempt fails")
        progress.done += 1
        return Done(ctx.state)

    def handle(self, error: Exception, ctx: Context[int]) -> Outcome[int]:
        return Retry(timedelta(0))


class Limited(Machine[int, int], **CLASS_OPTIONS):
    """Runs under a concurrency limit."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        progress.done += 1
        return Done(ctx.state)


class Chain(Machine[int, int], **CLASS_OPTIONS):
    """A workflow of chained steps."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        if ctx.state + 1 < STEPS:
            return Next(self.run, ctx.state + 1)
        progress.done += 1
        return Done(ctx.state)


class Leaf(Machine[int, int]):
    """A child."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


class Fan(Machine[int, int]):
    """A fan-out with a join."""

    @step
    async def split(self, ctx: Context[int]) -> Outcome:
        return ScheduleChildren([Spec(Leaf, number) for number in range(ctx.state)], then=self.join)

    @step
    async def join(self, ctx: Context[int]) -> Outcome[int]:
        progress.done += 1
        return Done(len(ctx.children))


class Probe(Machine[float, float]):
    """Records its latency."""

    @step
    async def run(self, ctx: Context[float]) -> Outcome[float]:
        progress.started(ctx.state)
        return Done(ctx.state)


MACHINES: dict[str, type[Machine[Any, Any]]] = {
    "noop": Noop,
    "suspend": Suspend,
    "flaky": Flaky,
    "limited": Limited,
    "chain": Chain,
    "fan": Fan,
    "probe": Probe,
}


class GenDurable(Adapter):
    """One worker with one queue. A producer in the process of the worker uses the worker itself."""

    version = VERSION
    settings = f"Queue(concurrency=2000), poll_interval=50ms, executions={VARIANT.records}" + (
        "" if VARIANT.keep == "on" else ", keep=False"
    )
    tasks = tuple(MACHINES)
    pending = """
        select exists (select from gen_durable.gen_durable where status = 'runnable' and not gated)
            or exists (select from gen_durable.gen_durable where status = 'runnable' and gated)
            or exists (select from gen_durable.gen_durable where status = 'executing')"""
    fill = """
        insert into gen_durable.gen_durable (fsm, step, status, result, finished_at)
        select 'Noop', 'run', 'done', '0', now() from generate_series(1, :rows)"""
    busy_key = """
        insert into gen_durable.gen_durable (fsm, step, concurrency_key)
        select 'Noop', 'run', 'busy' from generate_series(1, 50000);
        insert into gen_durable.gen_durable
               (fsm, step, queue, status, lease_token, lease_expires_at, concurrency_key, concurrency_slot)
        values ('Noop', 'run', 'elsewhere', 'executing', 1, 'infinity', 'busy', 0)"""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._settings = Settings(poll_interval=timedelta(milliseconds=50), executions=VARIANT.records)
        self._client: AsyncClient | Worker | None = None

    async def install(self) -> None:
        async with AsyncClient(self.dsn, settings=self._settings) as client:
            await client.set_limit(ConcurrencyLimit("limited", LIMIT))

    async def open(self) -> None:
        if self._client is None:
            self._client = await AsyncClient(self.dsn, settings=self._settings).__aenter__()

    async def insert(self, task: str, values: Sequence[float]) -> None:
        assert self._client is not None  # noqa: S101
        await self._client.insert_all([self._spec(task, value) for value in values])

    async def insert_one(self, task: str, value: float) -> None:
        assert self._client is not None  # noqa: S101
        await self._client.insert(MACHINES[task], value)

    def _spec(self, task: str, value: float) -> Spec[Any, Any]:
        if task == "limited":
            return Spec(Limited, int(value), concurrency_key="limited")
        return Spec(MACHINES[task], 0 if task == "chain" else value)

    async def work(self, task: str) -> None:
        worker = Worker(
            [*MACHINES.values(), Leaf],
            dsn=self.dsn,
            queues={"default": Queue(concurrency=2000)},
            settings=self._settings,
        )
        self._client = await worker.__aenter__()


if __name__ == "__main__":
    main(GenDurable)
