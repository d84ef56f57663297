"""Forks: a new instance that starts after a transition of another one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gen_durable import (
    Await,
    Context,
    Done,
    Forked,
    Machine,
    Next,
    NoTargetError,
    Outcome,
    Signal,
    Status,
    UsageError,
    step,
)
from gen_durable.testing import AsyncHarness, Harness
from tests.support.rows import audit, row_of

State = dict[str, Any]


class Order(Machine[State, State], history="all"):
    paid: Signal[int] = Signal("paid", int)

    @step
    async def open(self, ctx: Context[State]) -> Outcome[State]:
        return Await(
            self.paid, then=self.pack, state={**ctx.state, "opened": True}, timeout=timedelta(hours=1)
        )

    @step
    async def pack(self, ctx: Context[State]) -> Outcome[State]:
        return Next(self.ship, {**ctx.state, "paid": ctx.awaited.get(self.paid)})

    @step
    async def ship(self, ctx: Context[State]) -> Outcome[State]:
        return Done(ctx.state)


class Forgetful(Order, history="off"):
    pass


async def _done(durable: AsyncHarness, machine: type[Order] = Order) -> Any:
    ref = await durable.insert(machine, {"n": 1}, correlation_key="order", queue="q", priority=3)
    await durable.drain()
    await durable.signal(ref, Order.paid, 7)
    await durable.drain()
    durable.assert_done(ref)
    return ref


@pytest.mark.clause("FRK-1", "FRK-2")
async def test_fork_starts_after_a_transition(async_durable: AsyncHarness, db: Any) -> None:
    ref = await _done(async_durable)
    forked = await async_durable.fork("order", at=2, reason="again", actor="eve")
    assert forked == Forked(ref.id + 1, ref.id, 2, Status.RUNNABLE)
    found = await async_durable.get(forked.id)
    assert found is not None
    assert (found.step, found.state, found.forked_from, found.forked_seq) == (
        "ship",
        {"n": 1, "opened": True, "paid": 7},
        ref.id,
        2,
    )
    assert (found.machine, found.queue, found.priority, found.correlation_key, found.step_seq) == (
        "Order",
        "q",
        3,
        None,
        0,
    )
    assert await audit(db, forked.id) == [("created", "eve", "again")]
    await async_durable.drain()
    assert (await async_durable.wait(forked.id)).result == found.state


@pytest.mark.clause("FRK-1")
async def test_fork_repeats_an_await_and_the_insert(async_durable: AsyncHarness, db: Any) -> None:
    ref = await _done(async_durable)
    waiting = await async_durable.fork(ref, at=1, correlation_key="copy")
    assert waiting.status is Status.AWAITING_SIGNAL
    row = await row_of(db, waiting.id)
    assert (row["awaits"], row["step"], row["rest_step"]) == (["paid"], "pack", "pack")
    assert timedelta(minutes=59) < row["await_deadline"] - row["now"] <= timedelta(hours=1)
    await async_durable.signal("copy", Order.paid, 9)
    fresh = await async_durable.fork(ref, at=0, state={"n": 2})
    await async_durable.drain()
    assert (await async_durable.wait(waiting.id)).result["paid"] == 9
    again = await async_durable.get(fresh.id)
    assert again is not None
    assert (again.status, again.state) == (Status.AWAITING_SIGNAL, {"n": 2, "opened": True})


@pytest.mark.clause("FRK-2")
async def test_fork_without_history_starts_from_now(async_durable: AsyncHarness) -> None:
    ref = await _done(async_durable, Forgetful)
    now = await async_durable.fork(ref)
    assert now == Forked(ref.id + 1, ref.id, 3, Status.RUNNABLE)
    with pytest.raises(UsageError, match="the state after this transition was not kept"):
        await async_durable.fork(ref, at=1)
    given = await async_durable.fork(ref, at=2, state={"n": 5})
    found = await async_durable.get(given.id)
    assert found is not None
    assert (found.step, found.state) == ("ship", {"n": 5})


@pytest.mark.clause("FRK-2")
async def test_impossible_forks_insert_nothing(async_durable: AsyncHarness) -> None:
    ref = await _done(async_durable)
    with pytest.raises(UsageError, match="it has not made this transition"):
        await async_durable.fork(ref, at=9)
    await async_durable.fork(ref, correlation_key="taken")
    with pytest.raises(UsageError, match="another instance has the given key"):
        await async_durable.fork(ref, correlation_key="taken")
    with pytest.raises(NoTargetError, match="fork"):
        await async_durable.fork(999)
    assert await async_durable.count() == 2


def test_blocking_client_forks(durable: Harness) -> None:
    ref = durable.insert(Order, {"n": 1})
    assert durable.fork(ref, step=Order.ship) == Forked(ref.id + 1, ref.id, 0, Status.RUNNABLE)
