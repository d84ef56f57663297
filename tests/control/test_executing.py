"""Cancelling executing instances: the step sees the request or is interrupted; its outcome is discarded."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from gen_durable import (
    AlreadyFinished,
    Cancelled,
    CancelRequested,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Spec,
    Sql,
    Status,
    Worker,
    step,
)
from gen_durable.errors import OptionError
from gen_durable.telemetry import OutcomeStale
from tests.support.machines import ACTOR, REASON, Plain, Sitter
from tests.support.rows import audit, job_states, row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events, happens


@pytest.mark.clause("CAN-3", "CAN-10")
async def test_step_sees_a_cancel_within_about_a_second(
    durable_dsn: str, db: Any, subtests: pytest.Subtests
) -> None:
    machine = Sitter()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        for name in ("looks", "raises_if", "thread_looks", "thread_raises_if"):
            with subtests.test(name):
                machine.is_there.clear()
                machine.saw.clear()
                ref = await worker.insert(machine, "", step=name)
                await happens(machine.is_there)
                asked = time.monotonic()
                assert await worker.cancel(ref, reason=REASON, actor=ACTOR) == CancelRequested(ref.id)
                row = await row_of(db, ref.id)
                assert (row["status"], row["cancel_reason"], row["cancelled_by"]) == (
                    "executing",
                    REASON,
                    ACTOR,
                )
                assert await job_states(db, [ref.id]) == ["RUNNING"]
                ended = await worker.wait(ref, timeout=PATIENCE)
                took = time.monotonic() - asked
                assert took < 2.5, "a second, on a machine that has other things to do as well"
                assert await worker.cancel(ref) == AlreadyFinished(ref.id, Status.CANCELLED)
                (record,) = await worker.executions(ref)
                assert (ended.status, ended.stored_result, ended.step_seq) == (Status.CANCELLED, None, 0)
                given = (ended.cancel_reason, ended.cancelled_by)
                assert given == (REASON, ACTOR), "not what the step gave as a reason"
                assert (record.status, record.outcome) == ("ABORTED", "cancelled")
                assert machine.saw == (["True"] if "looks" in name else [])
                assert machine.handled == [], "there is nothing to decide"
                expected = [("cancel_requested", ACTOR, REASON), ("cancelled", ACTOR, REASON)]
                assert await audit(db, ref.id) == expected
                assert await job_states(db, [ref.id]) == ["CANCELLED"]


@pytest.mark.clause("CAN-4")
async def test_interruptible_step_is_cancelled_at_its_await(durable_dsn: str) -> None:
    machine = Sitter()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine, "", step="sleeps")
        await happens(machine.is_there)
        assert await worker.cancel(ref) == CancelRequested(ref.id)
        ended = await worker.wait(ref, timeout=PATIENCE)
        # The worker has capacity again, and the task is no longer marked as cancelled.
        other = await worker.wait(await worker.insert(machine, "", step="deaf"), timeout=PATIENCE / 100)
        assert other.status is Status.EXECUTING
        machine.may_go.set()
    assert (ended.status, machine.saw, machine.handled) == (Status.CANCELLED, ["cut off"], [])


async def test_step_that_swallows_the_interruption_is_still_cancelled(durable_dsn: str) -> None:
    machine = Sitter()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine, "", step="swallows")
        await happens(machine.is_there)
        await worker.cancel(ref)
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert (ended.status, ended.step, ended.step_seq) == (Status.CANCELLED, "swallows", 0)
    assert machine.saw == ["swallowed"], "the next step did not run"


async def test_step_without_interrupt_runs_to_its_end(durable_dsn: str, db: Any) -> None:
    machine = Sitter()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        refs = [await worker.insert(machine, "", step=name) for name in ("deaf", "thread_deaf")]
        await happens(machine.is_there)
        while (
            await db.fetchval("select count(*) from gen_durable.gen_durable where status = 'executing'") < 2
        ):
            await asyncio.sleep(0.01)
        for ref in refs:
            assert await worker.cancel(ref) == CancelRequested(ref.id)
        await asyncio.sleep(1.2)
        assert [(await row_of(db, ref.id))["status"] for ref in refs] == ["executing"] * 2
        machine.may_go.set()
        ended = await worker.wait_all(refs, timeout=PATIENCE)
    assert [(one.status, one.stored_result, one.step_seq) for one in ended] == [
        (Status.CANCELLED, None, 0)
    ] * 2


def test_plain_step_is_not_interrupted() -> None:
    with pytest.raises(
        OptionError, match=r"is a plain def with interrupt=True; a thread cannot be interrupted"
    ):

        class Wrong(Machine[None, None]):
            @step(interrupt=True)
            def run(self, ctx: Context[None]) -> Outcome[None]:
                return Done()


@pytest.mark.clause("CAN-5")
async def test_handle_is_not_called_for_a_cancelled_step(durable_dsn: str) -> None:
    machine = Sitter()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine, "", step="fails_when_cancelled")
        await happens(machine.is_there)
        await worker.cancel(ref, reason=REASON)
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert (ended.status, ended.cancel_reason, machine.handled) == (Status.CANCELLED, REASON, [])


@pytest.mark.clause("CAN-5")
async def test_outcome_of_a_cancelled_step_has_no_effects(durable_dsn: str, db: Any) -> None:
    """No effect, child, consumed signal or further step, whatever the step returns."""
    await db.execute("create table ledger (line text)")
    effect = Sql("insert into ledger values ('happened')")

    class Returns(Machine[str, str]):
        def __init__(self) -> None:
            self.begun: dict[int, asyncio.Event] = {}
            self.may_go = asyncio.Event()

        @step
        async def run(self, ctx: Context[str]) -> Outcome[str]:
            self.begun.setdefault(ctx.id, asyncio.Event()).set()
            await self.may_go.wait()
            match ctx.state:
                case "effect":
                    return Done("", effect=effect)
                case "children":
                    return ScheduleChildren([Spec(Plain, 1)], then=self.never)
                case "next":
                    return Next(self.never)
                case _:
                    raise ValueError("raised before the worker knew of the cancel")

        @step
        async def never(self, ctx: Context[str]) -> Outcome[str]:
            raise AssertionError("a step after the cancel")

        def handle(self, error: Exception, ctx: Context[str]) -> Outcome[str]:
            return Done("", effect=effect)

    machine = Returns()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        refs = [await worker.insert(machine, state) for state in ("effect", "children", "next", "error")]
        while len(machine.begun) < len(refs):
            await asyncio.sleep(0.01)
        for ref in refs:
            await worker.signal(ref, "unread")
            assert isinstance(await worker.cancel(ref), CancelRequested)
        machine.may_go.set()
        ended = await worker.wait_all(refs, timeout=PATIENCE)
    assert {(one.status, one.step, one.step_seq, one.stored_result) for one in ended} == {
        (Status.CANCELLED, "run", 0, None)
    }
    assert await db.fetchval("select count(*) from ledger") == 0
    assert await db.fetchval("select count(*) from gen_durable.gen_durable") == len(refs)
    assert await db.fetchval("select count(*) from gen_durable.signals") == 0


async def test_cancel_ends_a_chain_after_the_running_step(durable_dsn: str) -> None:
    class Walk(Machine[int, int]):
        @step
        async def on(self, ctx: Context[int]) -> Outcome[int]:
            await asyncio.sleep(0.001)
            return Next(self.on, ctx.state + 1)

    async with Worker([Walk], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Walk, 0)
        while (found := await worker.get(ref)) is None or found.step_seq < 3:
            await asyncio.sleep(0.01)
        answer = await worker.cancel(ref)
        ended = await worker.wait(ref, timeout=PATIENCE)
        assert isinstance(answer, CancelRequested | Cancelled)
        assert ended.status is Status.CANCELLED
        assert ended.state == ended.step_seq, "state and step of the last step that counted"
        await asyncio.sleep(0.1)
        again = await worker.get(ref)
    assert again == ended


async def test_chained_step_that_waits_for_capacity_does_not_start(durable_dsn: str) -> None:
    """Its first step's slow effect freed the worker's capacity; the instance is cancelled before it continues."""
    ran: list[str] = []

    class Pair(Machine[None, str]):
        @step
        async def first(self, ctx: Context[None]) -> Outcome[str]:
            return Next(self.second, effect=Sql("select pg_sleep(0.5)"))

        @step
        async def second(self, ctx: Context[None]) -> Outcome[str]:
            ran.append("second")
            return Done("")

    machine = Sitter()
    async with Worker([Pair, machine], dsn=durable_dsn, queues={"default": 1}, settings=CALM) as worker:
        ref = await worker.insert(Pair)
        await asyncio.sleep(0.1)
        busy = await worker.insert(machine, "", step="deaf")
        await happens(machine.is_there)
        while (found := await worker.get(ref)) is None or not found.step_seq:
            await asyncio.sleep(0.01)
        assert (found.status, found.step) == (Status.EXECUTING, "second")
        assert await worker.cancel(ref) == CancelRequested(ref.id)
        ended = await worker.wait(ref, timeout=PATIENCE)
        assert (await worker.get(busy)).status is Status.EXECUTING  # type: ignore[union-attr]  # it is there
        machine.may_go.set()
        records = await worker.executions(ref)
    assert (ended.status, ended.step_seq, ran) == (Status.CANCELLED, 1, [])
    assert [(one.outcome, one.started_at is not None) for one in records] == [
        ("next", True),
        ("cancelled", False),
    ]


@pytest.mark.clause("CAN-6", "EXEC-6")
@pytest.mark.parametrize("name", ["deaf", "thread_looks"])
async def test_force_cancel_revokes_the_lease(durable_dsn: str, db: Any, name: str) -> None:
    machine = Sitter()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(machine, "", step=name, correlation_key="one")
        await happens(machine.is_there)
        assert await worker.cancel(ref, force=True, reason=REASON) == Cancelled(ref.id)
        row = await row_of(db, ref.id)
        assert (row["status"], row["lease_token"], row["execution"]) == ("cancelled", None, 1)
        (record,) = await worker.executions(ref)
        assert (record.status, record.outcome, record.lease_owner) == ("ABORTED", "cancelled", worker.name)
        assert record.leased_at is not None
        # The key is free at once, and the next row runs while the old step still runs.
        heir = await worker.insert(Plain, 7, correlation_key="one")
        assert heir.id != ref.id
        if name == "deaf":
            machine.may_go.set()
            stale = await events.wait(OutcomeStale)
            assert stale.id == ref.id
        else:
            while not machine.saw:
                await asyncio.sleep(0.01)
            assert machine.saw == ["True"], "a step in a thread sees the cancel, too"
        after = await row_of(db, ref.id)
        machine.may_go.set()
    assert {**after, "now": None} == {**row, "now": None}
    assert await audit(db, ref.id) == [("cancelled", None, REASON)]


async def test_shutdown_ends_steps_with_a_requested_cancel(durable_dsn: str) -> None:
    """A shutdown does not requeue an instance with a requested cancel."""
    machine = Sitter()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        refs = [await worker.insert(machine, "", step=name) for name in ("deaf", "sleeps")]
        await happens(machine.is_there)
        await asyncio.sleep(0.3)
        for ref in refs:
            await worker.cancel(ref)
    async with Worker([Plain], dsn=durable_dsn, settings=CALM) as other:
        found = [await other.get(ref) for ref in refs]
    machine.may_go.set()
    assert [one.status for one in found if one] == [Status.CANCELLED] * 2
