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
    LimitError,
    Machine,
    Next,
    NoTargetError,
    Outcome,
    RateLimit,
    ScheduleChildren,
    Signal,
    Spec,
    Status,
    Stop,
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


class Payment(Machine[State, Any], history="all"):
    """Waits for `paid`, and stops if its state says so."""

    paid: Signal[int] = Signal("paid", int)

    @step
    async def open(self, ctx: Context[State]) -> Outcome[Any]:
        return Await(self.paid, then=self.book, timeout=timedelta(hours=1))

    @step
    async def book(self, ctx: Context[State]) -> Outcome[Any]:
        return Stop("no") if ctx.state.get("stops") else Done([ctx.awaited.get(self.paid), ctx.timed_out])


def _booked(durable: Harness, forked: Forked) -> Any:
    """What a fork books that waits for a signal of its own."""
    assert forked.status is Status.AWAITING_SIGNAL
    durable.drain()
    durable.signal(forked.id, Payment.paid, 9)
    durable.drain()
    return durable.assert_done(forked.id)


@pytest.mark.clause("FRK-1", "EDT-6")
def test_fork_at_an_edit_repeats_the_await_that_the_edit_kept(durable: Harness) -> None:
    ref = durable.insert(Payment, {})
    durable.drain()
    durable.edit(ref, state={"n": 1})
    durable.edit(ref, state={"n": 2}, step=Payment.book)
    durable.signal(ref, Payment.paid, 5)
    durable.edit(ref, state={"n": 3})
    durable.drain()
    assert durable.assert_done(ref) == [5, False]
    for at in (1, 2, 3, 4):
        assert _booked(durable, durable.fork(ref, at=at)) == [9, False]


@pytest.mark.clause("FRK-1")
def test_fork_after_an_edit_that_ended_the_wait_does_not_wait(durable: Harness) -> None:
    ref = durable.insert(Payment, {})
    durable.drain()
    durable.edit(ref, wake=True)
    durable.drain()
    forked = durable.fork(ref, at=2)
    durable.drain()
    assert durable.assert_done(forked.id) == [None, False]


@pytest.mark.clause("FRK-1")
@pytest.mark.parametrize("when", ["woken", "failed", "retried", "done"])
def test_fork_of_a_woken_instance_waits_for_a_signal_of_its_own(durable: Harness, when: str) -> None:
    ref = durable.insert(Payment, {} if when == "done" else {"stops": True})
    durable.drain()
    durable.signal(ref, Payment.paid, 5)
    if when != "woken":
        durable.drain()
    at = None
    if when == "retried":
        durable.retry(ref, state={})
        durable.signal(ref, Payment.paid, 5)
        durable.drain()
        at = 2  # the stop
    assert _booked(durable, durable.fork(ref, at=at, state={})) == [9, False]


@pytest.mark.clause("FRK-1")
def test_fork_of_a_timed_out_instance_is_timed_out(durable: Harness) -> None:
    ref = durable.insert(Payment, {"stops": True})
    durable.drain()
    durable.advance(hours=2)
    durable.drain()
    durable.assert_failed(ref)
    forked = durable.fork(ref, state={})
    assert forked.status is Status.RUNNABLE
    durable.drain()
    assert durable.assert_done(forked.id) == [None, True]


class Part(Machine[State, str]):
    @step
    async def wait(self, ctx: Context[State]) -> Outcome[str]:
        return Await("go", then=self.end)

    @step
    async def end(self, ctx: Context[State]) -> Outcome[str]:
        return Done("part")


class Whole(Machine[State, int], history="all"):
    @step
    async def split(self, ctx: Context[State]) -> Outcome[int]:
        return ScheduleChildren([Spec(Part, {})], then=self.join)

    @step
    async def join(self, ctx: Context[State]) -> Outcome[int]:
        return Stop("no") if ctx.state.get("stops") else Done(len(ctx.children))


@pytest.mark.clause("FRK-2")
@pytest.mark.parametrize("stops", [False, True])
def test_fork_does_not_start_at_a_step_that_joins_children(durable: Harness, stops: bool) -> None:
    ref = durable.insert(Whole, {"stops": stops})
    durable.drain()
    (child,) = durable.children(ref)
    for _ in range(2):
        durable.edit(ref, state={"stops": stops})

    def check(*ats: int | None) -> None:
        for at in ats:
            with pytest.raises(UsageError, match="its next step joins children"):
                durable.fork(ref, at=at, state={})

    check(None, 1, 2, 3)
    durable.signal(child.id, "go")
    durable.drain()
    check(None, 1, 2, 3, 4)
    if stops:
        durable.retry(ref, state={})
        durable.drain()
        check(None, 1, 2, 3, 4, 5)
    forked = durable.fork(ref, step=Whole.join, state={})
    durable.drain()
    assert durable.assert_done(forked.id) == 0


@pytest.mark.clause("FRK-1")
def test_fork_after_an_edit_that_woke_a_parent_does_not_join(durable: Harness) -> None:
    ref = durable.insert(Whole, {})
    durable.drain()
    durable.edit(ref, wake=True)
    durable.drain()
    assert durable.assert_done(ref) == 0
    forked = durable.fork(ref, at=2)
    durable.drain()
    assert durable.assert_done(forked.id) == 0


@pytest.mark.clause("FRK-1")
def test_fork_without_history_repeats_the_await(durable: Harness) -> None:
    class Brief(Payment, history="off"):
        pass

    ref = durable.insert(Brief, {})
    durable.drain()
    durable.signal(ref, Payment.paid, 5)
    durable.drain()
    for at in (None, 1):
        assert _booked(durable, durable.fork(ref, at=at, state={})) == [9, False]
    given = durable.fork(ref, at=1, state={}, step=Brief.book)
    durable.drain()
    assert durable.assert_done(given.id) == [None, False]


class Tenant(
    Machine[State, None],
    concurrency_key=lambda state: ("tenant", state["tenant"]) if state["tenant"] else None,
    rate_limit=lambda state: ("crm", state["tenant"]),
):
    @step
    async def first(self, ctx: Context[State]) -> Outcome[None]:
        return Next(self.second)

    @step
    async def second(self, ctx: Context[State]) -> Outcome[None]:
        return Done()


@pytest.mark.clause("FRK-4")
async def test_fork_with_another_state_computes_its_keys_from_it(
    async_durable: AsyncHarness, db: Any
) -> None:
    await async_durable.set_limit(RateLimit("crm", 100, per=timedelta(hours=1)))
    ref = await async_durable.insert(Tenant, {"tenant": 1})
    forks = [
        await async_durable.fork(ref, state={"tenant": 2}),
        await async_durable.fork(ref.id, state={"tenant": 0}, machine=Tenant),
        await async_durable.fork(ref, step=Tenant.second),
        await async_durable.fork(ref.id, state={"tenant": 3}),
    ]
    rows = [await row_of(db, forked.id) for forked in forks]
    assert [(row["concurrency_key"], row["rate_limit"]) for row in rows] == [
        ("tenant:2", "crm:2"),
        (None, "crm:0"),
        ("tenant:1", "crm:1"),
        ("tenant:1", "crm:1"),  # the machine of an id is not known
    ]
    with pytest.raises(UsageError, match="concurrency_key= of machine 'Tenant' raised KeyError: 'tenant'"):
        await async_durable.fork(ref, state={})


@pytest.mark.clause("FRK-4")
async def test_fork_after_a_step_computes_its_concurrency_key_only(
    async_durable: AsyncHarness, db: Any
) -> None:
    await async_durable.set_limit(RateLimit("crm", 100, per=timedelta(hours=1)))
    ref = await async_durable.insert(Tenant, {"tenant": 1})
    await async_durable.drain()
    later = await row_of(db, (await async_durable.fork(ref, at=1, state={"tenant": 2})).id)
    assert (later["step"], later["concurrency_key"], later["rate_limit"]) == ("second", "tenant:2", None)
    again = await row_of(db, (await async_durable.fork(ref, at=0, state={"tenant": 2}, step="first")).id)
    assert (again["step"], again["concurrency_key"], again["rate_limit"]) == ("first", "tenant:2", "crm:2")


@pytest.mark.clause("FRK-4")
async def test_fork_whose_computed_rate_limit_does_not_exist_is_refused(async_durable: AsyncHarness) -> None:
    class Metered(Machine[str, None], rate_limit=lambda state: state or None):
        @step
        async def run(self, ctx: Context[str]) -> Outcome[None]:
            return Done()

    ref = await async_durable.insert(Metered, "")
    with pytest.raises(LimitError, match="there is no rate limit 'missing'"):
        await async_durable.fork(ref, state="missing")
