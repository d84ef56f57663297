"""The shop of README.md: a machine, and two jobs."""

from datetime import timedelta

import msgspec

from gen_durable import (
    Await,
    Context,
    Discard,
    Done,
    Machine,
    Outcome,
    Retry,
    Signal,
    Sql,
    Stop,
    backoff,
    job,
    step,
)


class Order(msgspec.Struct):
    id: int


class Payment(msgspec.Struct):
    amount: int


class Receipt(msgspec.Struct):
    order: int
    amount: int


class Invoice(msgspec.Struct):
    number: int


class Charge(msgspec.Struct):
    invoice: int
    id: str


class DeclinedError(Exception): ...


async def charge_card(invoice: Invoice, key: str) -> Charge:
    return Charge(invoice.number, f"ch_{key}")


class Checkout(Machine[Order, Receipt], queue="checkout"):
    payment = Signal("payment_confirmed", Payment)

    @step
    async def start(self, ctx: Context[Order]) -> Outcome:
        return Await(self.payment, then=self.ship, timeout=timedelta(hours=24))

    @step
    def ship(self, ctx: Context[Order]) -> Outcome[Receipt]:  # a plain def runs in a thread
        payment = ctx.awaited.get(self.payment)  # Payment | None, says the type checker
        return Done(Receipt(ctx.state.id, payment.amount)) if payment else Stop("payment never came")

    def handle(self, error: Exception, ctx: Context[Order]) -> Outcome[Receipt]:  # optional: a step raised
        return Retry(backoff(ctx.attempt)) if ctx.attempt < 5 else Stop(error)


@job("billing.invoice_charge.v1", max_attempts=5, dead_letter="ops.dead.v1")
async def invoice_charge(invoice: Invoice, ctx: Context[Invoice]) -> Charge:
    try:
        return await charge_card(invoice, ctx.idempotency_key)  # raises? again after 1 s, 2 s, 4 s …
    except DeclinedError:
        raise Discard("card declined") from None  # failed now; RetryAfter, Cancel: obeyed too


@job("billing.settle.v1")
def settle(charge: Charge) -> Done[str]:
    booked = Sql("update invoice set charge = $1 where number = $2", charge.id, charge.invoice)
    return Done(charge.id, effect=booked)
