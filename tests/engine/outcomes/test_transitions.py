"""Requeued transitions."""

from __future__ import annotations

import asyncio
from typing import Any

from gen_durable import Context, Done, Machine, Next, Outcome, Queue, Worker, step
from gen_durable.telemetry import StepStop
from tests.support.rows import has_no_lease, is_about, row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events, happens


async def test_requeued_next_releases_its_lease_and_is_due_at_once(durable_dsn: str, db: Any) -> None:
    is_there, may_go = asyncio.Event(), asyncio.Event()

    class Urgent(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            is_there.set()
            await may_go.wait()
            return Done(None)

    class Walk(Machine[int, int]):
        @step
        async def one(self, ctx: Context[int]) -> Outcome[int]:
            await worker.insert(Urgent, priority=-1)
            return Next(self.two, requeue=True)

        @step
        async def two(self, ctx: Context[int]) -> Outcome[int]:
            return Done(ctx.state)

    worker = Worker([Urgent, Walk], dsn=durable_dsn, queues={"default": Queue(concurrency=1)}, settings=CALM)
    async with worker:
        events = Events(worker)
        walk = await worker.insert(Walk, 7)
        await events.wait(StepStop)
        await happens(is_there)
        row = await row_of(db, walk.id)
        assert (row["status"], row["step"], row["attempt"], row["step_seq"]) == ("runnable", "two", 0, 1)
        assert is_about(row["eligible_at"], row)
        assert has_no_lease(row)
        may_go.set()
        assert (await worker.wait(walk, timeout=PATIENCE)).result == 7
