"""Bulk verbs: filters, batches, and failures of single instances."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import (
    AsyncClient,
    Client,
    Context,
    Done,
    Machine,
    Outcome,
    ScheduleChildren,
    Spec,
    Status,
    UsageError,
    step,
)
from gen_durable.testing import AsyncHarness
from tests.support.machines import Order, Plain
from tests.support.rows import audit, job_states

_MANY = 2_000


@pytest.mark.clause("SQL-9")
async def test_bulk_filters_accept_job_states(async_durable: AsyncHarness) -> None:
    refs = await async_durable.insert_all([Spec(Plain, n) for n in range(3)])
    parked = await async_durable.insert(Order, 1)
    await async_durable.drain()
    assert await async_durable.count(status="succeeded") == 3
    assert [one.id for one in await async_durable.list(status="leased")] == [parked.id]
    assert await async_durable.delete_all(status="succeeded") == len(refs)
    assert await async_durable.cancel_all(status=["pending", "leased"]) == 1
    assert await async_durable.retry_all(status="cancelled") == 1


@pytest.mark.clause("CTL-2", "CAN-1")
@pytest.mark.parametrize("kind", [AsyncClient, Client])
async def test_two_thousand_instances_are_cancelled_in_batches(
    kind: type[Any], durable_dsn: str, db: Any
) -> None:
    async with AsyncClient(durable_dsn) as client:
        refs = await client.insert_all(
            [Spec(Plain, n, queue="a" if n % 4 else "b", concurrency_key=f"k{n % 7}") for n in range(_MANY)]
        )
        other = await client.insert(Order, 1)
        if kind is AsyncClient:
            count = await client.cancel_all(Plain, reason="the sale is over", actor="ann", queue="a")
        else:
            with Client(durable_dsn) as blocking:
                count = blocking.cancel_all(Plain, reason="the sale is over", actor="ann", queue="a")
        assert count == _MANY * 3 // 4
        assert await client.count(status=Status.CANCELLED) == count
        assert await client.count(Plain, status=Status.RUNNABLE) == _MANY // 4
        assert await client.cancel_all(Plain, queue="a") == 0, "there is nothing left"
        found = await client.get(other)
    assert found is not None
    assert found.status is Status.RUNNABLE
    # One transaction per batch of 500: its rows have the same updated_at.
    batches = await db.fetch(
        "select count(*) as count from gen_durable.gen_durable where status = 'cancelled' group by finished_at"
    )
    assert sorted(row["count"] for row in batches) == [500] * 3
    assert (
        await db.fetchval("select count(*) from gen_durable.audit_events where event = 'cancelled'") == count
    )
    assert await audit(db, refs[1].id) == [("cancelled", "ann", "the sale is over")]
    assert await db.fetchval("select count(*) from gen_durable.gen_durable where gated") == 0


@pytest.mark.clause("CTL-2", "CAN-1", "RTY-1")
async def test_bulk_verbs_take_the_filters_of_list(client: Any) -> None:
    one = await client.insert(Plain, 1, correlation_key="c", unique_key="u")
    two = await client.insert(Order, 2, queue="other", concurrency_key="k")
    for verb in (client.cancel_all, client.delete_all, client.retry_all):
        with pytest.raises(UsageError, match="there is no filter 'sttus'"):
            await verb(sttus="done")
    assert await client.cancel_all(correlation_key="c", queue="other") == 0
    assert await client.cancel_all(correlation_key="c") == 1
    assert await client.cancel_all("Order", concurrency_key="k", status=[Status.DONE]) == 0
    assert await client.retry_all(unique_key="u") == 1
    assert await client.delete_all(Order) == 1
    assert [found.id for found in await client.list()] == [one.id]
    assert [found.id for found in await client.list(with_deleted=True)] == [two.id, one.id]


async def test_parents_are_cancelled_before_their_children(async_durable: AsyncHarness, db: Any) -> None:
    """Otherwise cancelled children would release a parent, and it would run before it is cancelled."""

    class Parent(Machine[int, int]):
        @step
        async def start(self, ctx: Context[int]) -> Outcome[int]:
            return ScheduleChildren([Spec(Plain, n) for n in range(ctx.state)], then=self.join)

        @step
        async def join(self, ctx: Context[int]) -> Outcome[int]:
            return Done(len(ctx.children))

    parent = await async_durable.insert(Parent, 600)
    with pytest.raises(AssertionError, match="still runs"):
        await async_durable.drain(max_steps=1)
    assert await async_durable.cancel_all() == 601
    batches = await db.fetch(
        """select min(id) as first, count(*) as count from gen_durable.gen_durable
            group by finished_at order by finished_at"""
    )
    assert [row["count"] for row in batches] == [500, 101]
    assert batches[0]["first"] == parent.id


@pytest.mark.clause("RTY-5")
async def test_taken_key_blocks_only_its_instance_in_a_bulk_retry(
    async_durable: AsyncHarness, db: Any
) -> None:
    specs = [Spec(Plain, n, correlation_key=f"order:{n}") for n in range(20)]
    refs = await async_durable.insert_all(specs)
    assert await async_durable.cancel_all() == 20
    heirs = [await async_durable.insert(Plain, 0, correlation_key=f"order:{n}") for n in (0, 7, 19)]
    assert await async_durable.retry_all(status=Status.CANCELLED, reason="by mistake", actor="eve") == 17
    taken = [refs[n].id for n in (0, 7, 19)]
    for ref in refs:
        found = await async_durable.get(ref)
        assert found is not None
        assert found.status is (Status.CANCELLED if ref.id in taken else Status.RUNNABLE)
    assert await audit(db, refs[1].id) == [("cancelled", None, None), ("retried", "eve", "by mistake")]
    assert [event for event, _, _ in await audit(db, taken[0])] == ["cancelled"]
    await async_durable.drain()
    assert await job_states(db, [heir.id for heir in heirs]) == ["SUCCEEDED"] * 3
    assert await async_durable.retry_all() == 3, "the keys are free again"
