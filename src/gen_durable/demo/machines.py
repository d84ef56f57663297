"""The machines of the demo: a checkout that waits for its payment, and its shipments.

Each step appends its name to `trail`, which is part of the state. A step that ran twice but was committed once is in
the trail once.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec

from ..context import Context
from ..machine import Machine, step
from ..outcome import Await, Done, Next, Outcome, ScheduleChildren, Stop
from ..refs import Spec
from ..signals import Signal
from .ledger import print_label

__all__ = ["QUEUE", "Checkout", "Order", "Parcel", "Payment", "Receipt", "Shipment", "Shipped"]

QUEUE: Final = "demo"
# Long enough that a process is in the middle of several such steps at any time.
_PRINTING: Final = 0.08  # seconds
_LOADING: Final = 0.01  # seconds


class Order(msgspec.Struct):
    """State of a checkout."""

    number: int
    parcels: int
    ledger: str
    trail: list[str] = []
    cents: int = 0


class Payment(msgspec.Struct):
    """Payload of the payment signal."""

    cents: int


class Receipt(msgspec.Struct):
    """Result of a checkout."""

    cents: int
    labels: list[str]
    trail: list[str]


class Parcel(msgspec.Struct):
    """State of a shipment."""

    order: int
    number: int
    ledger: str
    trail: list[str] = []


class Shipped(msgspec.Struct):
    """Result of a shipment."""

    label: str
    trail: list[str]


class Shipment(Machine[Parcel, Shipped], name="demo.shipment", queue=QUEUE):
    """Print the label of a parcel and hand it over."""

    @step
    async def label(self, ctx: Context[Parcel]) -> Outcome[Shipped]:
        print_label(ctx.state.ledger, ctx.id, ctx.idempotency_key)
        await asyncio.sleep(_PRINTING)
        ctx.state.trail.append("label")
        return Next(self.hand_over)

    @step
    def hand_over(self, ctx: Context[Parcel]) -> Outcome[Shipped]:
        time.sleep(_LOADING)
        parcel = ctx.state
        return Done(Shipped(f"{parcel.order}/{parcel.number}", [*parcel.trail, "hand_over"]))


class Checkout(Machine[Order, Receipt], name="demo.checkout", queue=QUEUE):
    """Wait for the payment, ship the parcels, close the order."""

    payment = Signal("payment_confirmed", Payment)

    @step
    async def start(self, ctx: Context[Order]) -> Outcome[Receipt]:
        ctx.state.trail.append("start")
        return Await(self.payment, then=self.pack)

    @step
    async def pack(self, ctx: Context[Order]) -> Outcome[Receipt]:
        payment = ctx.awaited.get(self.payment)
        if payment is None:
            return Stop("no payment signal")
        order = ctx.state
        order.cents += payment.cents
        order.trail.append("pack")
        parcels = [Parcel(order.number, number, order.ledger) for number in range(1, order.parcels + 1)]
        return ScheduleChildren([Spec(Shipment, parcel) for parcel in parcels], then=self.close)

    @step
    async def close(self, ctx: Context[Order]) -> Outcome[Receipt]:
        if ctx.children.failed:
            return Stop(f"{len(ctx.children.failed)} of {len(ctx.children)} parcels failed")
        labels = [shipped.label for shipped in ctx.children.results(Shipment)]
        return Done(Receipt(ctx.state.cents, labels, [*ctx.state.trail, "close"]))
