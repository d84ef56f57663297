"""Machines for tests of the test kit: a small shop."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from gen_durable import (
    Await,
    Backoff,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Signal,
    Spec,
    Stop,
    step,
)


class Order(msgspec.Struct):
    id: int
    reminded: bool = False


class Payment(msgspec.Struct):
    amount: int


class Receipt(msgspec.Struct):
    order: int
    amount: int
    parcels: int = 0


class Parcel(Machine[int, str], queue="parcels"):
    """A parcel of a paid order. The third is lost."""

    @step
    def pack(self, ctx: Context[int]) -> Outcome[str]:
        if ctx.state == 3:
            return Stop("lost in the post")
        return Done(f"parcel {ctx.state}")


class Checkout(Machine[Order, Receipt], queue="checkout"):
    """Awaits its payment for a day, reminds once, and is sent in parcels."""

    payment = Signal("payment_confirmed", Payment)
    withdrawn = Signal("withdrawn")

    @step
    async def start(self, ctx: Context[Order]) -> Outcome:
        return Await(self.payment, self.withdrawn, then=self.ship, timeout=timedelta(hours=24))

    @step
    def ship(self, ctx: Context[Order]) -> Outcome[Receipt]:
        if self.withdrawn in ctx.awaited:
            return Stop("the customer withdrew")
        payment = ctx.awaited.get(self.payment)
        if payment is not None:
            return Done(Receipt(ctx.state.id, payment.amount))
        return Stop("payment never came") if ctx.state.reminded else Next(self.remind)

    @step
    async def remind(self, ctx: Context[Order]) -> Outcome:
        ctx.state.reminded = True
        return Next(self.start)


class Shipment(Machine[list[int], list[str]]):
    """Sends parcels, and reports those that arrived."""

    @step
    async def split(self, ctx: Context[list[int]]) -> Outcome:
        return ScheduleChildren([Spec(Parcel, number) for number in ctx.state], then=self.join)

    @step
    async def join(self, ctx: Context[list[int]]) -> Outcome[list[str]]:
        return Done(ctx.children.results(Parcel))


class Flaky(Machine[int, int], retry=Backoff(max_attempts=10, base=timedelta(minutes=1))):
    """Fails as often as its state says, then returns its attempt."""

    @step
    async def attempt(self, ctx: Context[int]) -> Outcome[int]:
        if ctx.attempt < ctx.state:
            raise ConnectionError("the bank does not answer")
        return Done(ctx.attempt)


class Poll(Machine[int, int]):
    """Continues forever, with delays."""

    @step
    async def look(self, ctx: Context[int]) -> Outcome[int]:
        return Next(self.look, ctx.state + 1, delay=timedelta(minutes=5))


class Spin(Machine[None, None]):
    """Continues forever, without delays."""

    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        return Retry()


class Counted(Machine[str, int]):
    """Counts its runs in a list that survives a simulated crash."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    @step
    async def count(self, ctx: Context[str]) -> Outcome[int]:
        self.calls.append(ctx.idempotency_key)
        return Done(len(self.calls))
