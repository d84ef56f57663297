"""A worker whose steps write what they do to a ledger: `python -m tests.engine.undo.ledger_worker DSN SETTINGS`."""

from __future__ import annotations

import asyncio
import random
import sys

import msgspec

from gen_durable import (
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Settings,
    Spec,
    Sql,
    Stop,
    Worker,
    step,
)

LEDGER = "create table ledger (instance bigint not null, step_seq bigint not null, change int not null)"
_WRITE = "insert into ledger values ($1, $2, $3)"


class Plan(msgspec.Struct):
    bookings: int
    ending: str
    is_leader: bool = False
    """Whether it waits for two members after its first booking."""


class Trip(Machine[Plan, str]):
    """Books something several times, then ends; each booking is undone once if it does not end as done."""

    @step(undo="unbook")
    async def book(self, ctx: Context[Plan]) -> Outcome[str]:
        await asyncio.sleep(random.random() * 0.01)
        left = msgspec.structs.replace(ctx.state, bookings=ctx.state.bookings - 1, is_leader=False)
        effect = Sql(_WRITE, ctx.id, ctx.step_seq, 1)
        if ctx.state.is_leader:
            members = [Spec(Trip, Plan(2, ending)) for ending in ("done", "wait")]
            return ScheduleChildren(members, then=self.book, state=left, effect=effect)
        return Next(self.book if left.bookings else self.end, left, effect=effect)

    @step
    async def end(self, ctx: Context[Plan]) -> Outcome[str]:
        await asyncio.sleep(random.random() * 0.01)
        match ctx.state.ending:
            case "stop":
                return Stop("no passport")
            case "wait":
                return Await("go", then=self.end)
            case _:
                return Done("booked")

    @step
    async def unbook(self, ctx: Context[Plan]) -> Outcome[str]:
        await asyncio.sleep(random.random() * 0.3)
        return Done("", effect=Sql(_WRITE, ctx.id, ctx.step_seq, -1))


def main(dsn: str, settings: str) -> None:
    Worker([Trip], dsn=dsn, settings=msgspec.json.decode(settings, type=Settings)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
