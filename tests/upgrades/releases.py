"""Four releases of one machine: a renamed step, then two versions with other states.

Run as a program, this is a worker of one release: `python -m tests.upgrades.releases DSN SETTINGS RELEASE`. It prints what it
runs, one JSON object per line. States reject unknown and missing fields, so code that runs a state of another version
fails its instance.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any, Final

import msgspec

from gen_durable import Await, Context, Done, Machine, Next, Outcome, Settings, Signal, Worker, step, upgrade
from gen_durable.telemetry import PickStop
from tests.support.crashing_workers import print_json

__all__ = ["RELEASES", "ROUNDS", "First", "Fourth", "Second", "Third"]

ROUNDS: Final = 6
_FORMS: Final = {frozenset({"id", "count"}): 1, frozenset({"id", "counts"}): 2, frozenset({"id", "total"}): 3}


def _ran(ctx: Context[Any]) -> None:
    form = _FORMS[frozenset(msgspec.json.decode(ctx.raw_state))]
    print_json(ran=ctx.step, code=ctx.version, form=form, id=ctx.id)


class Count(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    count: int


class First(Machine[Count, int], name="parcel"):
    go = Signal("go")

    @step
    async def begin(self, ctx: Context[Count]) -> Outcome[int]:
        _ran(ctx)
        return Await(self.go, then=self.work) if ctx.state.id % 2 else Next(self.work, requeue=True)

    @step
    async def work(self, ctx: Context[Count]) -> Outcome[int]:
        _ran(ctx)
        await asyncio.sleep(0.02)
        ctx.state.count += 1
        return Next(self.work if ctx.state.count < ROUNDS else self.finish, requeue=True)

    @step
    async def finish(self, ctx: Context[Count]) -> Outcome[int]:
        _ran(ctx)
        return Done(1000 * ctx.state.id + ctx.state.count)


class Second(Machine[Count, int], name="parcel"):
    """The same version: `work` is named `carry`."""

    go = Signal("go")

    @step
    async def begin(self, ctx: Context[Count]) -> Outcome[int]:
        _ran(ctx)
        return Await(self.go, then=self.carry) if ctx.state.id % 2 else Next(self.carry, requeue=True)

    @step(was="work")
    async def carry(self, ctx: Context[Count]) -> Outcome[int]:
        _ran(ctx)
        await asyncio.sleep(0.02)
        ctx.state.count += 1
        return Next(self.carry if ctx.state.count < ROUNDS else self.finish, requeue=True)

    @step
    async def finish(self, ctx: Context[Count]) -> Outcome[int]:
        _ran(ctx)
        return Done(1000 * ctx.state.id + ctx.state.count)


class Counts(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    counts: list[int]


class Third(Machine[Counts, int], name="parcel", version=2):
    """The count is a list."""

    go = Signal("go")

    @upgrade(from_version=1)
    @staticmethod
    def listed(state: dict[str, Any]) -> dict[str, Any]:
        return {"id": state["id"], "counts": [1] * state["count"]}

    @step
    async def begin(self, ctx: Context[Counts]) -> Outcome[int]:
        _ran(ctx)
        return Await(self.go, then=self.carry) if ctx.state.id % 2 else Next(self.carry, requeue=True)

    @step(was="work")
    async def carry(self, ctx: Context[Counts]) -> Outcome[int]:
        _ran(ctx)
        await asyncio.sleep(0.02)
        ctx.state.counts.append(1)
        return Next(self.carry if sum(ctx.state.counts) < ROUNDS else self.finish, requeue=True)

    @step
    async def finish(self, ctx: Context[Counts]) -> Outcome[int]:
        _ran(ctx)
        return Done(1000 * ctx.state.id + sum(ctx.state.counts))


class Total(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    total: int


class Fourth(Machine[Total, int], name="parcel", version=3):
    """The list is a number again, and a step is split."""

    go = Signal("go")
    listed = Third.listed

    @upgrade(from_version=2)
    @staticmethod
    def summed(state: dict[str, Any]) -> dict[str, Any]:
        return {"id": state["id"], "total": sum(state["counts"])}

    @step
    async def begin(self, ctx: Context[Total]) -> Outcome[int]:
        _ran(ctx)
        return Await(self.go, then=self.lift) if ctx.state.id % 2 else Next(self.lift, requeue=True)

    @step(was=("work", "carry"))
    async def lift(self, ctx: Context[Total]) -> Outcome[int]:
        _ran(ctx)
        return Next(self.bring if ctx.state.total < ROUNDS else self.finish)

    @step
    async def bring(self, ctx: Context[Total]) -> Outcome[int]:
        _ran(ctx)
        await asyncio.sleep(0.02)
        ctx.state.total += 1
        return Next(self.lift, requeue=True)

    @step
    async def finish(self, ctx: Context[Total]) -> Outcome[int]:
        _ran(ctx)
        return Done(1000 * ctx.state.id + ctx.state.total)


RELEASES: Final[dict[str, type[Machine[Any, int]]]] = {
    "first": First,
    "second": Second,
    "third": Third,
    "fourth": Fourth,
}


def _main(dsn: str, settings: str, release: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    worker = Worker(
        [RELEASES[release]],
        dsn=dsn,
        settings=msgspec.json.decode(settings, type=Settings),
        queues={"default": 4},
    )

    def on_first_pick(_: PickStop) -> None:
        unsubscribe()
        print_json(ready=True)

    unsubscribe = worker.telemetry.subscribe(on_first_pick, PickStop)
    worker.run()
    print_json(ended=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
