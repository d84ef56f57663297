"""Soft delete: hidden, cancelled if live, and restorable."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import (
    AlreadyFinished,
    Deleted,
    Duplicate,
    Inserted,
    NoTargetError,
    NotRetried,
    Restored,
    Retried,
    Status,
    UsageError,
    Worker,
)
from gen_durable.testing import AsyncHarness
from tests.support.machines import Order, Plain, Sitter
from tests.support.rows import audit, job_states, row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, eventually, happens


@pytest.mark.clause("DEL-1", "DEL-3")
async def test_deleted_instances_are_hidden_by_default(client: Any, db: Any) -> None:
    ref = await client.insert(Plain, 1, correlation_key="order:1")
    seen = await client.insert(Plain, 2)
    deleted = await client.soft_delete(ref, reason="obsolete", actor="ben")
    assert deleted == Deleted(ref.id, deleted.deleted_at, is_executing=False)
    for target in (ref, ref.id, "order:1"):
        assert await client.get(target) is None
        found = await client.get(target, with_deleted=True)
        assert (found.id, found.deleted_at, found.delete_reason) == (ref.id, deleted.deleted_at, "obsolete")
    assert [one.id for one in await client.list()] == [seen.id]
    assert [one.id for one in await client.list(with_deleted=True)] == [seen.id, ref.id]
    assert (await client.count(), await client.count(with_deleted=True)) == (1, 2)
    assert await audit(db, ref.id) == [("cancelled", "ben", "obsolete"), ("deleted", "ben", "obsolete")]
    assert await job_states(db, [ref.id]) == ["CANCELLED"]


async def test_second_delete_changes_nothing(client: Any, db: Any) -> None:
    ref = await client.insert(Plain, 1)
    first = await client.soft_delete(ref, reason="first")
    assert await client.soft_delete(ref, reason="second") == first
    assert (await client.get(ref, with_deleted=True)).delete_reason == "first"
    assert [event for event, _, _ in await audit(db, ref.id)] == ["cancelled", "deleted"]
    with pytest.raises(NoTargetError):
        await client.soft_delete(4711)


@pytest.mark.clause("DEL-1")
async def test_ended_instance_keeps_its_status_when_deleted(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Plain, 7)
    await async_durable.drain()
    await async_durable.soft_delete(ref)
    found = await async_durable.get(ref, with_deleted=True)
    assert found is not None
    assert (found.status, found.result) == (Status.DONE, 7)
    assert await audit(db, ref.id) == [("deleted", None, None)]
    assert await async_durable.restore(ref, actor="ben") == Restored(ref.id, Status.DONE)
    assert async_durable.assert_done(ref) == 7


@pytest.mark.clause("DEL-2", "RTY-4")
async def test_deleted_instances_are_not_leased_signalled_or_retried(
    async_durable: AsyncHarness, db: Any
) -> None:
    order = await async_durable.insert(Order, 1, correlation_key="order:1")
    plain = await async_durable.insert(Plain, 2)
    await async_durable.drain(max_steps=2)
    order_2 = await async_durable.insert(Plain, 3)
    await async_durable.delete_all()
    for target in (order, "order:1"):
        with pytest.raises(NoTargetError):
            await async_durable.signal(target, Order.paid, 100)
    before = [await row_of(db, ref.id) for ref in (order, plain, order_2)]
    assert (await async_durable.drain()).done == 0
    assert await async_durable.retry(order) == NotRetried(order.id, Status.CANCELLED)
    assert await async_durable.retry_all(with_deleted=True) == 0
    assert await async_durable.cancel(order) == AlreadyFinished(order.id, Status.CANCELLED)
    after = [await row_of(db, ref.id) for ref in (order, plain, order_2)]
    assert [{**row, "now": None} for row in after] == [{**row, "now": None} for row in before]


@pytest.mark.clause("DEL-4", "DEL-5", "IDM-2")
async def test_deleting_an_executing_instance_cancels_it_first(durable_dsn: str, db: Any) -> None:
    machine = Sitter()
    keys: Any = {"correlation_key": "c", "unique_key": "u"}
    async with Worker([machine, Plain], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine, "", step="deaf", **keys)
        await happens(machine.is_there)
        deleted = await worker.soft_delete(ref, reason="obsolete")
        assert deleted.is_executing
        assert await worker.get(ref) is None
        with pytest.raises(NoTargetError):
            await worker.signal(ref, "unread")
        for refused in (
            await worker.insert(Sitter, "", correlation_key="c"),
            await worker.insert(Sitter, "", unique_key="u"),
        ):
            assert isinstance(refused, Duplicate)
            assert (refused.id, refused.status) == (ref.id, Status.EXECUTING)
        machine.may_go.set()
        ended = await eventually(worker, ref, "cancelled")
        assert (ended.deleted_at, ended.step_seq, ended.stored_result) == (deleted.deleted_at, 0, None)
        heir = await worker.insert(machine, "", step="looks", **keys)
        assert isinstance(heir, Inserted)
        assert (await worker.wait(heir, timeout=PATIENCE)).result == "finished all the same"
    assert await job_states(db, [ref.id, heir.id]) == ["CANCELLED", "SUCCEEDED"]


@pytest.mark.clause("DEL-5")
async def test_delete_frees_the_key_of_an_idle_instance_at_once(client: Any) -> None:
    first = await client.insert(Plain, 1, idempotency_key="once", correlation_key="c")
    again = await client.insert(Plain, 1, idempotency_key="once")
    assert (type(again), again.id) == (Duplicate, first.id)
    await client.soft_delete(first)
    second = await client.insert(Plain, 1, idempotency_key="once", correlation_key="c")
    assert isinstance(second, Inserted)
    assert (await client.get("c")).id == second.id


@pytest.mark.clause("DEL-6")
async def test_restored_instance_keeps_its_last_status(client: Any, db: Any) -> None:
    ref = await client.insert(Plain, 1, correlation_key="order:1")
    await client.soft_delete(ref, reason="obsolete")
    assert await client.restore("order:1", actor="ben") == Restored(ref.id, Status.CANCELLED)
    found = await client.get(ref)
    assert (found.status, found.deleted_at, found.delete_reason) == (Status.CANCELLED, None, None)
    assert (await audit(db, ref.id))[-1] == ("restored", "ben", None)
    assert await client.restore(ref) == Restored(ref.id, Status.CANCELLED), "twice is once"
    assert len(await audit(db, ref.id)) == 3
    assert await client.retry(ref) == Retried(ref.id)
    with pytest.raises(NoTargetError):
        await client.restore("order:2")


@pytest.mark.clause("DEL-6")
async def test_restore_fails_when_the_key_is_taken(client: Any, db: Any) -> None:
    old = await client.insert(Plain, 1, idempotency_key="once")
    await client.soft_delete(old)
    new = await client.insert(Plain, 2, idempotency_key="once")
    with pytest.raises(
        UsageError,
        match=r"cannot restore instance \d+: its \w+_key belongs to \w+ (\d+) now; delete \1 first",
    ):
        await client.restore(old)
    assert (await client.get(old, with_deleted=True)).deleted_at is not None
    assert [event for event, _, _ in await audit(db, old.id)] == ["cancelled", "deleted"]
    await client.soft_delete(new)
    assert await client.restore(old) == Restored(old.id, Status.CANCELLED)


async def test_key_lookup_prefers_visible_instances_except_for_restore(client: Any) -> None:
    """Two instances of one key, the later one deleted: a lookup returns the earlier one."""
    first = await client.insert(Plain, 1, correlation_key="order:1")
    await client.cancel(first)
    second = await client.insert(Plain, 2, correlation_key="order:1")
    await client.soft_delete(second)
    assert (await client.get("order:1")).id == first.id
    third = await client.insert(Plain, 3, correlation_key="order:1")
    assert (await client.get("order:1")).id == third.id
    assert await client.restore("order:1") == Restored(second.id, Status.CANCELLED), "not the live one"


async def test_restored_instance_that_still_executes_ends_as_cancelled(durable_dsn: str) -> None:
    machine = Sitter()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine, "", step="deaf", correlation_key="order:1")
        await happens(machine.is_there)
        await worker.soft_delete(ref)
        assert await worker.restore("order:1") == Restored(ref.id, Status.EXECUTING)
        assert await worker.retry(ref) == NotRetried(ref.id, Status.EXECUTING)
        machine.may_go.set()
        assert (await worker.wait(ref, timeout=PATIENCE)).status is Status.CANCELLED
        assert await worker.retry(ref) == Retried(ref.id)
        assert (await worker.wait(ref, timeout=PATIENCE)).result == "finished all the same"
