"""Machines of the benchmark. Their steps do nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec

from gen_durable import (
    Await,
    Context,
    Done,
    Event,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Signal,
    Spec,
    Stop,
    step,
)

__all__ = [
    "CHAIN",
    "MACHINES",
    "Chain",
    "Family",
    "Loud",
    "One",
    "Order",
    "Ordered",
    "Suspending",
    "Threaded",
    "Timed",
    "Undoable",
    "Undone",
    "Waiting",
]

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


class Undoable(Machine[int, int]):
    """Ten chained steps that could be undone."""

    @step(undo="back")
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        if ctx.state + 1 < CHAIN:
            return Next(self.run, ctx.state + 1)
        return Done(ctx.state)

    @step
    async def back(self, ctx: Context[int]) -> Outcome:
        return Done()


class Undone(Machine[int, int]):
    """Four steps, of which the last fails, and three undo steps."""

    @step(undo="back")
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Next(self.run, ctx.state + 1) if ctx.state < 2 else Next(self.fail)

    @step
    async def fail(self, ctx: Context[int]) -> Outcome[int]:
        return Stop("undo all")

    @step
    async def back(self, ctx: Context[int]) -> Outcome:
        return Done()


class Family(Machine[int, int]):
    """A fan-out: one parent with many children."""

    @step
    async def split(self, ctx: Context[int]) -> Outcome:
        return ScheduleChildren([Spec(One, number) for number in range(ctx.state)], then=self.join)

    @step
    async def join(self, ctx: Context[int]) -> Outcome[int]:
        return Done(len(ctx.children))


class Suspending(Machine[int, int]):
    """A job whose step suspends once."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        await asyncio.sleep(0)
        return Done(ctx.state)


class Timed(Machine[int, int]):
    """A job whose step has a timeout."""

    @step(timeout=timedelta(minutes=1))
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


class Threaded(Machine[int, int]):
    """A job whose step runs in a thread."""

    @step
    def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


class Order(msgspec.Struct):
    """A state with a few fields."""

    number: int
    customer: str
    items: list[str]
    paid: float | None = None


class Ordered(Machine[Order, Order]):
    """A job whose state and result are objects."""

    @step
    async def run(self, ctx: Context[Order]) -> Outcome[Order]:
        ctx.state.paid = 9.5
        return Done(ctx.state)


class Waiting(Machine[int, int]):
    """Two steps: one that awaits a signal, and one that reads it."""

    go = Signal("go", int)

    @step
    async def wait(self, ctx: Context[int]) -> Outcome[int]:
        return Await(self.go, then=self.read)

    @step
    async def read(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.awaited.get(self.go) or 0)


MACHINES = (One, Loud, Chain, Undoable, Undone, Family, Suspending, Timed, Threaded, Ordered, Waiting)
