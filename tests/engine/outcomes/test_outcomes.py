"""How each outcome changes the stored row."""

from __future__ import annotations

import asyncio
from typing import Any, Final

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
    Spec,
    Stop,
    Worker,
    step,
)
from gen_durable.telemetry import StepStop
from gen_durable.testing import Harness
from tests.support.machines import Say, one_step, probe
from tests.support.rows import SqlConnection, has_no_lease, inbox_of, is_about, row_of
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import Events, happens

# Two statements commit outcomes: one for plain rows, one for rows with a key or an awaited set. Both must do the same.
VARIANTS: Final = {"plain": (None, None), "key": ("one", None), "awaited": (None, ["past"])}
# Tried twice and crashed once before, with an old error: what each outcome clears or keeps.
_WORN: Final = (
    "update gen_durable.gen_durable set attempt = 2, crash_count = 1, last_error = 'old', eligible_at = now(),"
    "       concurrency_key = $2, awaits = $3 where id = $1"
)


async def run(dsn: str, db: Any, variant: str, outcome: Outcome[Any]) -> dict[str, Any]:
    """Run a step that returns this outcome, and return its row."""

    class Probe(Machine[dict[str, int], Any]):
        @step
        async def one(self, ctx: Context[dict[str, int]]) -> Outcome[Any]:
            ctx.state["n"] = 99
            return outcome

        @step
        async def two(self, ctx: Context[dict[str, int]]) -> Outcome[Any]:
            return Done(0)

    async with Worker([Probe], dsn=dsn, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(Probe, {"n": 7}, schedule_in=AN_HOUR)
        await worker.signal(ref, "unread")
        await db.execute(_WORN, ref.id, *VARIANTS[variant])
        await events.wait(StepStop, lambda event: event.id == ref.id)
        row = await row_of(db, ref.id)
    assert has_no_lease(row)
    return row


def columns(row: dict[str, Any], names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names.split())


variants = pytest.mark.parametrize("variant", VARIANTS)


@variants
@pytest.mark.clause("OUT-2", "OUT-10", "OUT-13", "CRASH-5")
async def test_next_moves_to_another_step(durable_dsn: str, db: Any, variant: str) -> None:
    row = await run(durable_dsn, db, variant, Next("two", {"n": 8}, delay=AN_HOUR))
    assert columns(row, "status step state step_seq") == ("runnable", "two", '{"n": 8}', 1)
    assert columns(row, "attempt crash_count awaits result finished_at") == (0, 0, None, None, None)
    assert (row["last_error"], is_about(row["eligible_at"], row, AN_HOUR)) == ("old", True)
    assert await inbox_of(db, row["id"]) == ["unread"]


@variants
@pytest.mark.clause("OUT-3", "OUT-13", "CRASH-5")
async def test_retry_repeats_the_step_and_counts_an_attempt(durable_dsn: str, db: Any, variant: str) -> None:
    row = await run(durable_dsn, db, variant, Retry(AN_HOUR, {"n": 8}))
    assert columns(row, "status step state step_seq") == ("runnable", "one", '{"n": 8}', 0)
    assert columns(row, "attempt crash_count last_error result") == (3, 0, "old", None)
    assert row["awaits"] == VARIANTS[variant][1]
    assert is_about(row["eligible_at"], row, AN_HOUR)
    assert await inbox_of(db, row["id"]) == ["unread"]


@variants
@pytest.mark.clause("OUT-4", "OUT-10", "OUT-13", "CRASH-5")
async def test_await_parks_at_the_next_step(durable_dsn: str, db: Any, variant: str) -> None:
    outcome = Await("paid", "withdrawn", then="two", timeout=AN_HOUR, state={"n": 8})
    row = await run(durable_dsn, db, variant, outcome)
    assert columns(row, "status step state step_seq") == ("awaiting_signal", "two", '{"n": 8}', 1)
    assert columns(row, "attempt crash_count awaits timed_out") == (0, 0, ["paid", "withdrawn"], False)
    assert is_about(row["await_deadline"], row, AN_HOUR)
    assert await inbox_of(db, row["id"]) == ["unread"]


@variants
@pytest.mark.clause("OUT-5", "OUT-10", "OUT-13")
async def test_schedule_children_parks_at_the_next_step(durable_dsn: str, db: Any, variant: str) -> None:
    children = [Spec(Say, "a", queue="other"), Spec(Say, "b", queue="other")]
    row = await run(durable_dsn, db, variant, ScheduleChildren(children, then="two", state={"n": 8}))
    assert columns(row, "status step state step_seq") == ("awaiting_children", "two", '{"n": 8}', 1)
    assert columns(row, "attempt crash_count awaits children_pending") == (0, 0, None, 2)
    assert await inbox_of(db, row["id"]) == ["unread"]


@variants
@pytest.mark.clause("OUT-6", "OUT-8", "OUT-10", "OUT-13")
async def test_done_stores_the_result_and_the_changed_state(durable_dsn: str, db: Any, variant: str) -> None:
    row = await run(durable_dsn, db, variant, Done({"sum": 8}))
    assert columns(row, "status step state result") == ("done", "one", '{"n": 99}', '{"sum": 8}')
    assert columns(row, "attempt crash_count awaits step_seq last_error") == (2, 0, None, 1, None)
    assert row["finished_at"] == row["updated_at"]
    assert await inbox_of(db, row["id"]) == []


@variants
@pytest.mark.clause("OUT-7", "OUT-8", "OUT-10", "OUT-13")
async def test_stop_stores_the_reason_and_the_changed_state(durable_dsn: str, db: Any, variant: str) -> None:
    row = await run(durable_dsn, db, variant, Stop("no more"))
    assert columns(row, "status step state result") == ("failed", "one", '{"n": 99}', None)
    assert columns(row, "attempt crash_count step_seq last_error") == (2, 0, 1, "no more")
    assert row["awaits"] == VARIANTS[variant][1], "a manual retry waits for the same signals again"
    assert row["finished_at"] == row["updated_at"]
    assert await inbox_of(db, row["id"]) == []


@variants
@pytest.mark.clause("OUT-2", "OUT-10")
async def test_next_without_delay_continues_on_the_same_lease(
    durable_dsn: str, db: Any, variant: str
) -> None:
    is_there, may_go = asyncio.Event(), asyncio.Event()

    class Walk(Machine[int, int]):
        @step
        async def one(self, ctx: Context[int]) -> Outcome[int]:
            return Next(self.two, ctx.state + 1)

        @step
        async def two(self, ctx: Context[int]) -> Outcome[int]:
            assert (ctx.attempt, ctx.step_seq, ctx.state) == (0, 2, 8)
            is_there.set()
            await may_go.wait()
            return Done(ctx.state)

    async with Worker([Walk], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Walk, 7, schedule_in=AN_HOUR)
        await db.execute(_WORN, ref.id, *VARIANTS[variant])
        await happens(is_there)
        row = await row_of(db, ref.id)
        may_go.set()
        assert (await worker.wait(ref)).result == 8
    assert columns(row, "status step state step_seq") == ("executing", "two", "8", 1)
    assert columns(row, "execution locked_by attempt crash_count") == (2, worker.name, 0, 0)
    assert columns(row, "last_error result awaits finished_at") == ("old", None, None, None)


@pytest.mark.clause("OUT-1")
@pytest.mark.parametrize("value", [None, "next", ("next", "two"), Done], ids=repr)
def test_non_outcome_return_value_fails_the_step(durable: Harness, value: Any) -> None:
    ref = durable.insert(probe(lambda ctx: value, handle=lambda error, ctx: Done(type(error).__name__)), 7)
    durable.drain()
    assert durable.assert_done(ref) == "OutcomeError"


class Basket(Machine[list[str], list[str]]):
    """Each step changes ctx.state and passes no state to its outcome."""

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
def test_outcome_without_state_commits_the_context_state(durable: Harness) -> None:
    ref = durable.insert(Basket, [])
    durable.drain()
    durable.fire_timeouts()
    durable.drain()
    assert durable.assert_done(ref) == ["one 0", "one 1", "two", "three"]


@pytest.mark.clause("OUT-11")
def test_retry_waits_for_the_delay_of_the_step(durable: Harness, sql: SqlConnection) -> None:
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
def test_returned_retries_are_not_limited(durable: Harness) -> None:
    ref = durable.insert(probe(lambda ctx: Retry() if ctx.attempt < 60 else Done(ctx.attempt)), 7)
    durable.drain()
    assert durable.assert_done(ref) == 60


@pytest.mark.clause("OUT-14")
def test_step_is_named_by_reference_or_string(durable: Harness) -> None:
    assert Next(Basket.two) == Next("two")
    ref = durable.insert(probe(lambda ctx: Next("tow"), handle=lambda error, ctx: Done(str(error))), 7)
    durable.drain()
    assert "'tow'" in durable.assert_done(ref)
    assert "two" in durable.assert_done(ref)
