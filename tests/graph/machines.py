"""Machines whose graphs are known."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any, Final

import msgspec

from gen_durable import (
    Await,
    Backoff,
    Cancel,
    Context,
    Discard,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    RetryAfter,
    ScheduleChildren,
    Signal,
    Spec,
    Stop,
    job,
    step,
)

WEEK: Final = timedelta(weeks=1)
LATER: Final = "later"


class Order(msgspec.Struct):
    number: int = 0
    kind: str = "card"
    urls: list[str] = []


class Parcel(Machine[Order, None]):
    @step
    async def pack(self, ctx: Context[Order]) -> Outcome[None]:
        return Done(None)


@job("mail.send", max_attempts=4)
async def send(order: Order) -> None:
    """Send a mail.

    To the customer.
    """


def is_paid(ctx: Context[Order]) -> bool:
    return ctx.state.number > 0


def finish(ctx: Context[Order]) -> Outcome[int]:
    if ctx.state.number > 100:
        return Stop("too large")
    return Done(ctx.state.number)


class Every(Machine[Order, int], retry=Backoff(max_attempts=5)):
    """Every form of outcome."""

    paid = Signal("paid", int)
    gone = Signal("gone")
    both = (paid, gone)

    @step
    async def start(self, ctx: Context[Order]) -> Outcome[int]:
        """Decide how to begin.

        Not this line.
        """
        if is_paid(ctx):
            return Next(self.choose, delay=timedelta(minutes=5))
        return Await(self.paid, self.gone, then=self.choose, timeout=timedelta(days=3))

    @step
    async def choose(self, ctx: Context[Order]) -> Outcome[int]:
        routes = {"card": self.fan_out, "bank": self.wait_for_bank}
        if ctx.state.kind in routes:
            return Next(routes[ctx.state.kind])
        target = self.poll if ctx.timed_out else self.by_name
        return Next(target)

    @step
    def fan_out(self, ctx: Context[Order]) -> Outcome[int]:
        specs = [Spec(Parcel, ctx.state) for _ in range(3)]
        specs.extend(self._mails(ctx))
        return ScheduleChildren(specs, then=self.collect)

    def _mails(self, ctx: Context[Order]) -> list[Any]:
        return [Spec(send, ctx.state)]

    @step
    async def collect(self, ctx: Context[Order]) -> Outcome[int]:
        return finish(ctx)

    @step
    async def wait_for_bank(self, ctx: Context[Order]) -> Outcome[int]:
        return (
            Await(*self.both, then=self.wait_for_bank, timeout=WEEK)
            if not ctx.timed_out
            else self._give_up(ctx)
        )

    def _give_up(self, ctx: Context[Order]) -> Outcome[int]:
        return Stop("no payment")

    @step
    async def poll(self, ctx: Context[Order]) -> Outcome[int]:
        if ctx.attempt < 10:
            return Retry(timedelta(seconds=1))
        if ctx.attempt < 20:
            raise RetryAfter(timedelta(seconds=1))
        return Next(self._after_poll(ctx))

    def _after_poll(self, ctx: Context[Order]) -> Any:
        if ctx.state.number:
            return self.by_name
        return type(self).collect

    @step(retry=Backoff(max_attempts=1))
    async def by_name(self, ctx: Context[Order]) -> Outcome[int]:
        if ctx.state.number == 1:
            return Next("sleep")
        if ctx.state.number == 2:
            return Next(LATER)
        if ctx.state.number == 3:
            raise Discard("broken")
        raise Cancel("not wanted")

    @step
    async def sleep(self, ctx: Context[Order]) -> Outcome[int]:
        return Await(then=Every.later, timeout=timedelta(hours=1))

    @step(to=["start", "sleep"])
    async def later(self, ctx: Context[Order]) -> Outcome[int]:
        return Next(getattr(self, ctx.state.kind))

    async def handle(self, error: Exception, ctx: Context[Order]) -> Outcome[int]:
        """Repair what can be repaired."""
        if isinstance(error, ValueError):
            return Next(self.poll)
        return super().handle(error, ctx)


class Base(Machine[Order, int]):
    @step
    async def first(self, ctx: Context[Order]) -> Outcome[int]:
        return Next(self.second)

    @step
    async def second(self, ctx: Context[Order]) -> Outcome[int]:
        return Done(1)


class Derived(Base):
    @step
    async def second(self, ctx: Context[Order]) -> Outcome[int]:
        if ctx.state.number:
            return Next(self.third)
        return await super().second(ctx)

    @step
    async def third(self, ctx: Context[Order]) -> Outcome[int]:
        return await self.second(ctx)


class Computed(Machine[Order, int]):
    def __init__(self) -> None:
        self.after = "last"

    @step
    async def first(self, ctx: Context[Order]) -> Outcome[int]:
        return Next(self.after)

    @step
    async def last(self, ctx: Context[Order]) -> Outcome[int]:
        return Done(1)


class Handled(Machine[Order, int], retry=Backoff(max_attempts=5)):
    """Its `handle` does not use the retry policy."""

    @step
    async def only(self, ctx: Context[Order]) -> Outcome[int]:
        return Done(1)

    def handle(self, error: Exception, ctx: Context[Order]) -> Outcome[int]:
        if ctx.attempt < 3:
            return Retry()
        return Stop(error)


class Undone(Machine[Order, int]):
    """Options that name other steps."""

    @step(undo="release", on_failure="apologize")
    async def reserve(self, ctx: Context[Order]) -> Outcome[int]:
        return Next(self.ship)

    @step(on_cancel="recall")
    async def ship(self, ctx: Context[Order]) -> Outcome[int]:
        return Done(1)

    @step
    async def release(self, ctx: Context[Order]) -> Outcome:
        return Done()

    @step
    async def apologize(self, ctx: Context[Order]) -> Outcome[int]:
        return Stop("sorry")

    @step
    async def recall(self, ctx: Context[Order]) -> Outcome[int]:
        return Done(0)


class Reversible(Machine[Order, int]):
    """`close` is a step and undoes one."""

    @step(undo="close")
    async def open(self, ctx: Context[Order]) -> Outcome[int]:
        return Next(self.close)

    @step(undo="reopen")
    async def close(self, ctx: Context[Order]) -> Outcome[int]:
        return Done(1)

    @step
    async def reopen(self, ctx: Context[Order]) -> Outcome[int]:
        return Done(1)


class Delegating(Machine[Order, int]):
    """The machines of the first children are not in the code."""

    @step
    async def first(self, ctx: Context[Order]) -> Outcome[int]:
        return ScheduleChildren([Spec(each, ctx.state) for each in plugins()], then=self.second)

    @step
    async def second(self, ctx: Context[Order]) -> Outcome[int]:
        return ScheduleChildren(specs(ctx.state), then=self.third)

    @step
    async def third(self, ctx: Context[Order]) -> Outcome[int]:
        return ScheduleChildren([Spec(each, ctx.state) for each in (Computed, Handled)], then=self.fourth)

    @step
    async def fourth(self, ctx: Context[Order]) -> Outcome[int]:
        return ScheduleChildren([], then=self.last)

    @step
    async def last(self, ctx: Context[Order]) -> Outcome[int]:
        return Done(1)


def plugins() -> list[type[Machine[Order, int]]]:
    return [Computed]


def specs(order: Order) -> list[Spec[Order, int]]:
    return [*map(partial(Spec, Computed), [order])]
