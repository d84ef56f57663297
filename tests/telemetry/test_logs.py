"""Log records of steps have the fields of their instance."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from gen_durable import Context, Done, Machine, Outcome, Worker, logs, step
from gen_durable.testing import AsyncHarness
from tests.telemetry.machines import QUICK, Leg, Trip

log = logging.getLogger("shop")


@pytest.fixture(autouse=True)
def context() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    take_back = logs.add_context()
    yield
    take_back()
    assert logging.getLogRecordFactory() is before


def contexts(caplog: pytest.LogCaptureFixture, message: str) -> list[tuple[object, ...]]:
    return [
        tuple(getattr(record, field) for field in logs.FIELDS)
        for record in caplog.records
        if record.getMessage() == message
    ]


@pytest.mark.clause("OBS-6")
async def test_log_records_of_steps_in_loop_and_threads(
    durable_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with Worker([Trip, Leg], dsn=durable_dsn, settings=QUICK) as worker:
        trip, leg = await worker.insert(Trip), await worker.insert(Leg, 2)
        await worker.wait(leg)
        await worker.wait(trip, until="parked")
        log.info("outside", extra={"step": "of my own"})
    assert contexts(caplog, "planning") == [(f"Trip {trip.id} plan 1", trip.id, "Trip", "plan", 1)]
    assert [line for line in contexts(caplog, "walking") if line[1] == leg.id] == [
        (f"Leg {leg.id} walk 1", leg.id, "Leg", "walk", 1),
        (f"Leg {leg.id} walk 2", leg.id, "Leg", "walk", 2),
    ]
    assert contexts(caplog, "outside") == [("-", None, None, None, None)]


class Last(Machine[None, None]):
    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        async def effect(tx: object) -> None:
            log.warning("in the transaction")

        return Done(None, effect=effect)


@pytest.mark.clause("OBS-6")
async def test_log_records_of_effects_and_harness(
    durable_dsn: str, async_durable: AsyncHarness, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker([Last], dsn=durable_dsn, settings=QUICK) as worker:
        ref = await worker.insert(Last)
        await worker.wait(ref)
    assert contexts(caplog, "in the transaction") == [(f"Last {ref.id} run 1", ref.id, "Last", "run", 1)]
    caplog.clear()
    again = await async_durable.insert(Last)
    await async_durable.drain()
    log.warning("after the drain")
    assert contexts(caplog, "in the transaction") == [(f"Last {again.id} run 1", again.id, "Last", "run", 1)]
    assert contexts(caplog, "after the drain")[0][0] == "-"
