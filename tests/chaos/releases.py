"""Four releases of one machine: a renamed step, then two versions with other states.

Each execution writes to the journal which version its code has and which version wrote the stored state. States reject unknown
and missing fields, so code that reads a state of another version fails its instance.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from gen_durable import Await, Context, Done, Machine, Next, Outcome, Signal, step, upgrade
from tests.chaos.machines import Page, Result

__all__ = ["RELEASES", "ROUNDS", "VERSIONS", "First", "Fourth", "Second", "Third", "new_parcel"]

ROUNDS: Final = 6
# By the field that only states of this version have.
VERSIONS: Final = {"count": 1, "counts": 2, "total": 3}


class Parcel(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the states of all versions have."""

    waits: bool
    pace: float
    saw: str = ""
    """The signature of the execution that made this state."""
    tokens: list[str] = []
    kill: str = ""


class Count(Parcel, forbid_unknown_fields=True, kw_only=True):
    count: int


class Counts(Parcel, forbid_unknown_fields=True, kw_only=True):
    counts: list[int]


class Total(Parcel, forbid_unknown_fields=True, kw_only=True):
    total: int


def _page(ctx: Context[Any]) -> Page:
    (field,) = VERSIONS.keys() & msgspec.json.decode(ctx.raw_state).keys()
    return Page(ctx, code=ctx.version, stored=VERSIONS[field])


def _tokens(ctx: Context[Any]) -> list[str]:
    return [*ctx.state.tokens, *(message.payload for message in ctx.awaited)]


class First(Machine[Count, Result], name="parcel"):
    token = Signal("token", str)

    @step
    async def begin(self, ctx: Context[Count]) -> Outcome[Result]:
        state = _page(ctx).end()
        return Await(self.token, then=self.work, state=state) if state.waits else Next(self.work, state)

    @step
    async def work(self, ctx: Context[Count]) -> Outcome[Result]:
        page = _page(ctx)
        await asyncio.sleep(ctx.state.pace)
        state = page.end(count=ctx.state.count + 1, tokens=_tokens(ctx))
        return Next(self.work if state.count < ROUNDS else self.finish, state, requeue=True)

    @step
    async def finish(self, ctx: Context[Count]) -> Outcome[Result]:
        return Done(_page(ctx).ended())


class Second(Machine[Count, Result], name="parcel"):
    """The same version: `work` is named `carry`."""

    token = Signal("token", str)

    @step
    async def begin(self, ctx: Context[Count]) -> Outcome[Result]:
        state = _page(ctx).end()
        return Await(self.token, then=self.carry, state=state) if state.waits else Next(self.carry, state)

    @step(was="work")
    async def carry(self, ctx: Context[Count]) -> Outcome[Result]:
        page = _page(ctx)
        await asyncio.sleep(ctx.state.pace)
        state = page.end(count=ctx.state.count + 1, tokens=_tokens(ctx))
        return Next(self.carry if state.count < ROUNDS else self.finish, state, requeue=True)

    @step
    async def finish(self, ctx: Context[Count]) -> Outcome[Result]:
        return Done(_page(ctx).ended())


class Third(Machine[Counts, Result], name="parcel", version=2):
    """The count is a list."""

    token = Signal("token", str)

    @upgrade(from_version=1)
    @staticmethod
    def listed(state: dict[str, Any]) -> dict[str, Any]:
        return {"counts": [1] * state.pop("count"), **state}

    @step
    async def begin(self, ctx: Context[Counts]) -> Outcome[Result]:
        state = _page(ctx).end()
        return Await(self.token, then=self.carry, state=state) if state.waits else Next(self.carry, state)

    @step(was="work")
    async def carry(self, ctx: Context[Counts]) -> Outcome[Result]:
        page = _page(ctx)
        await asyncio.sleep(ctx.state.pace)
        state = page.end(counts=[*ctx.state.counts, 1], tokens=_tokens(ctx))
        return Next(self.carry if sum(state.counts) < ROUNDS else self.finish, state, requeue=True)

    @step
    async def finish(self, ctx: Context[Counts]) -> Outcome[Result]:
        return Done(_page(ctx).ended())


class Fourth(Machine[Total, Result], name="parcel", version=3):
    """The list is a number again, and a step is split."""

    token = Signal("token", str)
    listed = Third.listed

    @upgrade(from_version=2)
    @staticmethod
    def summed(state: dict[str, Any]) -> dict[str, Any]:
        return {"total": sum(state.pop("counts")), **state}

    @step
    async def begin(self, ctx: Context[Total]) -> Outcome[Result]:
        state = _page(ctx).end()
        return Await(self.token, then=self.lift, state=state) if state.waits else Next(self.lift, state)

    @step(was=("work", "carry"))
    async def lift(self, ctx: Context[Total]) -> Outcome[Result]:
        state = _page(ctx).end(tokens=_tokens(ctx))
        return Next(self.bring if state.total < ROUNDS else self.finish, state)

    @step
    async def bring(self, ctx: Context[Total]) -> Outcome[Result]:
        page = _page(ctx)
        await asyncio.sleep(ctx.state.pace)
        return Next(self.lift, page.end(total=ctx.state.total + 1), requeue=True)

    @step
    async def finish(self, ctx: Context[Total]) -> Outcome[Result]:
        return Done(_page(ctx).ended())


RELEASES: Final[dict[str, type[Machine[Any, Result]]]] = {
    "first": First,
    "second": Second,
    "third": Third,
    "fourth": Fourth,
}


def new_parcel(release: str, *, waits: bool, pace: float) -> Any:
    """The state that a producer of this release inserts."""
    match RELEASES[release].__definition__.version:
        case 1:
            return Count(waits=waits, pace=pace, count=0)
        case 2:
            return Counts(waits=waits, pace=pace, counts=[])
        case _:
            return Total(waits=waits, pace=pace, total=0)
