"""`drain` runs due instances with the statements of a worker."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
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
    step,
)
from gen_durable._db import lease as leases
from gen_durable._db import pick
from gen_durable.errors import DefinitionError, DuplicateMachineError, UsageError
from gen_durable.testing import DrainCounts, Harness
from tests.testing.machines import (
    Checkout,
    Counted,
    Flaky,
    Order,
    Parcel,
    Payment,
    Poll,
    Receipt,
    Shipment,
    Spin,
)


def test_drain_runs_until_an_await(durable: Harness) -> None:
    durable.insert(Checkout, Order(42))
    assert durable.drain() == DrainCounts(awaiting=1)
    assert durable.drain() == DrainCounts()


def test_drain_continues_after_a_signal(durable: Harness) -> None:
    order = durable.insert(Checkout, Order(42), correlation_key="order:42")
    durable.drain()
    durable.signal("order:42", Checkout.payment, Payment(100))
    assert durable.drain() == DrainCounts(done=1)
    receipt = durable.assert_done(order)
    assert receipt == Receipt(42, 100)


def test_drain_finds_a_signal_sent_before_the_await(durable: Harness) -> None:
    order = durable.insert(Checkout, Order(42))
    durable.signal(order, Checkout.withdrawn)
    assert durable.drain() == DrainCounts(awaiting=1, stopped=1)
    durable.assert_failed(order, match="withdrew")


def test_drain_registers_children_automatically(durable: Harness) -> None:
    shipment = durable.insert(Shipment, [1, 2, 3])
    assert durable.drain() == DrainCounts(children=1, done=3, stopped=1)
    assert durable.assert_done(shipment) == ["parcel 1", "parcel 2"]
    assert [child.status.value for child in durable.children(shipment)] == ["done", "done", "failed"]


def test_drain_continues_a_parent_without_children(durable: Harness) -> None:
    shipment = durable.insert(Shipment, [])
    assert durable.drain() == DrainCounts(children=1, done=1)
    assert durable.assert_done(shipment) == []


def test_drain_runs_children_scheduled_by_handle(durable: Harness) -> None:
    class Rescued(Machine[None, int]):
        @step
        async def fail(self, ctx: Context[None]) -> Outcome[int]:
            raise ValueError("never mind")

        @step
        async def join(self, ctx: Context[None]) -> Outcome[int]:
            return Done(len(ctx.children))

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[int]:
            return ScheduleChildren([Spec(Parcel, 1)], then=self.join)

    rescued = durable.insert(Rescued)
    durable.drain()
    durable.assert_done(rescued, 1)


def test_drain_skips_delays(durable: Harness) -> None:
    flaky = durable.insert(Flaky, 3)
    assert durable.drain() == DrainCounts(retry=3, done=1)
    assert durable.assert_done(flaky) == 3


def test_drain_skips_schedules_in_order(durable: Harness) -> None:
    tomorrow = durable.insert(Parcel, 1, schedule_in=timedelta(days=1))
    next_year = durable.insert(Parcel, 2, eligible_at=datetime.now(UTC) + timedelta(days=365))
    soon = durable.insert(Parcel, 4, schedule_in=timedelta(seconds=10))
    durable.drain()
    ended = sorted(durable.instances(Parcel), key=lambda parcel: str(parcel.finished_at))
    assert [parcel.id for parcel in ended] == [soon.id, tomorrow.id, next_year.id]


def test_drain_runs_a_retry_before_later_instances(durable: Harness) -> None:
    """All delays are skipped together, so a later schedule keeps its order between two retries."""
    order: list[str] = []

    class Retries(Machine[str, None]):
        @step
        async def work(self, ctx: Context[str]) -> Outcome[None]:
            order.append(f"{ctx.state} {ctx.attempt}")
            if ctx.state == "later" or ctx.attempt == 2:
                return Done()
            raise ConnectionError

        def handle(self, error: Exception, ctx: Context[str]) -> Outcome[None]:
            return Retry(timedelta(seconds=20))

    durable.insert(Retries, "early")
    durable.insert(Retries, "later", schedule_in=timedelta(seconds=30))
    durable.drain()
    assert order == ["early 0", "early 1", "later 0", "early 2"]


def test_drain_with_collapse_false_keeps_delays(durable: Harness) -> None:
    flaky = durable.insert(Flaky, 1)
    assert durable.drain(collapse=False) == DrainCounts(retry=1)
    assert durable.drain(collapse=False) == DrainCounts()
    durable.advance(minutes=2)
    assert durable.drain(collapse=False) == DrainCounts(done=1)
    durable.assert_done(flaky)


def test_drain_names_a_machine_that_never_ends(durable: Harness) -> None:
    poll = durable.insert(Poll, 0)
    with pytest.raises(AssertionError, match=rf"Poll {poll.id} still runs after 20 steps.*look → look"):
        durable.drain(max_steps=20)
    # It was released unchanged; its delay had been skipped.
    assert durable.drain(collapse=False) == DrainCounts(next=1)
    instance = durable.get(poll)
    assert instance is not None
    assert (instance.state, instance.attempt, instance.crash_count) == (21, 0, 0)


def test_drain_names_a_spinning_machine_with_collapse_false(durable: Harness) -> None:
    durable.insert(Spin)
    with pytest.raises(AssertionError, match="Spin 1 still runs"):
        durable.drain(collapse=False, max_steps=5)


def test_drain_serves_all_queues(durable: Harness) -> None:
    refs = [durable.insert(Parcel, 1, queue=queue) for queue in ("a", "parcels", "z")]
    assert durable.drain() == DrainCounts(done=3)
    for ref in refs:
        durable.assert_done(ref)


def test_drain_runs_urgent_instances_first(durable: Harness) -> None:
    calls: list[str] = []
    durable.use(Counted(calls))
    lazy = durable.insert(Counted, "lazy", priority=5)
    urgent = durable.insert(Counted, "urgent", priority=-5)
    durable.drain()
    assert calls == [f"{urgent.id}:1", f"{lazy.id}:1"]


def test_drain_runs_rows_of_a_key_one_by_one(durable: Harness) -> None:
    refs = [durable.insert(Shipment, [1, 2], concurrency_key="printer") for _ in range(3)]
    durable.drain()
    for ref in refs:
        durable.assert_done(ref)


def test_drain_leaves_only_rows_of_a_held_key(durable: Harness) -> None:
    held = durable.insert(Parcel, 1, concurrency_key="printer")
    free = durable.insert(Parcel, 2)
    _lease(durable, "printer")
    durable.drain()
    durable.assert_done(free)
    instance = durable.get(held)
    assert instance is not None
    assert instance.status == "runnable"


def test_used_machine_object_replaces_its_class(durable: Harness) -> None:
    first: list[str] = []
    second: list[str] = []
    durable.use(Counted(first))
    durable.use(Counted(second))
    counted = durable.insert(Counted, "x")
    durable.drain()
    assert (first, second) == ([], [f"{counted.id}:1"])


def test_machine_object_can_be_inserted(durable: Harness) -> None:
    calls: list[str] = []
    machine = Counted(calls)
    durable.insert(machine, "x")
    durable.insert(machine, "y")
    assert durable.drain() == DrainCounts(done=2)
    assert len(calls) == 2


def test_machine_that_needs_arguments_must_be_used_first(durable: Harness) -> None:
    with pytest.raises(DefinitionError) as raised:
        durable.insert(Counted, "x")
    assert raised.value.__notes__ == ["In a test, register an object before: durable.use(Counted(…))"]
    assert durable.instances() == []


def test_child_that_needs_arguments_raises_in_the_test(durable: Harness) -> None:
    class Parent(Machine[None, None]):
        @step
        async def split(self, ctx: Context[None]) -> Outcome[None]:
            return ScheduleChildren([Spec(Counted, "x")], then=self.join)

        @step
        async def join(self, ctx: Context[None]) -> Outcome[None]:
            return Done()

    parent = durable.insert(Parent)
    with pytest.raises(DefinitionError, match=r"Counted\(\) needs arguments"):
        durable.drain()
    durable.use(Counted([]))
    durable.drain()
    durable.assert_done(parent)


def test_two_machines_of_one_name_are_rejected(durable: Harness) -> None:
    class Other(Machine[int, str], name="Parcel"):
        @step
        async def pack(self, ctx: Context[int]) -> Outcome[str]:
            return Done("")

    durable.insert(Parcel, 1)
    with pytest.raises(DuplicateMachineError) as raised:
        durable.insert(Other, 1)
    assert not hasattr(raised.value, "__notes__")


def test_drain_runs_several_versions(durable: Harness) -> None:
    class ParcelV2(Machine[int, int], name="Parcel", version=2):
        @step
        async def pack(self, ctx: Context[int]) -> Outcome[int]:
            return Done(2)

    old, new = durable.insert(Parcel, 1), durable.insert(ParcelV2, 1)
    durable.drain()
    assert (durable.assert_done(old), durable.assert_done(new)) == ("parcel 1", 2)
    assert [parcel.id for parcel in durable.instances(ParcelV2)] == [new.id]


def test_drain_runs_a_batch(durable: Harness) -> None:
    durable.insert_all([Spec(Parcel, 1), Spec(Checkout, Order(1)), Spec(Parcel, 2)])
    assert durable.drain() == DrainCounts(done=2, awaiting=1)


def test_drain_runs_instances_inserted_by_others(durable: Harness) -> None:
    with Harness(str(durable.dsn)) as other:
        parcel = other.insert(Parcel, 1)
    assert durable.drain() == DrainCounts()
    durable.use(Parcel)
    assert durable.drain() == DrainCounts(done=1)
    durable.assert_done(parcel)


def test_used_machines_are_registered_for_sql_inserts(durable: Harness, conn: Any) -> None:
    durable.use(Parcel)
    durable.drain()
    id, is_new = conn.execute("select id, inserted from gen_durable.insert('Parcel', '7')").fetchone()
    assert is_new
    assert durable.drain() == DrainCounts(done=1)
    assert durable.assert_done(id) == "parcel 7"


def test_drain_runs_a_callers_insert_after_its_commit(durable: Harness, conn: Any) -> None:
    with conn.transaction():
        parcel = durable.insert(Parcel, 1, conn=conn)
        assert durable.drain() == DrainCounts()
    assert durable.drain() == DrainCounts(done=1)
    durable.assert_done(parcel)


def test_drain_skips_locked_rows(durable: Harness, conn: Any) -> None:
    parcel = durable.insert(Parcel, 1)
    with conn.transaction():
        conn.execute("select from gen_durable.gen_durable for update")
        assert durable.drain() == DrainCounts()
    assert durable.drain() == DrainCounts(done=1)
    durable.assert_done(parcel)


def test_steps_may_use_the_harness_but_not_drain(durable: Harness) -> None:
    class Busy(Machine[None, str]):
        @step
        def insert(self, ctx: Context[None]) -> Outcome[str]:
            durable.insert(Parcel, 1)
            return Next(self.drain)

        @step
        async def drain(self, ctx: Context[None]) -> Outcome[str]:
            with pytest.raises(UsageError):
                durable.drain()
            return Done("refused")

    busy = durable.insert(Busy)
    durable.drain()
    durable.assert_done(busy, "refused")


async def test_blocking_drain_inside_a_loop_raises_with_advice(durable: Harness) -> None:
    durable.insert(Parcel, 1)
    with pytest.raises(UsageError, match="async_durable"):
        durable.drain()


def test_loop_is_kept_between_drains(durable: Harness) -> None:
    loops: list[object] = []

    class Looped(Machine[None, None]):
        @step
        async def first(self, ctx: Context[None]) -> Outcome[None]:
            loops.append(asyncio.get_running_loop())
            return Await("go", then=self.second)

        @step
        async def second(self, ctx: Context[None]) -> Outcome[None]:
            loops.append(asyncio.get_running_loop())
            return Stop("enough")

    looped = durable.insert(Looped)
    durable.drain()
    durable.signal(looped, "go")
    durable.drain()
    assert loops[0] is loops[1]


def test_rejected_outcome_fails_only_its_instance(durable: Harness, conn: Any) -> None:
    conn.execute(
        "alter table gen_durable.gen_durable add constraint odd check (result is distinct from '\"parcel 2\"')"
    )
    refused, other = durable.insert(Parcel, 2), durable.insert(Parcel, 1)
    assert durable.drain() == DrainCounts(done=1, stopped=1)
    durable.assert_failed(refused, match="the database refused the outcome")
    durable.assert_done(other)
    assert [t.kind for t in durable.outcomes(refused)] == ["stop"]


def test_drain_continues_when_a_delay_ends_during_a_pick(
    durable: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is not due at the pick may be due when its delay is skipped."""

    class Soon(Machine[None, int]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[int]:
            return Done(ctx.attempt) if ctx.attempt == 3 else Retry(timedelta(milliseconds=10))

    expire = leases.expire

    def slowly() -> Any:
        time.sleep(0.02)
        return expire()

    monkeypatch.setattr(leases, "expire", slowly)
    ref = durable.insert(Soon)
    assert durable.drain() == DrainCounts(retry=3, done=1)
    assert durable.assert_done(ref) == 3


def _lease(durable: Harness, key: str) -> None:
    """Make another process hold this key."""
    durable.insert(Parcel, 9, concurrency_key=key, priority=-1)
    durable._run_now(
        pick.pick(
            "parcels", pick.PickRequest((["Parcel"], [1]), 1, 1, "another", pick.Leases(timedelta(minutes=1)))
        )
    )


class Stateless(Machine[None, str]):
    @step
    async def only(self, ctx: Context[None]) -> Outcome[str]:
        return Done(repr(ctx.state))


def test_sql_insert_needs_no_state_for_a_stateless_machine(durable: Harness, durable_dsn: str) -> None:
    durable.insert(Stateless)
    with psycopg.connect(durable_dsn, autocommit=True) as conn:
        conn.execute("select gen_durable.insert('Stateless', step => 'only')")
    durable.drain()
    assert [found.result for found in durable.list(Stateless)] == ["None", "None"]
