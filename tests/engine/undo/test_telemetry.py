"""`compensation.started` is emitted once per compensation, whatever has started it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from gen_durable import Await, Context, Done, Machine, Next, Outcome, Retry, Status, Worker, step
from gen_durable.telemetry import CompensationStarted
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events, holds


class Trip(Machine[str, str]):
    """Books twice, then waits as its state says. The first undo step is tried twice."""

    @step(undo="cancel_hotel")
    async def book_hotel(self, ctx: Context[str]) -> Outcome[str]:
        return Next(self.book_flight)

    @step(undo="cancel_flight")
    async def book_flight(self, ctx: Context[str]) -> Outcome[str]:
        if ctx.state == "parked":
            return Await("go", then=self.leave)
        return Next(self.leave, delay=timedelta(hours=1) if ctx.state == "delayed" else None)

    @step(interrupt=True)
    async def leave(self, ctx: Context[str]) -> Outcome[str]:
        await asyncio.sleep(3600)
        return Done("left")

    @step
    async def cancel_flight(self, ctx: Context[str]) -> Outcome:
        return Done() if ctx.attempt else Retry(timedelta(0))

    @step
    async def cancel_hotel(self, ctx: Context[str]) -> Outcome:
        return Done()


_AT_LEAVE = "select step = 'leave' and status::text = $2 from gen_durable.gen_durable where id = $1"


@pytest.mark.clause("TEL-13")
@pytest.mark.parametrize("canceller", ["client", "sql"])
@pytest.mark.parametrize(
    ("state", "status"), [("parked", "awaiting_signal"), ("delayed", "runnable"), ("busy", "executing")]
)
async def test_cancel_starts_one_compensation(
    durable_dsn: str, db: Any, state: str, status: str, canceller: str
) -> None:
    async with Worker([Trip], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(Trip, state)
        await holds(db, _AT_LEAVE, ref.id, status)
        if canceller == "client":
            await worker.cancel(ref)
        else:
            await db.execute("select gen_durable.cancel($1::bigint)", ref.id)
        ended = await worker.wait(ref, timeout=PATIENCE)
        assert ended.status is Status.CANCELLED
        assert [(one.id, one.fsm, one.step) for one in events.of(CompensationStarted)] == [
            (ref.id, "Trip", "leave")
        ]
