"""The order of picks: priorities, due times and delays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from gen_durable import AsyncClient, Context, Done, Machine, Outcome, Queue, Spec, Worker, step
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import PATIENCE

ONE_SLOT = {"default": Queue(concurrency=1)}
SHORT = timedelta(milliseconds=400)


class Turn(Machine[int, int]):
    """Records the order in which its instances run; the order of commits may differ."""

    order: ClassVar[list[int]] = []

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        self.order.append(ctx.id)
        return Done(ctx.state)


async def _order(dsn: str, client: AsyncClient, refs: list[Any]) -> list[int]:
    """Run them on a worker with concurrency 1, and return the order."""
    Turn.order.clear()
    async with Worker([Turn], dsn=dsn, settings=CALM, queues=ONE_SLOT):
        await client.wait_all(refs, timeout=PATIENCE)
    return Turn.order


async def test_smaller_priorities_run_first(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn, settings=CALM) as client:
        priorities = [5, -3, 0, 32767, -32768, 100, 5, -3, 1]
        refs = await client.insert_all([Spec(Turn, n, priority=p) for n, p in enumerate(priorities)])
        order = await _order(durable_dsn, client, refs)
    assert order == [
        ref.id for _, ref in sorted(zip(priorities, refs, strict=True), key=lambda pair: pair[0])
    ]


async def test_future_rows_do_not_delay_due_rows(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn, settings=CALM) as client:
        await client.insert_all([Spec(Turn, 0, priority=-1, schedule_in=AN_HOUR) for _ in range(1500)])
        due = await client.insert_all([Spec(Turn, n, priority=9) for n in range(5)])
        assert await _order(durable_dsn, client, due) == [ref.id for ref in due]


async def test_scheduled_instance_runs_when_it_is_due(durable_dsn: str) -> None:
    async with Worker([Turn], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Turn, 1, schedule_in=SHORT)
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert ended.eligible_at - ended.inserted_at == SHORT
    assert ended.finished_at is not None
    assert SHORT <= ended.finished_at - ended.inserted_at < SHORT + timedelta(seconds=1)


async def test_instance_scheduled_in_the_past_runs_at_once(durable_dsn: str) -> None:
    async with Worker([Turn], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Turn, 1, eligible_at=datetime(2001, 1, 1, tzinfo=UTC))
        assert (await worker.wait(ref, timeout=PATIENCE)).result == 1
