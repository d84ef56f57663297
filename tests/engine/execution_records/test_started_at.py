"""`started_at` is when the step started, also when statements stall."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gen_durable import Context, Done, Machine, Next, Outcome, Worker, step
from gen_durable._runtime.clock import DatabaseClock
from tests.support.settings import CALM
from tests.support.tcp_proxy import PICK, PLAIN, Match, Proxy, Verdict, When, saying
from tests.support.waiting import PATIENCE

STALL = 1.0


class Clocked(Machine[int, int]):
    """Records the database's time at the start of each step, on a connection that does not stall."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.began: list[datetime] = []

    @step
    async def count(self, ctx: Context[int]) -> Outcome[int]:
        self.began.append(await self._db.fetchval("select clock_timestamp()"))
        return Next(self.count, ctx.state - 1) if ctx.state else Done(0)


async def _stall(proxy: Proxy, match: Match, when: When) -> None:
    held = await proxy.trap(match, when).springs()
    await asyncio.sleep(STALL)
    held.give(Verdict.PASS)


@pytest.mark.clause("EXEC-7")
@pytest.mark.parametrize(
    ("statement", "when"), [(PLAIN, "asked"), (PLAIN, "answered"), (PICK, "asked"), (PICK, "answered")]
)
async def test_stalled_statement_does_not_move_the_start_time(
    direct_dsn: str, db: Any, statement: str, when: When
) -> None:
    machine = Clocked(db)
    async with Proxy.open(direct_dsn) as proxy, Worker([machine], dsn=proxy.dsn, settings=CALM) as worker:
        await worker.wait(
            await worker.insert(machine, 0), timeout=PATIENCE
        )  # the offset to the database's clock is known now
        async with asyncio.TaskGroup() as group:
            group.create_task(_stall(proxy, saying(statement), when))
            ref = await worker.insert(machine, 3)
        await worker.wait(ref, timeout=PATIENCE)
        records = await worker.executions(ref)
    assert len(records) == 4
    for record, began in zip(records, machine.began[1:], strict=True):
        assert record.leased_at is not None
        assert record.started_at is not None
        assert record.finished_at is not None
        assert record.leased_at <= record.started_at <= record.finished_at
        assert abs(record.started_at - began) < timedelta(seconds=0.5)


TRIPS = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=20)


@given(TRIPS, st.floats(-1e6, 1e6), st.floats(-0.01, 0.01))
def test_clock_error_is_at_most_the_latest_round_trip(
    trips: list[tuple[float, float, float]], offset: float, drift: float
) -> None:
    clock, now = DatabaseClock(), 1000.0

    def truth(monotonic: float) -> datetime:
        return datetime.fromtimestamp(1.8e9 + offset + monotonic * (1 + drift), UTC)

    for idle, there, back in trips:
        sent = now + idle
        answered = sent + there + back
        clock.observe(truth(sent + there), sent, answered)
        now = answered
        found = clock.at(now)
        assert found is not None
        bound = (there + back) * (1 + abs(drift)) + 1e-5
        assert abs((found - truth(now)).total_seconds()) <= bound


def test_slow_statement_does_not_worsen_the_clock_estimate() -> None:
    clock = DatabaseClock()
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert clock.at(5.0) is None
    clock.observe(moment, 100.0, 100.001)
    clock.observe(moment + timedelta(seconds=10), 105.0, 115.0)
    found = clock.at(200.0, moment)
    assert found is not None
    assert abs(found - moment - timedelta(seconds=100)) < timedelta(milliseconds=2)
    assert clock.at(0.0, moment) == moment
