"""Machines for tests of the dashboard."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from gen_durable import (
    Await,
    Context,
    Done,
    Machine,
    Outcome,
    ScheduleChildren,
    Signal,
    Spec,
    Stop,
    job,
    step,
)


class Order(msgspec.Struct):
    number: int
    amount: int = 100
    card: str = "visa"
    password: str = "hunter2-canary"


class Payment(msgspec.Struct):
    cents: int


@job("shop.parcel")
async def parcel(number: int) -> str:
    return f"parcel {number}"


class Checkout(Machine[Order, str], name="shop.checkout", history="all"):
    """Take the money, then ship."""

    paid = Signal("paid", Payment)

    @step(initial=True)
    async def reserve(self, ctx: Context[Order]) -> Outcome[str]:
        """Reserve the goods."""
        if ctx.state.number < 0:
            return Stop("out of stock")
        return Await(self.paid, then=self.ship, timeout=timedelta(days=1))

    @step
    async def ship(self, ctx: Context[Order]) -> Outcome[str]:
        if ctx.timed_out:
            return Stop("not paid")
        ctx.state.amount += 1
        return ScheduleChildren([Spec(parcel, n) for n in range(2)], then=self.close)

    @step
    async def close(self, ctx: Context[Order]) -> Outcome[str]:
        return Done(", ".join(str(child.result) for child in ctx.children))


@job("shop.fragile", max_attempts=1)
async def fragile(text: str) -> None:
    raise ValueError(text)


MACHINES: list[Any] = [Checkout, parcel, fragile]
XSS = "<img src=x onerror=alert(1)>"
