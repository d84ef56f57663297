"""`stats` and `registered_machines`: counts, rates, slow steps, failures, and what workers have registered."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gen_durable import Context, Done, Machine, Next, Outcome, Signal, Status, Stop, Worker, job, step
from gen_durable._db import stats as statistics
from gen_durable._db import workers
from gen_durable._db.pool import Database
from gen_durable.testing import Harness
from tests.operations.rows import put
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import holds
from tests.support.worker_rows import WORKER_ROW


async def record(db: Any, id: int, seq: int, outcome: str, seconds: float = 1, **columns: Any) -> None:
    values = {
        "status": "DONE",
        "step": "s",
        "execution": seq,
        "error": None,
        "started_at": None,
        **columns,
    }
    await db.execute(
        "insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, lease_owner,"
        " leased_at, started_at, finished_at, error)"
        " values ($1, $2, $3, 0, $4, $5, $6, 'w', now() - $7 * interval '1 s', $9, now(), $8)",
        id,
        seq,
        values["execution"],
        values["status"],
        outcome,
        values["step"],
        seconds,
        values["error"],
        values["started_at"],
    )


@pytest.mark.clause("OPS-13")
async def test_instances_are_counted_by_machine_and_status(db: Any, client: Any) -> None:
    for status in ("runnable", "executing", "awaiting_children", "done", "failed", "cancelled"):
        await put(db, status)
    await put(db, "awaiting_signal", awaits="{go}", queue="other")
    await put(db, queue="other")
    await put(db, concurrency_key="k", gated=True)
    await put(db, fsm_version=2)
    await put(db, "done", deleted_at="=now()")
    first, second = (await client.stats()).machines
    assert (first.machine, first.version, second.version) == ("A", 1, 2)
    assert dict(first.counts) == {
        Status.RUNNABLE: 3,
        Status.EXECUTING: 1,
        Status.AWAITING_SIGNAL: 1,
        Status.AWAITING_CHILDREN: 1,
        Status.DONE: 1,
        Status.FAILED: 1,
        Status.CANCELLED: 1,
    }
    assert dict(second.counts) == {Status.RUNNABLE: 1}


@pytest.mark.clause("OPS-13")
async def test_count_stops_at_its_limit(
    db: Any, client: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "_MOST", 3)
    for _ in range(4):
        await put(db)
        await put(db, queue="other")
        await put(db, "done")
    (counted,) = (await client.stats()).machines
    assert dict(counted.counts) == {Status.RUNNABLE: 3, Status.DONE: 3}


@pytest.mark.clause("OPS-13")
async def test_rates_are_of_the_last_five_minutes(db: Any, client: Any) -> None:
    """With and without a retention of the machine; rows whose removal comes later are of another index."""
    for _ in range(30):
        await put(db, "done")
    await put(db, "failed", finished_at="=now() - interval '6 min'")
    await db.execute(
        "insert into gen_durable.machines (fsm, fsm_version, initial_step, queue, retention)"
        " values ('A', 1, 's', 'default', '{\"failed\": 3600}'), ('B', 1, 's', 'default', '{\"failed\": 3601}')"
    )
    for kept in ("1 h", "3601 s"):
        times: Any = {"finished_at": "=now()", "expires_at": f"=now() + interval '{kept}'"}
        for _ in range(3):
            await put(db, "failed", **times)
    found = await client.stats()
    assert dict(found.per_second) == {Status.DONE: 0.1, Status.FAILED: 0.02, Status.CANCELLED: 0.0}


@pytest.mark.clause("OPS-13")
async def test_many_ends_are_a_rate_of_their_own_period(
    db: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "_MOST", 10)
    for _ in range(20):
        await put(db, "done", finished_at="=now() - interval '5 s'")
    assert 1 < (await client.stats()).per_second[Status.DONE] <= 2


@pytest.mark.clause("OPS-13")
async def test_slowest_steps_come_first(db: Any, client: Any) -> None:
    id = await put(db)
    for seq in range(1, 101):
        await record(db, id, seq, "next", seconds=seq)
    for seq in range(101, 104):
        await record(db, id, seq, "next", seconds=1, step="quick")
    await record(db, id, 104, "retry", seconds=1, step="quick", status="ABORTED")
    found = await client.stats()
    slow, quick = found.steps
    assert (slow.machine, slow.step, slow.executions, slow.not_committed) == ("A", "s", 100, 0)
    assert slow.p50 == timedelta(seconds=50.5)
    assert slow.p95 == timedelta(seconds=95.05)
    assert slow.longest == timedelta(seconds=100)
    assert (quick.step, quick.executions, quick.not_committed) == ("quick", 4, 1)
    assert found.sampled == 104


@pytest.mark.clause("OPS-13")
async def test_sample_is_of_the_newest_instances(
    db: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "_MOST", 2)
    for step_name in ("old", "new"):
        id = await put(db)
        for seq in (1, 2, 3):
            await record(db, id, seq, "next", step=step_name)
            await record(db, id, seq, "retry", step=step_name, status="ABORTED", execution=seq + 10)
    found = await client.stats()
    assert [(each.step, each.executions, each.not_committed) for each in found.steps] == [("new", 4, 2)]


@pytest.mark.clause("OPS-13")
async def test_failures_are_grouped_by_step_and_kind_of_error(db: Any, client: Any) -> None:
    first, second = await put(db), await put(db)
    aborted: dict[str, Any] = {"status": "ABORTED"}
    await record(db, first, 1, "retry", error="TimeoutError: after 10 s", **aborted)
    await record(db, first, 1, "retry", error="TimeoutError: after 20 s", execution=2, **aborted)
    await record(db, second, 1, "stop", error="TimeoutError")
    await record(db, first, 1, "next", error="app.errors.Declined: no")  # handle went on
    await record(db, first, 2, "stop", error="order 42: no stock")
    await record(db, second, 2, "stop", error="order 43: no stock")
    await record(db, first, 3, "lease", **aborted)
    await record(db, first, 3, "poison", execution=4, **aborted)
    await record(db, second, 3, "retry", **aborted)  # a Retry without an error
    found = (await client.stats()).failures
    assert {(each.error, each.failed, each.continued) for each in found} == {
        ("TimeoutError", 1, 2),
        ("order N: no stock", 2, 0),
        ("process died", 1, 1),
        ("app.errors.Declined", 0, 1),
    }
    assert found[0].error == "TimeoutError"
    assert found[1].last_error in ("order 43: no stock", "order 42: no stock")


@pytest.mark.clause("OPS-13")
def test_stats_of_instances_that_ran(durable: Harness) -> None:
    class Checkout(Machine[int, None]):
        @step
        async def begin(self, ctx: Context[int]) -> Outcome[None]:
            return Next(self.end)

        @step
        async def end(self, ctx: Context[int]) -> Outcome[None]:
            return Stop("no stock") if ctx.state else Done()

    for state in (0, 0, 1):
        durable.insert(Checkout, state)
    durable.drain()
    found = durable.stats()
    assert [(each.machine, dict(each.counts)) for each in found.machines] == [
        ("Checkout", {Status.DONE: 2, Status.FAILED: 1})
    ]
    assert {(each.step, each.executions) for each in found.steps} == {("begin", 3), ("end", 3)}
    assert [(each.step, each.error, each.failed) for each in found.failures] == [("end", "no stock", 1)]


@pytest.mark.clause("OPS-14")
async def test_registered_machines_name_their_live_workers(
    durable_dsn: str, db: Any, database: Database
) -> None:
    class Order(Machine[None, None], version=3, queue="orders"):
        paid = Signal("paid")

        @step
        async def start(self, ctx: Context[None]) -> Outcome[None]:
            return Done()

    @job("mail.send.v1")
    def send(to: str) -> None: ...

    async with Worker([Order, send], dsn=durable_dsn, settings=CALM) as worker:
        await holds(db, "select count(*) = 1 from gen_durable.workers")
        order, mail = await worker.registered_machines()
        assert (order.name, order.version, order.queue) == ("Order", 3, "orders")
        assert (order.steps, order.signals, order.workers) == (("start",), ("paid",), (worker.name,))
        assert (mail.name, mail.signals, mail.workers) == ("mail.send.v1", (), (worker.name,))
        await database.run(workers.announce(WORKER_ROW, AN_HOUR))
        assert len(await worker.registered_machines()) == 2
    async with Worker([send], dsn=durable_dsn, settings=CALM) as worker:
        await holds(db, "select count(*) = 2 from gen_durable.workers")
        assert [each.workers for each in await worker.registered_machines()] == [(), (worker.name,)]
