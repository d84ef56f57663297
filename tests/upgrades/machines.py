"""Work of every kind of outcome, for old and new code alike."""

from __future__ import annotations

from typing import Any, Final

from gen_durable import Cancel, Context, Done, Event, Machine, Outcome, Stop, job, step
from tests.pooler.machines import Alone, Chain, Parent, Payment, Stubborn, Waiter


class Ender(Machine[str, str]):
    """Ends as its state says, and emits an event where that is allowed."""

    @step
    async def end(self, ctx: Context[str]) -> Outcome[str]:
        if ctx.state == "stop":
            return Stop("on purpose", emit=Event("stopped"))
        if ctx.state == "cancel":
            raise Cancel("on purpose")
        return Done(ctx.state, emit=[Event("ended"), Event("really")])


@job("add")
def add(numbers: list[int]) -> int:
    """A job, in a thread."""
    return sum(numbers)


ALL: Final[list[Any]] = [Alone, Chain, Parent, Payment, Stubborn, Waiter, Ender, add]
