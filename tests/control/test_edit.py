"""Edits: another state or step for an instance that is not executing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    Await,
    Cancelled,
    Context,
    Done,
    Edited,
    EncodeError,
    Machine,
    NoTargetError,
    NotEdited,
    Outcome,
    Retried,
    ScheduleChildren,
    Signal,
    Spec,
    Status,
    Stop,
    UsageError,
    step,
    upgrade,
)
from gen_durable.errors import UnknownStepError
from gen_durable.testing import AsyncHarness, DrainCounts, Harness
from tests.support.machines import Plain
from tests.support.rows import audit, job_states, row_of


class Cart(msgspec.Struct):
    items: int
    note: str = ""


class Shop(Machine[Cart, str]):
    """Waits for a payment, then ends with what it has seen."""

    paid: Signal[int] = Signal("paid", int)

    @step
    async def open(self, ctx: Context[Cart]) -> Outcome[str]:
        return Await(self.paid, then=self.ship, timeout=timedelta(hours=1))

    @step
    async def ship(self, ctx: Context[Cart]) -> Outcome[str]:
        if ctx.state.items < 0:
            return Stop("nothing to ship")
        return Done(f"{ctx.state.items} items {ctx.awaited.get('paid')} {ctx.idempotency_key}")

    @step
    async def give_away(self, ctx: Context[Cart]) -> Outcome[str]:
        signals = [message.name for message in ctx.inbox]
        return Done(f"gave away {ctx.state.items} {ctx.awaited.get('paid')} {signals}")


class Family(Machine[int, list[Any]]):
    """Spawns children that wait, and joins them."""

    @step
    async def start(self, ctx: Context[int]) -> Outcome[list[Any]]:
        return ScheduleChildren([Spec(Shop, Cart(n)) for n in range(ctx.state)], then=self.join)

    @step
    async def join(self, ctx: Context[int]) -> Outcome[list[Any]]:
        return Done([ctx.state, *(child.result for child in ctx.children)])

    @step
    async def other(self, ctx: Context[int]) -> Outcome[list[Any]]:
        return Done(["other", ctx.state, len(ctx.children)])


@pytest.mark.clause("EDT-1", "EDT-3", "EDT-6")
async def test_edit_of_a_parked_instance_keeps_its_wait(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Shop, Cart(1))
    await async_durable.drain()
    before = await row_of(db, ref.id)
    result = await async_durable.edit(ref, state=Cart(5), reason="wrong count", actor="eve")
    assert result == Edited(ref.id, 2, Status.AWAITING_SIGNAL)
    after = await row_of(db, ref.id)
    same = ("status", "step", "awaits", "await_deadline", "queue", "priority", "eligible_at")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert await audit(db, ref.id) == [("edited", "eve", "wrong count")]
    (_, record) = await async_durable.executions(ref)
    assert (record.outcome, record.status, record.step, record.step_seq, record.lease_owner) == (
        "edit",
        "DONE",
        "ship",
        2,
        None,
    )
    kept = await db.fetchrow(
        "select state::text, state_before::text from gen_durable.executions where outcome = 'edit'"
    )
    assert tuple(map(msgspec.json.decode, kept)) == ({"items": 5, "note": ""}, {"items": 1, "note": ""})
    await async_durable.signal(ref, Shop.paid, 7)
    await async_durable.drain()
    assert async_durable.assert_done(ref) == f"5 items 7 {ref.id}:3"
    assert await job_states(db, [ref.id]) == ["SUCCEEDED"]


@pytest.mark.clause("EDT-1", "EDT-5")
async def test_new_step_of_a_parked_instance_waits_for_its_signal(
    async_durable: AsyncHarness, db: Any
) -> None:
    ref = await async_durable.insert(Shop, Cart(1))
    await async_durable.drain()
    assert await async_durable.edit(ref, step=Shop.give_away) == Edited(ref.id, 2, Status.AWAITING_SIGNAL)
    row = await row_of(db, ref.id)
    assert (row["step"], row["rest_step"]) == ("give_away", "give_away")
    assert await async_durable.drain() == DrainCounts()
    await async_durable.signal(ref, Shop.paid, 7)
    await async_durable.drain()
    assert async_durable.assert_done(ref) == "gave away 1 7 ['paid']"


@pytest.mark.clause("EDT-5")
async def test_wake_ends_the_wait_and_keeps_the_inbox(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Shop, Cart(1))
    await async_durable.drain()
    await async_durable.signal(ref, "other", None)
    assert await async_durable.edit(ref, step="give_away", wake=True) == Edited(ref.id, 2, Status.RUNNABLE)
    row = await row_of(db, ref.id)
    assert (row["awaits"], row["timed_out"]) == (None, False)
    await async_durable.drain()
    assert async_durable.assert_done(ref) == "gave away 1 None ['other']"


async def test_wake_makes_a_delayed_instance_due(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Plain, 1, schedule_in=timedelta(days=1))
    assert await async_durable.edit(ref, state=2) == Edited(ref.id, 1, Status.RUNNABLE)
    row = await row_of(db, ref.id)
    assert row["eligible_at"] > row["now"]
    assert await async_durable.edit(ref, wake=True) == Edited(ref.id, 2, Status.RUNNABLE)
    row = await row_of(db, ref.id)
    assert row["eligible_at"] <= row["now"]


@pytest.mark.clause("EDT-1")
async def test_failed_instance_is_edited_and_then_retried(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Shop, Cart(-1))
    await async_durable.drain()
    await async_durable.signal(ref, Shop.paid, 7)
    await async_durable.drain()
    async_durable.assert_failed(ref, match="nothing to ship")
    assert await async_durable.edit(ref, state=Cart(1), step=Shop.give_away) == Edited(
        ref.id, 3, Status.FAILED
    )
    assert await async_durable.edit(ref, state={"items": 2}) == Edited(ref.id, 4, Status.FAILED)
    assert await job_states(db, [ref.id]) == ["FAILED"]
    assert await async_durable.retry(ref) == Retried(ref.id)
    assert await job_states(db, [ref.id]) == ["RUNNING"]
    await async_durable.signal(ref, Shop.paid, 8)
    await async_durable.drain()
    assert async_durable.assert_done(ref) == "gave away 2 8 ['paid']"
    assert await job_states(db, [ref.id]) == ["SUCCEEDED"]


@pytest.mark.clause("EDT-3")
async def test_edit_is_refused_if_the_instance_has_moved_on(async_durable: AsyncHarness) -> None:
    ref = await async_durable.insert(Shop, Cart(1))
    read = await async_durable.get(ref)
    assert read is not None
    await async_durable.drain()
    stale = await async_durable.edit(read, state={"items": 2}, expected_step_seq=read.step_seq)
    assert stale == NotEdited(ref.id, "moved", Status.AWAITING_SIGNAL, 1)
    assert await async_durable.edit(ref, state=Cart(2), expected_step_seq=1) == Edited(
        ref.id, 2, Status.AWAITING_SIGNAL
    )
    again = await async_durable.edit(ref, state=Cart(3), expected_step_seq=1)
    assert again == NotEdited(ref.id, "moved", Status.AWAITING_SIGNAL, 2)
    found = await async_durable.get(ref)
    assert found is not None
    assert found.state == Cart(2)


@pytest.mark.clause("EDT-4")
async def test_ended_deleted_and_executing_instances_are_not_edited(
    async_durable: AsyncHarness, db: Any
) -> None:
    done = await async_durable.insert(Plain, 1)
    await async_durable.drain()
    cancelled = await async_durable.insert(Shop, Cart(1))
    assert await async_durable.cancel(cancelled) == Cancelled(cancelled.id)
    deleted = await async_durable.insert(Shop, Cart(1))
    await async_durable.soft_delete(deleted)
    executing = await async_durable.insert(Shop, Cart(1))
    await db.execute(
        "update gen_durable.gen_durable set status = 'executing', lease_token = 1 where id = $1", executing.id
    )
    collected = await async_durable.insert(Shop, Cart(1))
    await db.execute(
        """update gen_durable.gen_durable set status = 'failed', finished_at = now(), collected_at = now()
            where id = $1""",
        collected.id,
    )
    before = await db.fetch("select * from gen_durable.gen_durable order by id")
    answers = [
        await async_durable.edit(ref.id, state={"items": 2}, validate=False)
        for ref in (done, cancelled, deleted, executing, collected)
    ]
    assert [answer.why for answer in answers if isinstance(answer, NotEdited)] == [
        "ended",
        "ended",
        "deleted",
        "executing",
        "collected",
    ]
    assert await db.fetch("select * from gen_durable.gen_durable order by id") == before
    with pytest.raises(NoTargetError, match="edit"):
        await async_durable.edit(999, state=1)


@pytest.mark.clause("EDT-2")
async def test_edit_checks_state_and_step_against_the_machine(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Shop, Cart(1), correlation_key="cart")
    with pytest.raises(EncodeError, match="the new state cannot be stored as Cart"):
        await async_durable.edit(ref, state={"items": "many"})
    with pytest.raises(EncodeError, match="the new state cannot be stored as Cart"):
        await async_durable.edit("cart", state={"item": 1}, machine=Shop)
    with pytest.raises(UnknownStepError, match="has no step 'shop'; did you mean 'ship'"):
        await async_durable.edit(ref, step="shop")
    with pytest.raises(UsageError, match="is a Shop, not a Family"):
        await async_durable.edit("cart", step="join", machine=Family)
    with pytest.raises(UsageError, match="edit got nothing to change"):
        await async_durable.edit(ref)
    row = await row_of(db, ref.id)
    assert (row["step_seq"], row["updated_at"]) == (0, row["inserted_at"])


@pytest.mark.clause("EDT-2")
async def test_edit_by_key_checks_the_registered_steps_and_schema(async_durable: AsyncHarness) -> None:
    ref = await async_durable.insert(Shop, Cart(1), correlation_key="cart")
    with pytest.raises(EncodeError, match=r"as Shop version 1: at \$.items: expected integer, got string"):
        await async_durable.edit("cart", state={"items": "many"})
    with pytest.raises(UnknownStepError, match="has no step 'shop'; did you mean 'ship'"):
        await async_durable.edit("cart", step="shop")
    assert await async_durable.edit("cart", state={"items": 3}, step="ship") == Edited(
        ref.id, 1, Status.RUNNABLE
    )
    assert await async_durable.edit("cart", step="shop", validate=False) == Edited(ref.id, 2, Status.RUNNABLE)


@pytest.mark.clause("EDT-1", "EDT-5")
@pytest.mark.parametrize("wake", [False, True])
async def test_edited_parent_joins_its_children_unless_it_is_woken(
    async_durable: AsyncHarness, wake: bool
) -> None:
    ref = await async_durable.insert(Family, 2)
    await async_durable.drain()
    status = Status.RUNNABLE if wake else Status.AWAITING_CHILDREN
    step = Family.other if wake else Family.join
    assert await async_durable.edit(ref, state=9, step=step, wake=wake) == Edited(ref.id, 2, status)
    await async_durable.drain()
    for child in await async_durable.children(ref):
        await async_durable.signal(child, Shop.paid, 7)
    await async_durable.drain()
    result = async_durable.assert_done(ref)
    assert result == (["other", 9, 0] if wake else [9, *(each for each in result[1:])])
    assert len(result) == 3


async def test_edit_in_a_transaction_of_the_caller_rolls_back(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Shop, Cart(1))
    transaction = db.transaction()
    await transaction.start()
    assert isinstance(await async_durable.edit(ref, state=Cart(2), conn=db), Edited)
    await transaction.rollback()
    row = await row_of(db, ref.id)
    assert (row["step_seq"], row["execution"]) == (0, 0)


def test_blocking_client_edits(durable: Harness) -> None:
    ref = durable.insert(Shop, Cart(1))
    assert durable.edit(ref, state=Cart(2), step=Shop.give_away) == Edited(ref.id, 1, Status.RUNNABLE)
    durable.drain()
    assert durable.assert_done(ref) == "gave away 2 None []"


class CartV2(msgspec.Struct):
    count: int


class ShopV2(Machine[CartV2, str], name="Shop", version=2):
    """Renames the field of the state, and a step."""

    paid: Signal[int] = Signal("paid", int)

    @upgrade(from_version=1)
    @staticmethod
    def count_items(state: dict[str, Any]) -> dict[str, Any]:
        return {"count": state["items"]}

    @step
    async def open(self, ctx: Context[CartV2]) -> Outcome[str]:
        return Await(self.paid, then=self.send)

    @step(was="ship")
    async def send(self, ctx: Context[CartV2]) -> Outcome[str]:
        return Done(f"sent {ctx.state.count}")


@pytest.mark.clause("EDT-2")
@pytest.mark.parametrize("is_registered", [False, True])
async def test_state_for_an_older_version_is_checked_by_upgrading_it(
    async_durable: AsyncHarness, is_registered: bool
) -> None:
    """Also if no worker has registered the older version."""
    if is_registered:
        async_durable.use(Shop)
    async_durable.use(ShopV2)
    ref = async_durable.load(ShopV2, version=1, step="ship", state={"items": 1}, awaits=["paid"])
    for state, problem in (
        (CartV2(5), "the upgrade raised KeyError: 'items'"),
        ({"count": 5}, "the upgrade raised KeyError: 'items'"),
        ({"items": "many"}, "Expected `int`, got `str`"),
    ):
        with pytest.raises(EncodeError) as caught:
            await async_durable.edit(ref, state=state, machine=ShopV2)
        assert str(caught.value).startswith(
            f"the new state cannot be stored as Shop version 1: instance {ref.target} has version 1, so give the state as "
            "version 1 stores it; upgraded to version 2, the new state does not match: "
        )
        assert problem in str(caught.value)
    with pytest.raises(UnknownStepError, match="has no step 'sned'; did you mean 'send'"):
        await async_durable.edit(ref, step="sned", machine=ShopV2)
    edited = await async_durable.edit(ref, state={"items": 5}, step="ship", machine=ShopV2, wake=True)
    assert edited == Edited(int(ref.target), 2, Status.RUNNABLE)
    await async_durable.drain()
    assert async_durable.assert_done(ref) is not None


@pytest.mark.clause("RTY-2")
async def test_retry_of_an_older_version_checks_state_and_step(async_durable: AsyncHarness) -> None:
    async_durable.use(ShopV2)
    ref = async_durable.load(ShopV2, version=1, step="ship", state={"items": 1}, awaits=["paid"])
    await async_durable.cancel(ref)
    with pytest.raises(EncodeError, match="has version 1, so give the state as version 1 stores it"):
        await async_durable.retry(ref, state=CartV2(5))
    with pytest.raises(UnknownStepError, match="has no step 'sned'"):
        await async_durable.retry(ref, step="sned")
    assert await async_durable.retry(ref, state={"items": 7}, step="ship") == Retried(int(ref.target))
    await async_durable.drain()
