"""Machines with every kind of outcome, for workers of old and new code."""

from __future__ import annotations

from typing import Any, Final

from gen_durable import Cancel, Context, Done, Event, Machine, Outcome, Stop, job, step
from tests.pooler.machines import Alone, Chain, Parent, Payment, Stubborn, Waiter


class Ender(Machine[str, str]):
    """End as the state says; done and stop emit events."""

    @step
    async def end(self, ctx: Context[str]) -> Outcome[str]:
        if ctx.state == "stop":
            return Stop("on purpose", emit=Event("stopped"))
        if ctx.state == "cancel":
            raise Cancel("on purpose")
        return Done(ctx.state, emit=[Event("ended"), Event("really")])


@job("add")
def add(numbers: list[int]) -> int:
    """Add numbers, in a thread."""
    return sum(numbers)


ALL: Final[list[Any]] = [Alone, Chain, Parent, Payment, Stubborn, Waiter, Ender, add]
