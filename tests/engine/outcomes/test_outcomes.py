"""OUT: what each outcome makes of the stored row."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from gen_durable import (
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Settings,
    Spec,
    Stop,
    Worker,
    step,
)
from gen_durable.telemetry import PickStop
from gen_durable.testing import Harness
from tests.support.machines import Say, one_step, probe
from tests.support.rows import SqlConnection, has_no_lease, is_near
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import PATIENCE, Events


def after(durable: Harness, sql: SqlConnection, outcome: Outcome[Any]) -> dict[str, Any]:
    """The row of an instance with a hard life behind it, after a step that returned this outcome."""
    ref = durable.insert(probe(lambda ctx: outcome), 7)
    durable.signal(ref, "unread")
    sql(
        "update gen_durable.gen_durable set attempt = 2, crash_count = 1, last_error = 'old', awaits = '{past}'"
    )
    one_step(durable)
    row = sql.row(ref.id)
    assert has_no_lease(row)
    return row


def facts(row: dict[str, Any], names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names.split())


@pytest.mark.clause("OUT-2", "OUT-10", "OUT-13")
@pytest.mark.parametrize("delay", [None, AN_HOUR])
def test_next(durable: Harness, sql: SqlConnection, delay: Any) -> None:
    row = after(durable, sql, Next("two", 8, delay=delay))
    assert facts(row, "status step state step_seq") == ("runnable", "two", 8, 1)
    assert facts(row, "attempt crash_count awaits result finished_at") == (0, 0, None, None, None)
    due = row["eligible_at"] - (delay or AN_HOUR * 0)
    assert is_near(due, row["updated_at"])
    assert sql.inbox(row["id"]) == ["unread"]


@pytest.mark.clause("OUT-3", "OUT-13")
def test_retry(durable: Harness, sql: SqlConnection) -> None:
    row = after(durable, sql, Retry(AN_HOUR, 8))
    assert facts(row, "status step state step_seq") == ("runnable", "one", 8, 0)
    assert facts(row, "attempt crash_count awaits result") == (3, 0, ["past"], None)
    assert row["eligible_at"] - row["updated_at"] == AN_HOUR
    assert sql.inbox(row["id"]) == ["unread"]


@pytest.mark.clause("OUT-4", "OUT-10", "OUT-13")
def test_await(durable: Harness, sql: SqlConnection) -> None:
    row = after(durable, sql, Await("paid", "withdrawn", then="two", state=8))
    assert facts(row, "status step state step_seq") == ("awaiting_signal", "two", 8, 1)
    assert facts(row, "attempt crash_count awaits") == (0, 0, ["paid", "withdrawn"])
    assert sql.inbox(row["id"]) == ["unread"]


@pytest.mark.clause("OUT-5", "OUT-10", "OUT-13")
def test_schedule_children(durable: Harness, sql: SqlConnection) -> None:
    children = [Spec(Say, "a", schedule_in=AN_HOUR), Spec(Say, "b", schedule_in=AN_HOUR)]
    row = after(durable, sql, ScheduleChildren(children, then="two", state=8))
    assert facts(row, "status step state step_seq") == ("awaiting_children", "two", 8, 1)
    assert facts(row, "attempt crash_count awaits children_pending") == (0, 0, None, 2)
    assert sql.inbox(row["id"]) == ["unread"]


@pytest.mark.clause("OUT-6", "OUT-8", "OUT-10", "OUT-13")
def test_done(durable: Harness, sql: SqlConnection) -> None:
    row = after(durable, sql, Done({"sum": 8}))
    assert facts(row, "status step state result") == ("done", "one", 7, {"sum": 8})
    assert facts(row, "attempt crash_count awaits step_seq last_error") == (2, 0, None, 1, None)
    assert row["finished_at"] == row["updated_at"]
    assert sql.inbox(row["id"]) == []


@pytest.mark.clause("OUT-7", "OUT-8", "OUT-10", "OUT-13")
def test_stop(durable: Harness, sql: SqlConnection) -> None:
    row = after(durable, sql, Stop("no more"))
    assert facts(row, "status step state result") == ("failed", "one", 7, None)
    # What it awaited stays: a retry by hand waits for that again.
    assert facts(row, "attempt crash_count awaits step_seq last_error") == (2, 0, ["past"], 1, "no more")
    assert row["finished_at"] == row["updated_at"]
    assert sql.inbox(row["id"]) == []


@pytest.mark.clause("OUT-1")
@pytest.mark.parametrize("value", [None, "next", ("next", "two"), Done], ids=repr)
def test_anything_else_is_a_failure_of_the_step(durable: Harness, value: Any) -> None:
    ref = durable.insert(probe(lambda ctx: value, handle=lambda error, ctx: Done(type(error).__name__)), 7)
    durable.drain()
    assert durable.assert_done(ref) == "OutcomeError"


@pytest.mark.clause("OUT-1")
def test_handle_too_must_return_an_outcome(durable: Harness) -> None:
    ref = durable.insert(probe(lambda ctx: Done(1 // 0), handle=lambda error, ctx: None), 7)  # type: ignore[arg-type, return-value]
    durable.drain()
    durable.assert_failed(ref, match="ZeroDivisionError.*OutcomeError")


class Basket(Machine[list[str], list[str]]):
    """Each step adds to the state and names none."""

    @step
    async def one(self, ctx: Context[list[str]]) -> Outcome[list[str]]:
        ctx.state.append(f"one {ctx.attempt}")
        return Retry() if ctx.attempt == 0 else Next(self.two)

    @step
    async def two(self, ctx: Context[list[str]]) -> Outcome[list[str]]:
        ctx.state.append("two")
        return Await("never", then=self.three, timeout=AN_HOUR)

    @step
    async def three(self, ctx: Context[list[str]]) -> Outcome[list[str]]:
        ctx.state.append("three")
        return ScheduleChildren([], then=self.four)

    @step
    async def four(self, ctx: Context[list[str]]) -> Outcome[list[str]]:
        return Done(ctx.state)


@pytest.mark.clause("OUT-9")
def test_without_a_state_that_of_the_context_is_committed(durable: Harness) -> None:
    ref = durable.insert(Basket, [])
    durable.drain()
    durable.fire_timeouts()
    durable.drain()
    assert durable.assert_done(ref) == ["one 0", "one 1", "two", "three"]


@pytest.mark.clause("OUT-11")
def test_the_delay_of_a_retry_is_that_of_the_step(durable: Harness, sql: SqlConnection) -> None:
    durable.insert(probe(lambda ctx: Retry(AN_HOUR * ctx.attempt)), 7)
    delays: list[Any] = []
    for _ in range(3):
        one_step(durable)
        delays.append(
            sql.value(
                "select g.eligible_at - e.finished_at from gen_durable.gen_durable g"
                " join gen_durable.executions e on e.instance_id = g.id and e.outcome = 'retry'"
                " order by e.execution desc limit 1"
            )
        )
        durable.advance(hours=24)
    assert delays == [AN_HOUR * 0, AN_HOUR, AN_HOUR * 2]
    assert Retry() == Retry(AN_HOUR * 0)


@pytest.mark.clause("OUT-12")
def test_retries_are_counted_and_not_capped(durable: Harness) -> None:
    ref = durable.insert(probe(lambda ctx: Retry() if ctx.attempt < 60 else Done(ctx.attempt)), 7)
    durable.drain()
    assert durable.assert_done(ref) == 60


@pytest.mark.clause("OUT-14")
def test_a_step_is_named_by_reference_or_by_name(durable: Harness) -> None:
    assert Next(Basket.two) == Next("two")
    ref = durable.insert(probe(lambda ctx: Next("tow"), handle=lambda error, ctx: Done(str(error))), 7)
    durable.drain()
    assert "'tow'" in durable.assert_done(ref)
    assert "two" in durable.assert_done(ref)


@pytest.mark.clause("OUT-15")
async def test_a_worker_goes_on_with_the_lease_it_holds(durable_dsn: str, sql: SqlConnection) -> None:
    leases: list[Any] = []

    def count(ctx: Context[int]) -> Outcome[int]:
        leases.append(sql.columns(ctx.id, "lease_token")[0])
        return Next("one", ctx.state + 1) if ctx.state < 55 else Done(ctx.state)

    machine = probe(count)
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        # A busy machine may make it 100 ms before it is 50 steps.
        ended = await worker.wait(await worker.insert(machine, 0), timeout=PATIENCE)
        assert (ended.result, len(leases)) == (55, 56)
        first = leases.index(next(one for one in leases if one != leases[0]))
        assert 1 < first <= 50
        assert len(set(leases)) == len(events.of(PickStop, lambda event: event.count == 1))


@pytest.mark.clause("OUT-15")
async def test_after_a_tenth_of_a_second_an_instance_queues_up_again(
    durable_dsn: str, sql: SqlConnection
) -> None:
    leases: list[Any] = []

    def slow(ctx: Context[int]) -> Outcome[int]:
        leases.append(sql.columns(ctx.id, "lease_token")[0])
        time.sleep(0.12)
        return Next("two")

    def fast(ctx: Context[int]) -> Outcome[int]:
        leases.append(sql.columns(ctx.id, "lease_token")[0])
        return Done(0)

    machine = probe(slow, fast)
    async with Worker(
        [machine], dsn=durable_dsn, settings=msgspec.structs.replace(CALM, chain_time=Settings().chain_time)
    ) as worker:
        await worker.wait(await worker.insert(machine, 0), timeout=PATIENCE)
    assert len(set(leases)) == 2
