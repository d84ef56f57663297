"""`advance` and `fire_timeouts`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gen_durable import Await, Context, Done, Machine, Outcome, step
from gen_durable.errors import UsageError
from gen_durable.testing import DrainCounts, Harness
from tests.testing.machines import Checkout, Flaky, Order, Parcel, Payment


class Sleep(Machine[timedelta, bool]):
    @step
    async def lie_down(self, ctx: Context[timedelta]) -> Outcome:
        return Await(then=self.get_up, timeout=ctx.state)

    @step
    async def get_up(self, ctx: Context[timedelta]) -> Outcome[bool]:
        return Done(ctx.timed_out)


def test_advance_fires_timeouts(durable: Harness) -> None:
    order = durable.insert(Checkout, Order(42))
    assert durable.drain() == DrainCounts(awaiting=1)
    durable.assert_awaiting(order, Checkout.payment)
    durable.advance(hours=24)
    assert durable.drain() == DrainCounts(next=2, awaiting=1)
    durable.advance(timedelta(days=1))
    assert durable.drain() == DrainCounts(stopped=1)
    durable.assert_failed(order, match="payment never came")
    assert [t.step for t in durable.outcomes(order)] == ["start", "ship", "remind", "start", "ship"]


def test_drain_does_not_skip_timeouts(durable: Harness) -> None:
    order = durable.insert(Checkout, Order(42))
    flaky = durable.insert(Flaky, 2)
    durable.drain()
    durable.assert_done(flaky)
    durable.assert_awaiting(order)


def test_timeout_does_not_fire_early(durable: Harness) -> None:
    order = durable.insert(Checkout, Order(42))
    durable.drain()
    durable.advance(hours=23, minutes=59)
    assert durable.drain() == DrainCounts()
    durable.assert_awaiting(order)
    durable.advance(seconds=61)
    assert durable.drain() == DrainCounts(next=2, awaiting=1)


def test_zero_timeout_fires_without_advance(durable: Harness) -> None:
    sleep = durable.insert(Sleep, timedelta(0))
    assert durable.drain() == DrainCounts(awaiting=1, done=1)
    assert durable.assert_done(sleep) is True


def test_fire_timeouts_fires_all_timeouts(durable: Harness) -> None:
    slept = [durable.insert(Sleep, timedelta(days=days)) for days in (1, 100)]
    order = durable.insert(Checkout, Order(42))
    durable.drain()
    assert durable.fire_timeouts() == 3
    assert durable.fire_timeouts() == 0
    assert durable.drain() == DrainCounts(done=2, next=2, awaiting=1)
    for sleep in slept:
        assert durable.assert_done(sleep) is True
    durable.assert_at(order, Checkout.ship)


def test_signal_after_the_timeout_wakes_the_next_await(durable: Harness) -> None:
    order = durable.insert(Checkout, Order(42))
    durable.drain()
    durable.fire_timeouts()
    durable.signal(order, Checkout.payment, Payment(5))
    durable.drain()
    assert durable.assert_done(order).amount == 5


def test_advance_makes_scheduled_instances_due(durable: Harness) -> None:
    durable.insert(Parcel, 1, schedule_in=timedelta(hours=2))
    durable.advance(hours=1)
    assert durable.drain(collapse=False) == DrainCounts()
    durable.advance(hours=1)
    assert durable.drain(collapse=False) == DrainCounts(done=1)


def test_advance_ages_all_stored_times(durable: Harness, conn: Any) -> None:
    order = durable.insert(Checkout, Order(42))
    durable.signal(order, "noise")
    durable.insert(Parcel, 1)
    durable.drain()
    ages = "select now() - inserted_at, now() - updated_at, now() - finished_at from gen_durable.gen_durable"
    durable.advance(days=1, hours=1, minutes=1, seconds=1)
    for row in conn.execute(
        ages + " union all select now() - inserted_at, null, null from gen_durable.signals"
    ):
        assert {age // timedelta(minutes=1) for age in row if age is not None} == {25 * 60 + 1}


def test_fork_after_advance_waits_as_long_as_its_origin(durable: Harness) -> None:
    class Waiting(Machine[None, str], history="all"):
        @step
        async def first(self, ctx: Context[None]) -> Outcome[str]:
            return Await("go", then=self.second, timeout=timedelta(hours=1))

        @step
        async def second(self, ctx: Context[None]) -> Outcome[str]:
            return Done("late")

    ref = durable.insert(Waiting)
    durable.drain()
    durable.advance(minutes=30)
    durable.signal(ref, "go")
    durable.drain()
    forked = durable.get(durable.fork(ref, at=1).id)
    assert forked is not None
    assert forked.await_deadline is not None
    waits = forked.await_deadline - forked.inserted_at
    assert timedelta(minutes=59) < waits < timedelta(minutes=61)


def test_advance_expires_leases(durable: Harness, conn: Any) -> None:
    """A row leased by a killed worker."""
    parcel = durable.insert(Parcel, 1)
    conn.execute(
        "update gen_durable.gen_durable set status = 'executing', lease_token = 1, locked_by = 'a dead worker',"
        " lease_expires_at = now() + interval '60 s'"
    )
    assert durable.drain() == DrainCounts()
    durable.advance(minutes=1)
    assert durable.drain() == DrainCounts(done=1)
    instance = durable.get(parcel)
    assert instance is not None
    assert instance.crash_count == 0


def test_advance_rejects_negative_time(durable: Harness) -> None:
    with pytest.raises(UsageError, match="negative"):
        durable.advance(hours=-1)
