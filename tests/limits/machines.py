"""Machines under limits. Run as a program, this is a worker: `python -m tests.limits.machines DSN LEASE CONCURRENCY`."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from gen_durable import Context, Done, Machine, Next, Outcome, Retry, Settings, Worker, step


class Job(Machine[float, int]):
    """Sleeps for this many seconds."""

    @step
    async def run(self, ctx: Context[float]) -> Outcome[int]:
        await asyncio.sleep(ctx.state)
        return Done(ctx.attempt)


class Flaky(Machine[int, int]):
    """Succeeds at the attempt that its state names."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Retry() if ctx.attempt < ctx.state else Done(ctx.attempt)


class Caller(Machine[int, str]):
    """Makes this many rate-limited calls; the steps between them have no limit."""

    @step
    async def prepare(self, ctx: Context[int]) -> Outcome[str]:
        return Next(self.call, rate_limit="crm")

    @step
    async def call(self, ctx: Context[int]) -> Outcome[str]:
        return Next(self.store, ctx.state - 1)

    @step
    async def store(self, ctx: Context[int]) -> Outcome[str]:
        return Next(self.call, rate_limit="crm") if ctx.state else Done("all")


class Careless(Machine[str, None]):
    """Continues under the limit that its state names, with weight 3."""

    @step
    async def first(self, ctx: Context[str]) -> Outcome[None]:
        return Next(self.second, rate_limit=ctx.state, weight=3)

    @step
    async def second(self, ctx: Context[str]) -> Outcome[None]:
        return Done()


def main() -> None:
    dsn, lease, concurrency = sys.argv[1:]
    settings = Settings(lease=timedelta(seconds=float(lease)), reap_interval=timedelta(seconds=0.2))
    Worker([Job, Flaky, Caller], dsn=dsn, queues={"default": int(concurrency)}, settings=settings).run()


if __name__ == "__main__":
    main()
