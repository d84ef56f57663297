"""`UPDATE … SET deleted_at = now()`, as simple-workflow writes it, makes the same change as `soft_delete`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    Await,
    Context,
    Done,
    Inserted,
    Machine,
    Next,
    NoTargetError,
    NotRetried,
    Outcome,
    Restored,
    Schedule,
    ScheduleChildren,
    Signal,
    Spec,
    Status,
    Worker,
    step,
)
from gen_durable.testing import AsyncHarness
from tests.support.machines import Order, Plain, Sitter
from tests.support.rows import audit, job_states, row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, eventually, happens

EAGER = msgspec.structs.replace(CALM, reap_interval=timedelta(milliseconds=200))


async def plain_delete(db: Any, *ids: int, reason: str | None = "obsolete") -> None:
    await db.execute(
        "update gen_durable.gen_durable set deleted_at = now(), delete_reason = $2 where id = any ($1::bigint[])",
        list(ids),
        reason,
    )


class Chain(Machine[int, int]):
    """Two chained steps; the first waits for the test."""

    entered: list[str] = []  # noqa: RUF012 - emptied by each test
    db: Any = None

    @step
    async def first(self, ctx: Context[int]) -> Outcome[int]:
        self.entered.append("first")
        await plain_delete(self.db, ctx.id)
        return Next(self.second)

    @step
    async def second(self, ctx: Context[int]) -> Outcome[int]:
        self.entered.append("second")
        return Done(ctx.state)


class Parent(Machine[int, int]):
    @step
    async def spawn(self, ctx: Context[int]) -> Outcome[int]:
        return ScheduleChildren([Spec(Order, 1), Spec(Plain, 2)], then=self.join)

    @step
    async def join(self, ctx: Context[int]) -> Outcome[int]:
        return Done(len(ctx.children.failed))


class Deadline(Machine[int, str]):
    go = Signal("go", int)

    @step
    async def start(self, ctx: Context[int]) -> Outcome[str]:
        return Await(self.go, then=self.woken, timeout=timedelta(seconds=10))

    @step
    async def woken(self, ctx: Context[int]) -> Outcome[str]:
        return Done("woken")


@pytest.mark.clause("DEL-7")
async def test_updated_runnable_instance_ends_as_cancelled(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Plain, 1, idempotency_key="once", correlation_key="c")
    await plain_delete(db, ref.id)
    assert (await async_durable.drain()).done == 0
    found = await async_durable.get(ref, with_deleted=True)
    assert found is not None
    assert (found.status, found.cancel_reason, found.delete_reason) == (
        Status.CANCELLED,
        "obsolete",
        "obsolete",
    )
    login = await db.fetchval("select session_user::text")
    assert await audit(db, ref.id) == [("cancelled", login, "obsolete"), ("deleted", login, "obsolete")]
    assert await job_states(db, [ref.id]) == ["CANCELLED"]
    assert await async_durable.retry(ref) == NotRetried(ref.id, Status.CANCELLED)
    again = await async_durable.insert(Plain, 1, idempotency_key="once", correlation_key="c")
    assert isinstance(again, Inserted)


@pytest.mark.clause("DEL-7")
async def test_restore_after_an_update_shows_it_as_cancelled(client: Any, db: Any) -> None:
    first, second = await client.insert(Plain, 1), await client.insert(Plain, 2)
    await plain_delete(db, first.id, second.id)
    assert await client.restore(first) == Restored(first.id, Status.CANCELLED)
    await db.execute("update gen_durable.gen_durable set deleted_at = null where id = $1", second.id)
    assert [(await client.get(ref)).status for ref in (first, second)] == [Status.CANCELLED] * 2


@pytest.mark.clause("DEL-7")
async def test_updated_awaiting_instance_takes_no_signal_and_no_timeout(
    async_durable: AsyncHarness, db: Any
) -> None:
    order = await async_durable.insert(Order, 1, correlation_key="order:1")
    timed = await async_durable.insert(Deadline, 1)
    await async_durable.drain()
    await plain_delete(db, order.id, timed.id)
    for target in (order, "order:1"):
        with pytest.raises(NoTargetError):
            await async_durable.signal(target, Order.paid, 100)
    async_durable.advance(minutes=1)
    assert (await async_durable.drain()).done == 0
    assert [(await row_of(db, ref.id))["status"] for ref in (order, timed)] == ["cancelled"] * 2


@pytest.mark.clause("DEL-7")
async def test_update_releases_the_concurrency_key(async_durable: AsyncHarness, db: Any) -> None:
    refs = [await async_durable.insert(Plain, n, concurrency_key="k") for n in range(4)]
    await db.execute(
        "update gen_durable.gen_durable set gated = true where id = any ($1::bigint[])",
        [ref.id for ref in refs[1:]],
    )
    await plain_delete(db, refs[0].id, refs[2].id)
    await async_durable.drain()
    assert [(await row_of(db, ref.id))["status"] for ref in refs] == [
        "cancelled",
        "done",
        "cancelled",
        "done",
    ]


@pytest.mark.clause("DEL-7")
async def test_update_of_a_child_releases_its_parent(async_durable: AsyncHarness, db: Any) -> None:
    parent = await async_durable.insert(Parent, 1)
    other = await async_durable.insert(Parent, 2)
    await async_durable.drain()
    child = await db.fetchval(
        "select id from gen_durable.gen_durable where parent_id = $1 and fsm = 'Order'", parent.id
    )
    await plain_delete(db, child, other.id)
    await async_durable.drain()
    assert async_durable.assert_done(parent) == 1
    assert (await row_of(db, other.id))["status"] == "cancelled"
    left = await db.fetchval(
        "select status::text from gen_durable.gen_durable where parent_id = $1 and fsm = 'Order'", other.id
    )
    assert left == "awaiting_signal"


@pytest.mark.clause("DEL-7")
async def test_schedule_fires_after_its_instance_was_updated(async_durable: AsyncHarness, db: Any) -> None:
    hourly = Schedule("hourly", Spec(Order, 1), every=timedelta(hours=1), overlap="skip")
    await async_durable.put_schedule(hourly)
    first = await async_durable.trigger_schedule("hourly")
    await async_durable.drain()
    await plain_delete(db, first.id)
    busy = await db.fetchval(
        "select count(*) from gen_durable.gen_durable where schedule = 'hourly' and finished_at is null"
    )
    assert busy == 0


@pytest.mark.clause("DEL-7")
async def test_updated_executing_instance_does_not_continue(durable_dsn: str, db: Any) -> None:
    Chain.entered, Chain.db = [], db
    async with Worker([Chain], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Chain, 1)
        ended = await eventually(worker, ref, "cancelled")
    assert (Chain.entered, ended.step_seq) == (["first"], 0)


@pytest.mark.clause("DEL-7")
async def test_updated_executing_step_sees_the_cancel(durable_dsn: str, db: Any) -> None:
    machine = Sitter()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine, "", step="looks")
        await happens(machine.is_there)
        await plain_delete(db, ref.id)
        await eventually(worker, ref, "cancelled")
    assert machine.saw == ["True"]


@pytest.mark.clause("DEL-7")
async def test_ended_instance_is_unchanged(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Plain, 7)
    await async_durable.drain()
    await plain_delete(db, ref.id)
    found = await async_durable.get(ref, with_deleted=True)
    assert found is not None
    assert (found.status, found.result) == (Status.DONE, 7)


@pytest.mark.clause("DEL-7")
async def test_rollback_undoes_the_update(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Plain, 7)
    transaction = db.transaction()
    await transaction.start()
    await plain_delete(db, ref.id)
    await transaction.rollback()
    await async_durable.drain()
    assert async_durable.assert_done(ref) == 7


@pytest.mark.clause("DEL-7")
@pytest.mark.parametrize("way", ["insert", "copy", "replica", "disabled"])
async def test_deleted_row_unseen_by_the_trigger_is_ended_by_the_reaper(
    durable_dsn: str, db: Any, way: str
) -> None:
    """Rows inserted with deleted_at bypass the trigger: they are never leased, and the reaper ends them."""
    table = "gen_durable.gen_durable"
    columns = "fsm, step, state, concurrency_key, correlation_key, correlation_scope, deleted_at"
    scope = "{runnable,executing,awaiting_signal,awaiting_children}"
    if way == "insert":
        await db.execute(
            f"insert into {table} ({columns}) values ('Plain', 'run', '1', 'k', 'c', $1::text::gen_durable.durable_status[], now())",
            scope,
        )
    elif way == "copy":
        await db.copy_records_to_table(
            "gen_durable",
            schema_name="gen_durable",
            columns=columns.split(", "),
            records=[
                (
                    "Plain",
                    "run",
                    "1",
                    "k",
                    "c",
                    scope.strip("{}").split(","),
                    await db.fetchval("select now()"),
                )
            ],
        )
    else:
        await db.execute(
            "select gen_durable.insert('Plain', '1', step => 'run', concurrency_key => 'k', correlation_key => 'c')"
        )
        await db.execute(
            "set session_replication_role = replica"
            if way == "replica"
            else f"alter table {table} disable trigger on_deleted"
        )
        await plain_delete(db, 1, reason=None)
    async with Worker([Plain], dsn=durable_dsn, settings=EAGER) as worker:
        with pytest.raises(NoTargetError):
            await worker.signal(1, "unread")
        behind = await worker.insert(Plain, 2, concurrency_key="k")
        assert (await worker.wait(behind, timeout=PATIENCE)).result == 2
        ended = await eventually(worker, 1, "cancelled")
    assert (ended.step_seq, await db.fetchval(f"select execution from {table} where id = 1")) == (0, 1)
    assert (
        await db.fetchval(
            "select count(*) from gen_durable.executions where instance_id = 1 and leased_at is not null"
        )
        == 0
    )


@pytest.mark.clause("DEL-7")
async def test_update_privilege_on_the_column_is_enough(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Plain, 1)
    await db.execute("create role sweeper_role")
    try:
        await db.execute(
            "grant usage on schema gen_durable to sweeper_role;"
            "grant select (id), update (deleted_at, delete_reason) on gen_durable.gen_durable to sweeper_role"
        )
        await db.execute("set role sweeper_role")
        await plain_delete(db, ref.id)
        await db.execute("reset role")
    finally:
        await db.execute("reset role; drop owned by sweeper_role; drop role sweeper_role")
    assert (await row_of(db, ref.id))["status"] == "cancelled"
