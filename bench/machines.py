"""Machines of the benchmark. Their steps do nothing."""

from __future__ import annotations

from gen_durable import Context, Done, Event, Machine, Next, Outcome, ScheduleChildren, Spec, step

__all__ = ["CHAIN", "Chain", "Family", "Loud", "One"]

CHAIN = 10


class One(Machine[int, int]):
    """A job: one step, one commit."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


class Loud(Machine[int, int]):
    """A job that emits an event."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state, emit=Event("done", ctx.state))


class Chain(Machine[int, int]):
    """Ten chained steps."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        if ctx.state + 1 < CHAIN:
            return Next(self.run, ctx.state + 1)
        return Done(ctx.state)


class Family(Machine[int, int]):
    """A fan-out: one parent with many children."""

    @step
    async def split(self, ctx: Context[int]) -> Outcome:
        return ScheduleChildren([Spec(One, number) for number in range(ctx.state)], then=self.join)

    @step
    async def join(self, ctx: Context[int]) -> Outcome[int]:
        return Done(len(ctx.children))
