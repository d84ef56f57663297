"""Draining: running steps finish, no new rows are picked."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import Context, Done, Machine, Outcome, Spec, Worker, step
from gen_durable.telemetry import OutcomeStale, SchedulerDrain, StepStop
from tests.support.rows import SqlConnection
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events, happens

HASTY = msgspec.structs.replace(CALM, drain_timeout=timedelta(milliseconds=100))
PATIENT = msgspec.structs.replace(CALM, drain_timeout=PATIENCE)


class Long(Machine[None, str]):
    """Waits in its step for the test; if stubborn, it ignores cancellation."""

    def __init__(self, *, is_stubborn: bool = False) -> None:
        self.is_stubborn = is_stubborn
        self.is_there, self.may_go = asyncio.Event(), asyncio.Event()
        self.has_ended = asyncio.Event()

    @step
    async def run(self, ctx: Context[None]) -> Outcome[str]:
        self.is_there.set()
        while not self.may_go.is_set():
            try:
                await self.may_go.wait()
            except asyncio.CancelledError:
                if not self.is_stubborn:
                    raise
        self.has_ended.set()
        return Done("ended")


@pytest.mark.clause("DRN-1")
async def test_drain_finishes_running_steps_and_picks_nothing(durable_dsn: str, sql: SqlConnection) -> None:
    machine = Long()
    async with Worker([machine], dsn=durable_dsn, settings=PATIENT, queues={"default": 1}) as worker:
        events = Events(worker)
        running, waiting = await worker.insert_all([Spec(machine), Spec(machine)])
        await happens(machine.is_there)
        asyncio.get_running_loop().call_later(0.2, machine.may_go.set)
    assert sql.columns(running.id, "status result") == ("done", "ended")
    assert sql.columns(waiting.id, "status execution") == ("runnable", 0)
    assert events.of(SchedulerDrain) == [SchedulerDrain(released=0, in_flight=1, queue="default")]


@pytest.mark.clause("DRN-3")
async def test_step_that_ignores_cancellation_cannot_commit(durable_dsn: str, sql: SqlConnection) -> None:
    machine = Long(is_stubborn=True)
    async with Worker([machine], dsn=durable_dsn, settings=HASTY) as worker:
        events = Events(worker)
        ref = await worker.insert(machine)
        await happens(machine.is_there)
    before: Any = sql.row(ref.id)
    machine.may_go.set()
    await happens(machine.has_ended)
    await asyncio.sleep(0.05)
    assert sql.row(ref.id) == before
    assert before["status"] == "runnable"
    assert (events.of(StepStop), events.of(OutcomeStale)) == ([], [])
