"""The shop of README.md."""

from datetime import timedelta

import msgspec

from gen_durable import Await, Context, Done, Machine, Outcome, Retry, Signal, Sql, Stop, backoff, step


class Order(msgspec.Struct):
    number: int


class Checkout(Machine[Order, str], queue="checkout"):
    payment = Signal("payment", int)

    @step
    async def start(self, ctx: Context[Order]) -> Outcome:
        return Await(self.payment, then=self.ship, timeout=timedelta(hours=24))

    @step
    async def ship(self, ctx: Context[Order]) -> Outcome[str]:
        amount = ctx.awaited.get(self.payment)  # int | None
        if amount is None:
            return Stop("not paid within 24 hours")
        paid = Sql("update orders set paid = $1 where number = $2", amount, ctx.state.number)
        return Done(f"order {ctx.state.number} shipped", effect=paid)  # runs exactly once

    def handle(self, error: Exception, ctx: Context[Order]) -> Outcome[str]:  # a step raised
        return Retry(backoff(ctx.attempt)) if ctx.attempt < 5 else Stop(error)
