"""`crash_at` simulates a crash; the next drain recovers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gen_durable import Await, Context, Done, Machine, Outcome, Settings, step
from gen_durable.errors import UsageError
from gen_durable.testing import Crash, DrainCounts, Harness, crash_everywhere
from tests.testing.machines import Checkout, Counted, Order, Parcel, Payment, Receipt, Shipment


def test_crash_before_the_commit_repeats_the_step(durable: Harness) -> None:
    order = durable.insert(Checkout, Order(42))
    with durable.crash_at(Checkout.start), pytest.raises(Crash, match="before_commit of start"):
        durable.drain()
    with pytest.raises(AssertionError, match="it has status executing at step 'start'"):
        durable.assert_awaiting(order)
    assert durable.drain() == DrainCounts(awaiting=1)
    durable.assert_at(order, Checkout.ship)


def test_crash_before_the_step_costs_an_attempt(durable: Harness) -> None:
    class Attempts(Machine[None, int]):
        @step
        async def look(self, ctx: Context[None]) -> Outcome[int]:
            return Done(ctx.attempt)

    ref = durable.insert(Attempts)
    with durable.crash_at("look", "before_step"), pytest.raises(Crash):
        durable.drain()
    durable.drain()
    assert durable.assert_done(ref) == 1


def test_repeated_step_keeps_its_idempotency_key(durable: Harness) -> None:
    calls: list[str] = []
    durable.use(Counted(calls))
    counted = durable.insert(Counted, "x")
    with durable.crash_at(Counted.count), pytest.raises(Crash):
        durable.drain()
    durable.drain()
    assert calls == [f"{counted.id}:1", f"{counted.id}:1"]
    assert [t.kind for t in durable.outcomes(counted)] == ["done"]


def test_recovery_skips_the_backoff_with_collapse_false(durable: Harness) -> None:
    parcel = durable.insert(Parcel, 1)
    with durable.crash_at(Parcel.pack), pytest.raises(Crash):
        durable.drain(collapse=False)
    assert durable.drain(collapse=False) == DrainCounts(done=1)
    durable.assert_done(parcel)


def test_only_the_given_step_crashes(durable: Harness) -> None:
    order, parcel = durable.insert(Checkout, Order(42)), durable.insert(Parcel, 1)
    with durable.crash_at(Checkout.remind):
        assert durable.drain() == DrainCounts(awaiting=1, done=1)
    durable.assert_awaiting(order)
    durable.assert_done(parcel)


def test_crash_frees_the_concurrency_key(durable: Harness) -> None:
    first = durable.insert(Parcel, 1, concurrency_key="printer")
    second = durable.insert(Parcel, 2, concurrency_key="printer")
    with durable.crash_at(Parcel.pack), pytest.raises(Crash):
        durable.drain()
    assert durable.drain() == DrainCounts(done=2)
    durable.assert_done(first)
    durable.assert_done(second)


class TestPoison:
    @pytest.fixture
    def durable_settings(self) -> Settings:
        return Settings(crash_limit=2)

    def test_repeated_crashes_fail_as_poison(self, durable: Harness) -> None:
        parcel = durable.insert(Parcel, 1)
        for _ in range(2):
            with durable.crash_at(Parcel.pack), pytest.raises(Crash):
                durable.drain()
        assert durable.drain() == DrainCounts()
        durable.assert_failed(parcel, match="^poison: the process died 2 times in step pack")


def test_crash_everywhere_passes_for_a_safe_machine() -> None:
    def scenario(durable: Harness) -> None:
        order = durable.insert(Checkout, Order(42))
        assert durable.drain() == DrainCounts(awaiting=1)
        durable.advance(hours=24)
        assert durable.drain() == DrainCounts(next=2, awaiting=1)
        durable.signal(order, Checkout.payment, Payment(100))
        assert durable.drain() == DrainCounts(done=1)
        durable.assert_done(order, Receipt(42, 100))

    assert crash_everywhere(scenario) == 10


def test_crash_everywhere_covers_children() -> None:
    def scenario(durable: Harness) -> None:
        shipment = durable.insert(Shipment, [1, 2])
        durable.drain()
        assert durable.assert_done(shipment) == ["parcel 1", "parcel 2"]
        assert len(durable.instances(Parcel)) == 2

    assert crash_everywhere(scenario) == 8


def test_crash_everywhere_finds_an_unsafe_step() -> None:
    def scenario(durable: Harness) -> None:
        durable.use(Counted([]))
        counted = durable.insert(Counted, "x")
        durable.drain()
        durable.assert_done(counted, 1)

    with pytest.raises(AssertionError, match="is done with 2, not with 1") as raised:
        crash_everywhere(scenario)
    assert raised.value.__notes__ == ["The process crashed before the commit of step 'count'."]


def test_crash_everywhere_allows_crashes_of_the_scenario() -> None:
    def scenario(durable: Harness) -> None:
        parcel = durable.insert(Parcel, 1)
        with durable.crash_at(Parcel.pack), pytest.raises(Crash):
            durable.drain()
        durable.drain()
        durable.assert_done(parcel)

    assert crash_everywhere(scenario) == 2


def test_crash_everywhere_reports_a_scenario_that_fails_anyway() -> None:
    def scenario(durable: Harness) -> None:
        durable.assert_done(1)

    with pytest.raises(AssertionError) as raised:
        crash_everywhere(scenario)
    assert not hasattr(raised.value, "__notes__")


def test_crash_everywhere_takes_settings() -> None:
    class Short(Machine[None, None]):
        @step
        async def sleep(self, ctx: Context[None]) -> Outcome[None]:
            return Await(then=self.end, timeout=timedelta(days=1))

        @step
        async def end(self, ctx: Context[None]) -> Outcome[None]:
            return Done()

    def scenario(durable: Harness) -> None:
        assert durable.settings.schema == "elsewhere"
        short = durable.insert(Short)
        durable.drain()
        durable.fire_timeouts()
        durable.drain()
        durable.assert_done(short)

    assert crash_everywhere(scenario, settings=Settings(schema="elsewhere")) == 4


def test_crash_at_an_unknown_step_is_rejected(durable: Harness) -> None:
    durable.insert(Checkout, Order(42))
    problem = r"crash_at got the step 'shp'; did you mean 'ship'\? The steps of the registered machines are .*'start'"
    with pytest.raises(UsageError, match=problem), durable.crash_at("shp"):
        pass
    with durable.crash_at("ship"):
        durable.drain()


def test_crash_at_an_unknown_point_is_rejected(durable: Harness) -> None:
    point: Any = "before_comit"
    problem = r"did you mean 'before_commit'\? The points are 'before_step', 'before_commit'"
    with pytest.raises(UsageError, match=problem), durable.crash_at(Checkout.ship, point):
        pass


def test_crash_at_a_step_by_name_needs_a_known_machine(durable: Harness) -> None:
    with pytest.raises(UsageError, match="are none; for another machine pass the step itself"):
        durable.crash_at("ship").__enter__()
    durable.use(Checkout)
    with durable.crash_at("ship"):
        pass
