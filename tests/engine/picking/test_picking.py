"""Picks: order, queues, capacity, polling, and concurrency keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Queue,
    ScheduleChildren,
    Spec,
    Worker,
    step,
)
from gen_durable.telemetry import PickStop
from gen_durable.testing import DrainCounts, Harness
from tests.support.machines import Say, probe
from tests.support.rows import SqlConnection
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import PATIENCE, Events


class Busy(Machine[str, str]):
    """Records the running instances, and holds them until the test lets them go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.inside: set[str] = set()
        self.most = 0
        self.may_go = asyncio.Event()

    @step
    async def run(self, ctx: Context[str]) -> Outcome[str]:
        self.begun.append(ctx.state)
        self.inside.add(ctx.state)
        self.most = max(self.most, len(self.inside))
        await self.may_go.wait()
        await asyncio.sleep(0.005)
        self.inside.discard(ctx.state)
        return Done(ctx.state)

    async def holds(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while len(self.inside) < count:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def worker_of(dsn: str, machine: Any, **options: Any) -> AsyncIterator[Worker]:
    async with Worker([machine], dsn=dsn, **{"settings": CALM, **options}) as worker:
        yield worker


@pytest.mark.clause("PICK-1", "PICK-2")
def test_rows_are_picked_by_priority_then_time_then_id(durable: Harness) -> None:
    order: list[str] = []

    class Order(Machine[str, None]):
        @step
        async def run(self, ctx: Context[str]) -> Outcome[None]:
            order.append(ctx.state)
            return Done()

    for state, options in {
        "third": {"schedule_in": timedelta(seconds=2)},
        "fifth": {"priority": 1},
        "second": {"schedule_in": timedelta(seconds=1)},
        "not due": {"priority": -9, "schedule_in": AN_HOUR},
        "fourth": {"schedule_in": timedelta(seconds=2)},
        "first": {"priority": -1, "schedule_in": timedelta(seconds=5)},
    }.items():
        durable.insert(Order, state, **options)  # type: ignore[arg-type]
    durable.advance(minutes=1)
    durable.drain(collapse=False)
    assert order == ["first", "second", "third", "fourth", "fifth"]


@pytest.mark.clause("PICK-1")
def test_only_runnable_rows_are_picked(durable: Harness, sql: SqlConnection) -> None:
    statuses = ["awaiting_signal", "awaiting_children", "done", "failed", "cancelled"]
    for status in statuses:
        ref = durable.insert(Say, status)
        sql("update gen_durable.gen_durable set status = %s where id = %s", status, ref.id)
    assert durable.drain() == DrainCounts()
    assert [one.status for one in durable.instances()] == statuses


@pytest.mark.clause("PICK-3")
def test_pick_skips_locked_rows(durable: Harness, sql: SqlConnection) -> None:
    held, free = durable.insert(Say, "held"), durable.insert(Say, "free")
    with sql.another() as other:
        other.execute("select from gen_durable.gen_durable where id = %s for no key update", [held.id])
        assert durable.drain() == DrainCounts(done=1)
        durable.assert_done(free)
    assert durable.drain() == DrainCounts(done=1)


@pytest.mark.clause("PICK-3")
async def test_two_workers_run_each_row_once(durable_dsn: str, db: Any) -> None:
    machine = Busy()
    machine.may_go.set()
    async with worker_of(durable_dsn, machine) as first, worker_of(durable_dsn, machine):
        refs = await first.insert_all([Spec(machine, str(n)) for n in range(200)])
        ended = await first.wait_all(refs, timeout=PATIENCE)
        counts = await db.fetch("select execution from gen_durable.gen_durable")
    assert sorted(machine.begun, key=int) == [str(n) for n in range(200)]
    assert {one.status for one in ended} == {"done"}
    assert [row["execution"] for row in counts] == [1] * 200


@pytest.mark.clause("PICK-4")
async def test_step_runs_outside_of_any_transaction(durable_dsn: str, sql: SqlConnection) -> None:
    machine = Busy()
    async with worker_of(durable_dsn, machine) as worker:
        ref = await worker.insert(machine, "a")
        await machine.holds(1)
        assert sql("select 1 from gen_durable.gen_durable where id = %s for update nowait", ref.id)
        in_transaction = (
            "select 1 from pg_stat_activity where datname = current_database() and state like 'idle in%'"
        )
        # Services of the worker may be in a transaction for a moment.
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while sql(in_transaction):
                await asyncio.sleep(0.005)
        assert machine.inside == {"a"}
        machine.may_go.set()


@pytest.mark.clause("PICK-5")
async def test_worker_serves_only_its_queues(durable_dsn: str) -> None:
    class Elsewhere(Machine[None, None], queue="own"):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            return Done()

    assert dict(Worker([Say, Elsewhere]).served_queues) == {"default": Queue(), "own": Queue()}
    async with worker_of(durable_dsn, Elsewhere, queues={"a": 1, "b": Queue(concurrency=2)}) as worker:
        a, b, own = [await worker.insert(Elsewhere, queue=queue) for queue in ("a", "b", "own")]
        await worker.wait_all([a, b], timeout=PATIENCE)
        left = await worker.wait(own, timeout=timedelta(milliseconds=300))
    assert left.status == "runnable"


@pytest.mark.clause("PICK-6", "PICK-7")
async def test_worker_leases_no_more_than_its_concurrency(durable_dsn: str, sql: SqlConnection) -> None:
    assert Queue().concurrency == 10
    machine = Busy()
    async with worker_of(durable_dsn, machine, queues={"default": 3}) as worker:
        events = Events(worker)
        refs = await worker.insert_all([Spec(machine, str(n)) for n in range(9)])
        await machine.holds(3)
        await asyncio.sleep(0.2)
        leased = sql.value("select count(*) from gen_durable.gen_durable where status = 'executing'")
        machine.may_go.set()
        await worker.wait_all(refs, timeout=PATIENCE)
    assert (machine.most, leased) == (3, 3)
    picks = events.of(PickStop)
    assert all(pick.count <= pick.demand <= 3 for pick in picks)


@pytest.mark.clause("PICK-6")
async def test_chained_steps_count_against_the_concurrency(durable_dsn: str) -> None:
    inside: set[int] = set()
    most: list[int] = []

    class Chain(Machine[int, None]):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[None]:
            inside.add(ctx.id)
            most.append(len(inside))
            await asyncio.sleep(0.002)
            inside.discard(ctx.id)
            return Next(self.run, ctx.state - 1) if ctx.state else Done()

    async with worker_of(durable_dsn, Chain, queues={"default": 2}) as worker:
        refs = await worker.insert_all([Spec(Chain, 5) for _ in range(10)])
        await worker.wait_all(refs, timeout=PATIENCE)
    assert max(most) == 2


@pytest.mark.clause("PICK-8")
async def test_free_capacity_is_filled_at_once(durable_dsn: str) -> None:
    machine = Busy()
    machine.may_go.set()
    settings = msgspec.structs.replace(
        CALM, poll_interval=timedelta(seconds=30), min_poll_interval=timedelta(seconds=30)
    )
    async with worker_of(durable_dsn, machine, queues={"default": 2}, settings=settings) as worker:
        refs = await worker.insert_all([Spec(machine, str(n)) for n in range(20)])
        began = time.monotonic()
        await worker.wait_all(refs, timeout=PATIENCE)
    assert time.monotonic() - began < 10


@pytest.mark.clause("PICK-9")
async def test_inserts_of_other_processes_are_found_by_polling(durable_dsn: str, sql: SqlConnection) -> None:
    settings = msgspec.structs.replace(CALM, poll_interval=timedelta(milliseconds=100))
    async with worker_of(durable_dsn, Say, settings=settings) as worker:
        events = Events(worker)
        await events.wait(PickStop, count=3)
        async with AsyncClient(durable_dsn) as client:
            ref = await client.insert(Say, "hi")
            assert (await client.wait(ref, timeout=PATIENCE)).result == "hi"
        began = time.monotonic()
        await events.wait(PickStop, count=len(events.of(PickStop)) + 10)
    # A poll takes almost no time, but the machine may be busy.
    assert time.monotonic() - began < 10 * 0.1 + 2


@pytest.mark.clause("PICK-11")
async def test_changes_in_the_same_process_wake_the_queue(durable_dsn: str) -> None:
    def one(ctx: Context[int]) -> Outcome[Any]:
        return Await("go", then="two")

    def two(ctx: Context[int]) -> Outcome[Any]:
        return Done(0) if ctx.children else ScheduleChildren([Spec(Say, "a")], then="two")

    machine = probe(one, two)
    settings = msgspec.structs.replace(
        CALM, poll_interval=timedelta(seconds=30), min_poll_interval=timedelta(seconds=30)
    )
    async with Worker([machine, Say], dsn=durable_dsn, settings=settings) as worker:
        await asyncio.sleep(0.1)
        began = time.monotonic()
        ref = await worker.insert(machine, 7)
        await worker.wait(ref, timeout=PATIENCE, until="parked")
        await worker.signal(ref, "go")
        await worker.wait(ref, timeout=PATIENCE)
    assert time.monotonic() - began < 10


@pytest.mark.clause("CON-6")
def test_only_executing_rows_hold_their_key(durable: Harness, sql: SqlConnection) -> None:
    parked = durable.insert(probe(lambda ctx: Await("go", then="two")), 7, concurrency_key="k")
    durable.drain()
    assert sql.columns(parked.id, "status concurrency_key concurrency_slot") == ("awaiting_signal", "k", None)
    later = durable.insert(Say, "later", concurrency_key="k", schedule_in=AN_HOUR)
    now = durable.insert(Say, "now", concurrency_key="k")
    durable.drain(collapse=False)
    durable.assert_done(now)
    durable.signal(parked, "go")
    durable.drain()
    durable.assert_done(parked)
    durable.assert_done(later)


@pytest.mark.clause("CON-7")
def test_outcome_may_change_the_concurrency_key(
    durable: Harness, sql: SqlConnection, subtests: pytest.Subtests
) -> None:
    keep: dict[str, Any] = {}
    switch: dict[str, Any] = {"concurrency_key": "new"}
    give_back: dict[str, Any] = {"concurrency_key": None}
    outcomes: list[tuple[Outcome[Any], str | None]] = [
        (Next("two", delay=AN_HOUR, **keep), "old"),
        (Next("two", delay=AN_HOUR, **switch), "new"),
        (Next("two", delay=AN_HOUR, **give_back), None),
        (Await("go", then="two", **keep), "old"),
        (Await("go", then="two", **switch), "new"),
        (Await("go", then="two", **give_back), None),
    ]
    machine = probe(lambda ctx: outcomes[ctx.state][0])
    refs = [durable.insert(machine, number, concurrency_key="old") for number in range(len(outcomes))]
    durable.drain(collapse=False)
    for ref, (outcome, key) in zip(refs, outcomes, strict=True):
        with subtests.test(outcome=outcome):
            assert sql.columns(ref.id, "step concurrency_key concurrency_slot") == ("two", key, None)


@pytest.mark.clause("CON-8")
def test_concurrency_key_is_a_string_or_a_pair(durable: Harness, sql: SqlConnection) -> None:
    given: list[Any] = ["import", ("tenant", 7), ("t", "x")]
    keys = [durable.insert(Say, "", concurrency_key=key).id for key in given]
    assert [sql.columns(id, "concurrency_key")[0] for id in keys] == ["import", "tenant:7", "t:x"]
