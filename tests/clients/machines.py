"""Machines for client tests."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from gen_durable import (
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Signal,
    Spec,
    Stop,
    Stream,
    step,
)


class Order(msgspec.Struct):
    number: int
    paid: bool = False


class Payment(msgspec.Struct):
    amount: int


class Checkout(Machine[Order, int], version=2, queue="checkout"):
    """No worker runs it in these tests."""

    payment = Signal("payment_confirmed", Payment)
    withdrawn = Signal("withdrawn")

    @step
    async def start(self, ctx: Context[Order]) -> Outcome:
        return Await(self.payment, self.withdrawn, then=self.ship)

    @step
    async def ship(self, ctx: Context[Order]) -> Outcome[int]:
        return Done(ctx.state.number)


class Refund(Machine[Order, None]):
    @step
    async def start(self, ctx: Context[Order]) -> Outcome[None]:
        return Done()


class Chat(Machine[None, None]):
    tokens = Stream("tokens", str)

    @step
    async def answer(self, ctx: Context[None]) -> Outcome[None]:
        return Done()


class Ping(Machine[None, None]):
    @step
    async def ping(self, ctx: Context[None]) -> Outcome[None]:
        return Done()


class Double(Machine[int, int]):
    @step
    async def double(self, ctx: Context[int]) -> Outcome[int]:
        if ctx.state < 0:
            return Stop("cannot double a debt")
        return Done(ctx.state * 2)


class Family(Machine[list[int], int]):
    """Doubles every number in a child, in two rounds, and adds up the second."""

    @step
    async def first(self, ctx: Context[list[int]]) -> Outcome:
        return ScheduleChildren([Spec(Double, number) for number in ctx.state], then=self.second)

    @step
    async def second(self, ctx: Context[list[int]]) -> Outcome:
        doubled = ctx.children.results(Double)
        return ScheduleChildren([Spec(Double, number) for number in doubled], then=self.last)

    @step
    async def last(self, ctx: Context[list[int]]) -> Outcome[int]:
        return Done(sum(ctx.children.results(Double)))


class Sleeper(Machine[None, str]):
    bell = Signal("bell", str)

    @step
    async def lie(self, ctx: Context[None]) -> Outcome:
        return Await(self.bell, then=self.rise, timeout=timedelta(hours=1))

    @step
    async def rise(self, ctx: Context[None]) -> Outcome[str]:
        return Done(ctx.awaited.get(self.bell) or "silence")


class Number(Machine[int, Any]):
    @step
    async def only(self, ctx: Context[int]) -> Outcome:
        return Next(self.end)

    @step
    async def end(self, ctx: Context[int]) -> Outcome[Any]:
        return Done(ctx.state)
