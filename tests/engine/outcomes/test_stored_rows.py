"""Every row of the outcome table: what one outcome makes of the stored row."""

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
    Ref,
    Retry,
    ScheduleChildren,
    Spec,
    Status,
    Stop,
    Worker,
    step,
)
from gen_durable.telemetry import StepStop
from tests.support.rows import has_no_lease, inbox_of, is_about, row_of
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import PATIENCE, Events, happens

# Plain rows and others are committed by two statements, which have to say the same.
BOTH_STATEMENTS: Final = {"plain": None, "keyed": "one"}
# Tried twice and crashed once before, with an old error: what each outcome has to clear or to keep.
_WORN = (
    "update gen_durable.gen_durable set attempt = 2, crash_count = 1, last_error = 'old', eligible_at = now(),"
    "       concurrency_key = $2 where id = $1"
)


async def _run_worn(
    db: Any, worker: Worker, machine: type[Machine[Any, int]], state: Any, key: str | None
) -> tuple[str, dict[str, Any]]:
    """What an instance with a hard life behind it answered, and its row after that."""
    events = Events(worker)
    ref = await worker.insert(machine, state, schedule_in=AN_HOUR)
    await worker.signal(ref, "unread")
    await db.execute(_WORN, ref.id, key)
    event = await events.wait(StepStop, lambda event: event.id == ref.id)
    return event.kind, await row_of(db, ref.id)


async def test_next_goes_on_with_another_step_and_starts_counting_anew(
    durable_dsn: str, db: Any, subtests: pytest.Subtests
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
        for name, key in BOTH_STATEMENTS.items():
            with subtests.test(name):
                is_there.clear()
                may_go.clear()
                kind, row = await _run_worn(db, worker, Walk, 7, key)
                assert kind == "next"
                await happens(is_there)
                assert (row["step"], row["state"], row["step_seq"]) == ("two", "8", 1)
                assert (row["attempt"], row["crash_count"], row["last_error"]) == (0, 0, "old")
                assert (row["result"], row["awaits"], row["finished_at"]) == (None, None, None)
                # The next step runs on the lease that its predecessor had.
                assert (row["status"], row["execution"], row["locked_by"]) == ("executing", 2, worker.name)
                may_go.set()
                assert (await worker.wait(row["id"])).result == 8


async def test_next_with_a_delay_is_due_after_it(
    durable_dsn: str, db: Any, subtests: pytest.Subtests
) -> None:
    class Walk(Machine[int, int]):
        @step
        async def one(self, ctx: Context[int]) -> Outcome[int]:
            return Next(self.two, delay=AN_HOUR)

        @step
        async def two(self, ctx: Context[int]) -> Outcome[int]:
            return Done(ctx.state)

    async with Worker([Walk], dsn=durable_dsn, settings=CALM) as worker:
        for name, key in BOTH_STATEMENTS.items():
            with subtests.test(name):
                kind, row = await _run_worn(db, worker, Walk, 7, key)
                assert kind == "next"
                assert (row["status"], row["step"], row["attempt"], row["step_seq"]) == (
                    "runnable",
                    "two",
                    0,
                    1,
                )
                assert is_about(row["eligible_at"], row, AN_HOUR)
                assert has_no_lease(row)


async def test_retry_stays_at_its_step_and_counts_an_attempt(
    durable_dsn: str, db: Any, subtests: pytest.Subtests
) -> None:
    class Again(Machine[int, int]):
        @step
        async def one(self, ctx: Context[int]) -> Outcome[int]:
            return Retry(AN_HOUR, ctx.state + 1)

    async with Worker([Again], dsn=durable_dsn, settings=CALM) as worker:
        for name, key in BOTH_STATEMENTS.items():
            with subtests.test(name):
                kind, row = await _run_worn(db, worker, Again, 7, key)
                assert kind == "retry"
                assert (row["status"], row["step"], row["state"]) == ("runnable", "one", "8")
                assert (row["attempt"], row["crash_count"], row["step_seq"]) == (3, 0, 0)
                assert (row["last_error"], row["result"], row["awaits"]) == ("old", None, None)
                assert is_about(row["eligible_at"], row, AN_HOUR)
                assert has_no_lease(row)


async def test_await_parks_at_the_next_step_with_its_set_of_names(
    durable_dsn: str, db: Any, subtests: pytest.Subtests
) -> None:
    class Patient(Machine[int, int]):
        @step
        async def one(self, ctx: Context[int]) -> Outcome[int]:
            return Await("paid", "withdrawn", then=self.two, timeout=AN_HOUR, state=ctx.state + 1)

        @step
        async def two(self, ctx: Context[int]) -> Outcome[int]:
            return Done(ctx.state)

    async with Worker([Patient], dsn=durable_dsn, settings=CALM) as worker:
        for name, key in BOTH_STATEMENTS.items():
            with subtests.test(name):
                kind, row = await _run_worn(db, worker, Patient, 7, key)
                assert kind == "await"
                assert (row["status"], row["step"], row["state"]) == ("awaiting_signal", "two", "8")
                assert (row["attempt"], row["crash_count"], row["step_seq"]) == (0, 0, 1)
                assert (row["awaits"], row["timed_out"], row["result"]) == (
                    ["paid", "withdrawn"],
                    False,
                    None,
                )
                assert is_about(row["await_deadline"], row, AN_HOUR)
                assert has_no_lease(row)


async def test_schedule_children_parks_at_the_next_step_until_they_have_ended(
    durable_dsn: str, db: Any, subtests: pytest.Subtests
) -> None:
    class Leaf(Machine[int, int], queue="elsewhere"):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[int]:
            return Done(ctx.state)

    class Tree(Machine[int, int]):
        @step
        async def one(self, ctx: Context[int]) -> Outcome[int]:
            return ScheduleChildren([Spec(Leaf, 1), Spec(Leaf, 2)], then=self.two, state=ctx.state + 1)

        @step
        async def two(self, ctx: Context[int]) -> Outcome[int]:
            return Done(sum(ctx.children.results(Leaf)))

    async with Worker([Tree], dsn=durable_dsn, settings=CALM) as worker:
        for name, key in BOTH_STATEMENTS.items():
            with subtests.test(name):
                kind, row = await _run_worn(db, worker, Tree, 7, key)
                assert kind == "schedule_children"
                assert (row["status"], row["step"], row["state"]) == ("awaiting_children", "two", "8")
                assert (row["attempt"], row["crash_count"], row["step_seq"]) == (0, 0, 1)
                assert (row["children_pending"], row["awaits"], row["result"]) == (2, None, None)
                assert has_no_lease(row)
                async with Worker([Leaf], dsn=durable_dsn, settings=CALM):
                    ended = await worker.wait(row["id"], timeout=PATIENCE)
                assert ended.result == 3
                assert ended.eligible_at > row["updated_at"], "it was due when the last child ended"


async def test_done_keeps_the_result_and_does_not_rewrite_the_state(
    durable_dsn: str, db: Any, subtests: pytest.Subtests
) -> None:
    class End(Machine[dict[str, int], int]):
        @step
        async def one(self, ctx: Context[dict[str, int]]) -> Outcome[int]:
            ctx.state["n"] = 99
            return Done(ctx.state["n"])

    async with Worker([End], dsn=durable_dsn, settings=CALM) as worker:
        for name, key in BOTH_STATEMENTS.items():
            with subtests.test(name):
                kind, row = await _run_worn(db, worker, End, {"n": 1}, key)
                ended = await worker.wait(Ref(End, row["id"]))
                assert kind == "done"
                assert (ended.status, ended.result, ended.state) == (Status.DONE, 99, {"n": 1})
                assert (row["step"], row["step_seq"], row["attempt"], row["crash_count"]) == ("one", 1, 2, 0)
                assert (row["awaits"], row["last_error"]) == (None, None)
                assert is_about(row["finished_at"], row)
                assert has_no_lease(row)
                assert await inbox_of(db, row["id"]) == []


async def test_stop_keeps_the_reason_and_does_not_rewrite_the_state(
    durable_dsn: str, db: Any, subtests: pytest.Subtests
) -> None:
    class End(Machine[dict[str, int], int]):
        @step
        async def one(self, ctx: Context[dict[str, int]]) -> Outcome[int]:
            ctx.state["n"] = 99
            return Stop("no more")

    async with Worker([End], dsn=durable_dsn, settings=CALM) as worker:
        for name, key in BOTH_STATEMENTS.items():
            with subtests.test(name):
                kind, row = await _run_worn(db, worker, End, {"n": 1}, key)
                ended = await worker.wait(Ref(End, row["id"]))
                assert kind == "stop"
                assert (ended.status, ended.last_error, ended.state) == (Status.FAILED, "no more", {"n": 1})
                assert (row["step"], row["step_seq"], row["attempt"], row["crash_count"]) == ("one", 1, 2, 0)
                assert (row["awaits"], row["result"]) == (None, None)
                assert is_about(row["finished_at"], row)
                assert has_no_lease(row)
                assert await inbox_of(db, row["id"]) == []
