"""Machines that start at a step that the test chooses."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from gen_durable import (
    Await,
    Backoff,
    Cancel,
    Context,
    Discard,
    Done,
    Event,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Signal,
    Spec,
    Stop,
    job,
    step,
)

TWICE = Backoff(max_attempts=2, base=timedelta(0))


class Story(Machine[None, str]):
    go = Signal("go", int)

    @step
    async def ends(self, ctx: Context[None]) -> Outcome[str]:
        return Done("well")

    @step
    async def goes_on(self, ctx: Context[None]) -> Outcome[str]:
        return Next(self.ends)

    @step
    async def again(self, ctx: Context[None]) -> Outcome[str]:
        return Retry(timedelta(0)) if ctx.attempt == 0 else Done("")

    @step
    async def stops(self, ctx: Context[None]) -> Outcome[str]:
        return Stop("no more", emit=Event("stopped"))

    @step
    async def raises(self, ctx: Context[None]) -> Outcome[str]:
        raise ValueError("broken")

    @step(retry=TWICE)
    async def recovers(self, ctx: Context[None]) -> Outcome[str]:
        if ctx.attempt == 0:
            raise ValueError("not yet")
        return Done("")

    @step(retry=TWICE)
    async def wears_out(self, ctx: Context[None]) -> Outcome[str]:
        raise ValueError("broken")

    @step
    async def discards(self, ctx: Context[None]) -> Outcome[str]:
        raise Discard("not worth it")

    @step
    async def gives_up(self, ctx: Context[None]) -> Outcome[str]:
        raise Cancel("not wanted")

    @step
    async def awaits(self, ctx: Context[None]) -> Outcome[str]:
        return Await(self.go, then=self.ends, timeout=timedelta(hours=1))

    @step
    async def spawns(self, ctx: Context[None]) -> Outcome[str]:
        return ScheduleChildren([Spec(Story, step="ends")], then=self.ends)


@job("audit.sum")
async def add(numbers: list[int]) -> Done[int]:
    return Done(sum(numbers))


def story(stage: Any, name: str) -> Any:
    """Insert an instance at this step, drain, and return its reference."""
    ref = stage.insert(Story, step=name)
    stage.drain()
    return ref
