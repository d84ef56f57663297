"""Machines for the tests of the commands."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from gen_durable import Await, Context, Done, Machine, Outcome, ScheduleChildren, Signal, Spec, job, step

BIG = 123456789012345678901234567890


class Checkout(Machine[dict[str, Any], dict[str, Any]], queue="checkout"):
    payment: Signal[Any] = Signal("payment", Any)

    @step
    async def start(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return Await(self.payment, then=self.ship, timeout=timedelta(hours=24))

    @step
    async def ship(self, ctx: Context[dict[str, Any]]) -> Outcome[dict[str, Any]]:
        return Done({"order": ctx.state.get("order"), "paid": ctx.awaited.get("payment")})


class Parcel(Machine[int, None], version=2):
    moved = Signal("moved", list[int])
    lost = Signal("lost")

    @step
    async def pack(self, ctx: Context[int]) -> Outcome[None]:
        if ctx.state < 0:
            raise ValueError("lost\nin the post")
        return Done(None)


class Shipment(Machine[list[int], None]):
    @step
    async def split(self, ctx: Context[list[int]]) -> Outcome:
        return ScheduleChildren([Spec(Checkout, {"order": order}) for order in ctx.state], then=self.join)

    @step
    async def join(self, ctx: Context[list[int]]) -> Outcome[None]:
        return Done(None)


@job("ops.nightly.v1", max_attempts=1)
def nightly() -> str:
    return "swept"
