"""One machine in three versions of its code, which a test runs in turn or side by side."""

from __future__ import annotations

from typing import Any

import msgspec

from gen_durable import Await, Context, Done, Machine, Next, Outcome, Signal, step, upgrade

__all__ = ["Booking", "BookingV2", "BookingV3", "Guest", "GuestV2", "GuestV3"]


class Guest(msgspec.Struct):
    name: str
    nights: int = 1


class Booking(Machine[Guest, str], name="booking"):
    """Version 1: the name is one text."""

    confirmed = Signal("confirmed")

    @step
    async def begin(self, ctx: Context[Guest]) -> Outcome[str]:
        return Await(self.confirmed, then=self.check_in)

    @step
    async def check_in(self, ctx: Context[Guest]) -> Outcome[str]:
        return Next(self.leave, requeue=True)

    @step
    async def leave(self, ctx: Context[Guest]) -> Outcome[str]:
        return Done(f"1: {ctx.state.name}, {ctx.state.nights}")


class GuestV2(msgspec.Struct):
    first: str
    last: str
    nights: int


class BookingV2(Machine[GuestV2, str], name="booking", version=2):
    """Version 2: the name is split, and a step is renamed."""

    confirmed = Signal("confirmed")

    @upgrade(from_version=1)
    @staticmethod
    def split_name(state: dict[str, Any]) -> dict[str, Any]:
        first, _, last = state["name"].partition(" ")
        return {"first": first, "last": last, "nights": state["nights"]}

    @step
    async def begin(self, ctx: Context[GuestV2]) -> Outcome[str]:
        return Await(self.confirmed, then=self.arrive)

    @step(was="check_in")
    async def arrive(self, ctx: Context[GuestV2]) -> Outcome[str]:
        return Next(self.leave, requeue=True)

    @step
    async def leave(self, ctx: Context[GuestV2]) -> Outcome[str]:
        return Done(f"2: {ctx.state.last}, {ctx.state.first}, {ctx.state.nights}")


class GuestV3(msgspec.Struct):
    first: str
    last: str
    hours: int


class BookingV3(Machine[GuestV3, str], name="booking", version=3):
    """Version 3: hours instead of nights."""

    confirmed = Signal("confirmed")

    split_name = BookingV2.split_name

    @upgrade(from_version=2)
    @staticmethod
    def count_hours(state: dict[str, Any]) -> dict[str, Any]:
        hours = state.pop("nights") * 24
        return {**state, "hours": hours}

    @step
    async def begin(self, ctx: Context[GuestV3]) -> Outcome[str]:
        return Await(self.confirmed, then=self.arrive)

    @step(was=("check_in", "come_in"))
    async def arrive(self, ctx: Context[GuestV3]) -> Outcome[str]:
        return Next(self.leave, requeue=True)

    @step
    async def leave(self, ctx: Context[GuestV3]) -> Outcome[str]:
        return Done(f"3: {ctx.state.last}, {ctx.state.first}, {ctx.state.hours}")
