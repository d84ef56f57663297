"""Cancelling instances that do not execute."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from gen_durable import (
    AlreadyFinished,
    Cancel,
    Cancelled,
    Context,
    Done,
    InstanceCancelledError,
    Machine,
    NoTargetError,
    Outcome,
    Ref,
    Status,
    UsageError,
    step,
)
from gen_durable._db import control
from gen_durable._db.failures import StatementError
from gen_durable._db.plan import Call
from gen_durable.testing import AsyncHarness
from tests.support.machines import ACTOR, REASON, Order, Plain
from tests.support.rows import audit, has_no_lease, job_states, row_of, signal_rows


@pytest.mark.clause("CAN-2", "CAN-9")
async def test_runnable_and_scheduled_instances_are_cancelled_at_once(client: Any, db: Any) -> None:
    now = await client.insert(Plain, 1)
    later = await client.insert(Plain, 2, schedule_in=timedelta(days=1))
    for ref in (now, later):
        assert await client.cancel(ref, reason=REASON, actor=ACTOR) == Cancelled(ref.id)
        row = await row_of(db, ref.id)
        assert (row["status"], row["cancel_reason"], row["cancelled_by"]) == ("cancelled", REASON, ACTOR)
        assert row["finished_at"] == row["updated_at"]
        assert has_no_lease(row)
        assert await audit(db, ref.id) == [("cancelled", ACTOR, REASON)]
    assert await job_states(db, [now.id, later.id]) == ["CANCELLED", "CANCELLED"]


@pytest.mark.clause("CAN-1")
async def test_cancel_takes_a_ref_an_id_or_a_key(client: Any) -> None:
    refs = [await client.insert(Plain, n, correlation_key=f"order:{n}") for n in range(4)]
    for target in (refs[0], refs[1].id, "order:2", Ref(Plain, "order:3")):
        assert isinstance(await client.cancel(target), Cancelled)
    assert {one.status for one in await client.list()} == {Status.CANCELLED}
    assert await client.cancel("order:2") == AlreadyFinished(refs[2].id, Status.CANCELLED), (
        "the latest that had it"
    )


@pytest.mark.clause("CAN-10")
async def test_cancel_of_an_unknown_target_raises(client: Any) -> None:
    for unknown in (4711, "order:42"):
        with pytest.raises(NoTargetError):
            await client.cancel(unknown)


async def test_invalid_reasons_and_actors_are_rejected(client: Any, db: Any) -> None:
    ref = await client.insert(Plain, 1)
    with pytest.raises(UsageError, match="actor is empty"):
        await client.cancel(ref, actor="")
    assert (await client.get(ref)).status is Status.RUNNABLE
    await client.cancel(ref, reason="a\0b" + "x" * 100_000)
    reason = (await client.get(ref)).cancel_reason
    assert "\0" not in reason
    assert len(reason) < 10_000


@pytest.mark.clause("CAN-9")
async def test_snapshot_has_cancel_reason_and_actor(client: Any) -> None:
    ref = await client.insert(Plain, 1)
    await client.cancel(ref, reason=REASON, actor=ACTOR)
    found = await client.get(ref)
    assert (found.cancel_reason, found.cancelled_by) == (REASON, ACTOR)
    assert found.cancel_requested_at is not None
    with pytest.raises(InstanceCancelledError, match=REASON):
        _ = found.result


@pytest.mark.clause("CAN-10", "CAN-11")
@pytest.mark.parametrize("after", ["done", "failed", "cancelled"])
async def test_ended_instance_is_unchanged(async_durable: AsyncHarness, db: Any, after: str) -> None:
    class Ends(Machine[str, str]):
        @step
        async def run(self, ctx: Context[str]) -> Outcome[str]:
            if ctx.state == "failed":
                raise ValueError("no")
            if ctx.state == "cancelled":
                raise Cancel("the step says so")
            return Done("well")

    ref = await async_durable.insert(Ends, after)
    await async_durable.drain()
    before, events = await row_of(db, ref.id), await audit(db, ref.id)
    assert await async_durable.cancel(ref, reason=REASON) == AlreadyFinished(ref.id, Status(after))
    assert await async_durable.cancel(ref, force=True) == AlreadyFinished(ref.id, Status(after))
    assert {**await row_of(db, ref.id), "now": None} == {**before, "now": None}
    assert await audit(db, ref.id) == events
    if after == "cancelled":
        async_durable.assert_cancelled(ref, match="the step says so")


@pytest.mark.clause("CAN-2", "CAN-10")
async def test_cancel_of_a_parked_instance_deletes_its_inbox(async_durable: AsyncHarness, db: Any) -> None:
    order = await async_durable.insert(Order, 1, correlation_key="order:1")
    await async_durable.drain()
    await async_durable.signal(order, "note", {"text": "please hurry"}, dedup_key="once")
    async_durable.assert_awaiting(order, Order.paid)
    assert await async_durable.cancel("order:1", reason=REASON) == Cancelled(order.id)
    found = async_durable.assert_cancelled(order, match=REASON)
    assert (found.step, found.awaits, found.await_deadline, found.step_seq) == ("ship", (), None, 1)
    assert await signal_rows(db, order.id) == 0
    with pytest.raises(NoTargetError):
        await async_durable.signal(order, Order.paid, 100)
    assert (await async_durable.drain()).done == 0
    executions = await async_durable.executions(order)
    assert [(one.status, one.outcome) for one in executions] == [("DONE", "await"), ("ABORTED", "cancelled")]


@pytest.mark.clause("CAN-2")
async def test_cancelled_instance_releases_its_key(client: Any) -> None:
    first = await client.insert(Plain, 1, correlation_key="order:1")
    await client.cancel("order:1")
    second = await client.insert(Plain, 1, correlation_key="order:1")
    assert second.id != first.id
    assert (await client.get("order:1")).id == second.id
    assert await client.cancel("order:1") == Cancelled(second.id)


@pytest.mark.clause("CAN-9")
async def test_first_cancel_reason_is_kept_and_each_call_is_audited(
    async_durable: AsyncHarness, db: Any
) -> None:
    """A cancel, and a later one with force."""
    ref = await async_durable.insert(Plain, 1)
    await db.execute(
        """update gen_durable.gen_durable set status = 'executing', lease_token = 1, execution = 1,
                  lease_expires_at = now() + interval '1 h' where id = $1""",
        ref.id,
    )
    await async_durable.cancel(ref, reason="first", actor="ann")
    await async_durable.cancel(ref, reason="second", actor="ben")
    assert isinstance(await async_durable.cancel(ref, reason="third", actor="eve", force=True), Cancelled)
    async_durable.assert_cancelled(ref, match="^first$")
    assert await audit(db, ref.id) == [
        ("cancel_requested", "ann", "first"),
        ("cancel_requested", "ben", "second"),
        ("cancelled", "eve", "third"),
    ]


async def test_cancel_waits_for_a_locked_row(client: Any, db: Any) -> None:
    ref = await client.insert(Plain, 1)
    other = db.transaction()
    await other.start()
    await db.execute("update gen_durable.gen_durable set priority = 7 where id = $1", ref.id)
    async with asyncio.TaskGroup() as group:
        cancelling = group.create_task(client.cancel(ref))
        await asyncio.sleep(0.2)
        assert not cancelling.done()
        await other.commit()
    assert cancelling.result() == Cancelled(ref.id)
    assert (await client.get(ref)).priority == 7


async def test_cancel_that_deadlocks_is_retried(client: Any, db: Any) -> None:
    """It locks the next row of a key; a caller holds that row and waits for the cancelled one."""
    first, second = [await client.insert(Plain, n, concurrency_key="k") for n in range(2)]
    await db.execute("update gen_durable.gen_durable set gated = true where id = $1", second.id)
    lock = "select from gen_durable.gen_durable where id = $1 for no key update"
    await db.execute("set deadlock_timeout = '1min'")  # so the cancel is the deadlock victim
    other = db.transaction()
    await other.start()
    await db.execute(lock, second.id)
    async with asyncio.TaskGroup() as group:
        cancelling = group.create_task(client.cancel(first))
        await asyncio.sleep(0.3)
        await db.execute(lock, first.id)
        await other.commit()
    assert cancelling.result() == Cancelled(first.id)
    assert await audit(db, first.id) == [("cancelled", None, None)]
    assert not (await row_of(db, second.id))["gated"]


def test_cancel_backs_off_between_deadlock_retries() -> None:
    plan = control.cancel([1], None, None, force=False, autocommit=True)
    asked = [next(plan)]
    for _ in range(4):
        asked += [plan.throw(StatementError("40P01", "deadlock detected")), plan.send([])]
    names = [call.statement.name for call in asked if isinstance(call, Call)]
    assert names == ["cancel", "pause"] * 4 + ["cancel"]
    with pytest.raises(StatementError):
        plan.throw(StatementError("40P01", "deadlock detected"))
