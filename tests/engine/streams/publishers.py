"""Machines whose steps publish, in all three places where a step can run.

`python -m tests.engine.streams.publishers DSN SETTINGS-AS-JSON` runs a worker for them.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, Final

import msgspec

from gen_durable import (
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    Settings,
    Sql,
    Stop,
    Stream,
    Worker,
    step,
)

__all__ = ["MACHINES", "NUMBERS", "Count", "OnLoop", "Story"]

NUMBERS: Final = Stream("numbers", int)


class Count(msgspec.Struct):
    to: int
    waits_at: int = 0
    """The number after which the first attempt waits until it is killed."""
    pause: float = 0.0
    """Seconds between two numbers."""


class OnLoop(Machine[Count, int]):
    numbers = NUMBERS

    @step
    async def count(self, ctx: Context[Count]) -> Outcome[int]:
        for number in range(1, ctx.state.to + 1):
            await ctx.publish(self.numbers, number)
            if ctx.attempt == 0 and number == ctx.state.waits_at:
                await asyncio.sleep(3600)
            if ctx.state.pause:
                await asyncio.sleep(ctx.state.pause)
        await ctx.close_stream(self.numbers)
        return Done(ctx.state.to)


def _count(ctx: Context[Count]) -> Outcome[int]:
    for number in range(1, ctx.state.to + 1):
        ctx.publish_sync(NUMBERS, number)
        if ctx.attempt == 0 and number == ctx.state.waits_at:
            time.sleep(3600)
        if ctx.state.pause:
            time.sleep(ctx.state.pause)
    ctx.close_stream_sync(NUMBERS)
    return Done(ctx.state.to)


class InThread(Machine[Count, int]):
    numbers = NUMBERS

    @step
    def count(self, ctx: Context[Count]) -> Outcome[int]:
        return _count(ctx)


class InProcess(Machine[Count, int]):
    numbers = NUMBERS

    @step(pool="process")
    def count(self, ctx: Context[Count]) -> Outcome[int]:
        return _count(ctx)


class Story(Machine[str, Any]):
    """Publishes, then does what its state says."""

    lines = Stream("lines", str)

    @step
    async def first(self, ctx: Context[str]) -> Outcome[Any]:
        await ctx.publish(self.lines, f"first {ctx.attempt}")
        match ctx.state:
            case "retry" if ctx.attempt == 0:
                await ctx.close_stream(self.lines)
                return Retry()
            case "raise" if ctx.attempt == 0:
                raise RuntimeError("once")
            case "stop":
                return Stop("no")
            case "next":
                await ctx.publish("other", {"a": 1})
                return Next(self.second)
            case "effect":
                return Done(effect=Sql("select 1 / 0"))
        return Done()

    @step
    async def second(self, ctx: Context[str]) -> Outcome[Any]:
        await ctx.publish(self.lines, "second")
        return Done()

    async def handle(self, error: Exception, ctx: Context[str]) -> Outcome[Any]:
        await ctx.publish(self.lines, f"handle {type(error).__name__}")
        return Retry() if ctx.state == "raise" else Stop("handled")


MACHINES: Final[list[Any]] = [OnLoop, InThread, InProcess]


async def main(dsn: str, settings: str) -> None:
    async with Worker(MACHINES, dsn=dsn, settings=msgspec.json.decode(settings, type=Settings)):
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
