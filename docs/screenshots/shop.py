"""A shop with traffic: what the dashboard shows in the screenshots of the documentation."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any, Final

import msgspec

from gen_durable import (
    AsyncClient,
    Await,
    Backoff,
    Context,
    Done,
    Event,
    Machine,
    Next,
    Outcome,
    Schedule,
    ScheduleChildren,
    Signal,
    Spec,
    Status,
    Stop,
    job,
    step,
)

__all__ = ["MACHINES", "SCHEDULES", "Checkout", "customers", "sync_contact"]

_random: Final = random.Random(7)


class GatewayTimeoutError(Exception):
    """The payment provider did not answer."""


class CarrierError(Exception):
    """The carrier refused a parcel."""


class Item(msgspec.Struct):
    """One line of an order."""

    sku: str
    quantity: int
    cents: int


class Order(msgspec.Struct):
    """An order on its way through the shop."""

    number: int
    email: str
    items: list[Item]
    card: str = "visa"
    risk: float | None = None
    authorization: str | None = None
    parcels: list[str] = []

    @property
    def cents(self) -> int:
        """The total."""
        return sum(item.quantity * item.cents for item in self.items)


class Receipt(msgspec.Struct):
    """What a customer gets."""

    order: int
    cents: int
    parcels: list[str]


class Parcel(msgspec.Struct):
    """A parcel of an order."""

    order: int
    number: int
    grams: int
    label: str | None = None


class Shipment(Machine[Parcel, str], name="shop.shipment", queue="shipping"):
    """Pack a parcel and give it to the carrier."""

    scanned = Signal("scanned", str)

    @step(initial=True)
    async def pack(self, ctx: Context[Parcel]) -> Outcome[str]:
        """Weigh the parcel."""
        await asyncio.sleep(_random.uniform(0.01, 0.05))
        return Next(self.book_carrier)

    @step(retry=Backoff(base=timedelta(milliseconds=300), max_attempts=6))
    async def book_carrier(self, ctx: Context[Parcel]) -> Outcome[str]:
        """Book a carrier, and print the label."""
        await asyncio.sleep(_random.uniform(0.02, 0.12))
        if _random.random() < 0.08:
            raise CarrierError(f"postcode {10000 + ctx.state.number} refused by dhl")
        ctx.state.label = f"LB{ctx.state.order:06d}-{ctx.state.number}"
        return Await(self.scanned, then=self.hand_over, timeout=timedelta(seconds=_random.uniform(0.5, 4)))

    @step
    async def hand_over(self, ctx: Context[Parcel]) -> Outcome[str]:
        """The carrier has scanned the parcel."""
        return Done(ctx.state.label or "")


class Checkout(Machine[Order, Receipt], name="shop.checkout", queue="checkout", history="all"):
    """Reserve stock, authorize the card, check the risk, pack, capture, close."""

    payment_confirmed = Signal("payment_confirmed")
    new_card = Signal("new_card", str)
    review_done = Signal("review_done", bool)

    @step(initial=True)
    async def reserve(self, ctx: Context[Order]) -> Outcome[Receipt]:
        """Reserve all items."""
        await asyncio.sleep(_random.uniform(0.01, 0.06))
        if _random.random() < 0.02:
            return Stop(f"SKU-{_random.randint(1000, 1003)} is out of stock")
        return Next(self.authorize)

    @step(retry=Backoff(base=timedelta(milliseconds=400), max_attempts=8))
    async def authorize(self, ctx: Context[Order]) -> Outcome[Receipt]:
        """Authorize the payment."""
        await asyncio.sleep(_random.uniform(0.05, 0.3))
        roll = _random.random()
        if roll < 0.05:
            raise GatewayTimeoutError("POST https://psp.example/v2/charges: no answer in 3 s")
        if roll < 0.10:
            return Await(self.new_card, then=self.swap_card, timeout=timedelta(days=2))
        ctx.state.authorization = f"auth_{_random.getrandbits(32):08x}"
        return Await(self.payment_confirmed, then=self.assess, timeout=timedelta(days=3))

    @step
    async def swap_card(self, ctx: Context[Order]) -> Outcome[Receipt]:
        """Use another card."""
        if ctx.timed_out:
            return Next(self.release)
        ctx.state.card = "mastercard"
        return Next(self.authorize)

    @step
    async def assess(self, ctx: Context[Order]) -> Outcome[Receipt]:
        """Check the risk of fraud."""
        await asyncio.sleep(_random.uniform(0.02, 0.1))
        if ctx.timed_out:
            return Next(self.release)
        ctx.state.risk = round(_random.random(), 2)
        if ctx.state.risk > 0.93:
            return Await(self.review_done, then=self.decide, timeout=timedelta(days=5))
        return Next(self.pack)

    @step
    async def decide(self, ctx: Context[Order]) -> Outcome[Receipt]:
        """A person has reviewed the order."""
        approved = [message.payload for message in ctx.inbox]
        return Next(self.pack if any(approved) else self.release)

    @step
    async def pack(self, ctx: Context[Order]) -> Outcome[Receipt]:
        """Split the order into parcels."""
        parcels = [
            Spec(Shipment, Parcel(ctx.state.number, number, _random.randint(200, 9000)))
            for number in range(1, min(len(ctx.state.items), 3) + 1)
        ]
        return ScheduleChildren(parcels, then=self.capture)

    @step
    async def capture(self, ctx: Context[Order]) -> Outcome[Receipt]:
        """Capture the payment."""
        await asyncio.sleep(_random.uniform(0.03, 0.2))
        ctx.state.parcels = [str(child.result) for child in ctx.children if child.is_done]
        return Next(self.close)

    @step
    async def close(self, ctx: Context[Order]) -> Outcome[Receipt]:
        """Send the receipt."""
        order = ctx.state
        event = Event("order.closed.v1", {"order": order.number}, sink="webhooks")
        return Done(Receipt(order.number, order.cents, order.parcels), emit=[event])

    @step
    async def release(self, ctx: Context[Order]) -> Outcome[Receipt]:
        """Release the reserved items."""
        return Stop("not paid in time")


@job(
    "crm.sync_contact",
    queue="crm",
    rate_limit="crm",
    retry=Backoff(base=timedelta(milliseconds=200), max_attempts=2),
)
async def sync_contact(tenant: int) -> None:
    """Copy a contact to the CRM of a tenant."""
    await asyncio.sleep(_random.uniform(0.02, 0.2))
    if tenant == 13:
        raise PermissionError(f"tenant {tenant}: the API key was revoked")


@job("billing.invoice", queue="billing")
async def invoice(order: int, ctx: Context[int]) -> str:
    """Write an invoice."""
    for page in range(5):
        ctx.progress(page + 1, 5, f"page {page + 1}")
        await asyncio.sleep(0.05)
    return f"invoice-{order}.pdf"


@job("catalog.import", queue="imports", max_attempts=1)
async def import_catalog(source: str) -> int:
    """Import the prices of a supplier."""
    await asyncio.sleep(0.1)
    if _random.random() < 0.1:
        raise ValueError(f"{source}: row {_random.randint(100, 999)} has no price")
    return 120


@job("media.resize", queue="gpu")
async def resize(picture: str) -> None:
    """Resize a picture. No worker of this shop serves its queue."""


MACHINES: Final[list[Any]] = [Checkout, Shipment, sync_contact, invoice, import_catalog]
SCHEDULES: Final = [
    Schedule("catalog-refresh", Spec(import_catalog, "acme-eu"), every=timedelta(seconds=45)),
    Schedule("nightly-invoices", Spec(invoice, 0), cron="30 2 * * *", tz="Europe/Berlin"),
]


async def customers(client: AsyncClient, *, seconds: float, per_second: float) -> None:
    """Place orders, pay most of them, answer some reviews."""
    number = 10_000
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        number += 1
        items = [
            Item(f"SKU-{_random.randint(1000, 9999)}", _random.randint(1, 3), _random.randint(500, 20_000))
            for _ in range(_random.randint(1, 4))
        ]
        await client.insert(
            Checkout,
            Order(number, f"customer{number}@example.org", items),
            correlation_key=f"order:{number}",
        )
        await client.insert(sync_contact, _random.randint(1, 14), concurrency_key=("tenant", number % 5))
        if number % 4 == 0:
            await client.insert(invoice, number)
        if number % 60 == 0:
            await client.insert(resize, f"picture-{number}.png")
        for waiting in await client.list(Checkout, status=Status.AWAITING_SIGNAL, limit=20):
            answers = {"payment_confirmed": None, "new_card": "mastercard", "review_done": True}
            for name in waiting.awaits:
                if _random.random() < (0.3 if name == "payment_confirmed" else 0.04):
                    await client.signal(waiting, name, answers[name])
        await asyncio.sleep(_random.expovariate(per_second))
