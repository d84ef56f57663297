"""What runs first, and when: priorities, due times and delays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

from gen_durable import AsyncClient, Context, Done, Machine, Next, Outcome, Queue, Spec, Status, Worker, step
from gen_durable.refs import InsertOptions
from tests.support.rows import row_of
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import PATIENCE

ONE_SLOT = {"default": Queue(concurrency=1)}
SHORT = timedelta(milliseconds=400)


class Turn(Machine[int, int]):
    """Notes the order in which its instances run; that of their commits may differ."""

    order: ClassVar[list[int]] = []

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        self.order.append(ctx.id)
        return Done(ctx.state)


async def _order(dsn: str, client: AsyncClient, refs: list[Any]) -> list[int]:
    """In which order a worker with one slot runs them."""
    Turn.order.clear()
    async with Worker([Turn], dsn=dsn, settings=CALM, queues=ONE_SLOT):
        await client.wait_all(refs, timeout=PATIENCE)
    return Turn.order


async def test_smaller_priorities_run_first_whatever_their_number(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn, settings=CALM) as client:
        priorities = [5, -3, 0, 32767, -32768, 100, 5, -3, 1]
        refs = await client.insert_all([Spec(Turn, n, priority=p) for n, p in enumerate(priorities)])
        order = await _order(durable_dsn, client, refs)
    assert order == [
        ref.id for _, ref in sorted(zip(priorities, refs, strict=True), key=lambda pair: pair[0])
    ]


async def test_among_equals_the_longest_due_runs_first_and_then_the_smallest_id(durable_dsn: str) -> None:
    now = datetime.now(UTC)
    ages = [3, 1, 3, 2, 1, 2, 3]
    async with AsyncClient(durable_dsn, settings=CALM) as client:
        refs = await client.insert_all(
            [Spec(Turn, n, eligible_at=now - timedelta(minutes=age)) for n, age in enumerate(ages)]
        )
        order = await _order(durable_dsn, client, refs)
    assert order == [ref.id for _, ref in sorted(zip(ages, refs, strict=True), key=lambda pair: -pair[0])]


async def test_urgent_rows_of_the_future_do_not_hold_up_those_that_are_due(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn, settings=CALM) as client:
        await client.insert_all([Spec(Turn, 0, priority=-1, schedule_in=AN_HOUR) for _ in range(1500)])
        due = await client.insert_all([Spec(Turn, n, priority=9) for n in range(5)])
        assert await _order(durable_dsn, client, due) == [ref.id for ref in due]


async def test_a_scheduled_instance_runs_when_its_time_has_come(durable_dsn: str) -> None:
    async with Worker([Turn], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Turn, 1, schedule_in=SHORT)
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert ended.eligible_at - ended.inserted_at == SHORT
    assert ended.finished_at is not None
    assert SHORT <= ended.finished_at - ended.inserted_at < SHORT + timedelta(seconds=1)


_FIRST = datetime(2101, 1, 1, tzinfo=UTC)
_SECOND = datetime(2102, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (InsertOptions(eligible_at=_FIRST, schedule_at=_SECOND, schedule_in=AN_HOUR), _FIRST),
        (InsertOptions(eligible_at=_SECOND, schedule_in=AN_HOUR), _SECOND),
        (InsertOptions(schedule_at=_SECOND, schedule_in=AN_HOUR), _SECOND),
    ],
)
async def test_eligible_at_wins_over_schedule_at_and_both_over_schedule_in(
    durable_dsn: str, db: Any, options: InsertOptions, wanted: datetime
) -> None:
    async with AsyncClient(durable_dsn, settings=CALM) as client:
        ref = await client.insert(Turn, 1, **options)
    assert (await row_of(db, ref.id))["eligible_at"] == wanted


async def test_a_moment_in_the_past_is_due_at_once(durable_dsn: str) -> None:
    async with Worker([Turn], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Turn, 1, eligible_at=datetime(2001, 1, 1, tzinfo=UTC))
        assert (await worker.wait(ref, timeout=PATIENCE)).result == 1


async def test_the_step_after_a_delay_starts_no_earlier(durable_dsn: str) -> None:
    class Walk(Machine[None, None]):
        @step
        async def one(self, ctx: Context[None]) -> Outcome[None]:
            return Next(self.two, delay=SHORT)

        @step
        async def two(self, ctx: Context[None]) -> Outcome[None]:
            return Done()

    async with Worker([Walk], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(Walk), timeout=PATIENCE)
    assert ended.finished_at is not None
    assert SHORT <= ended.finished_at - ended.inserted_at < SHORT + timedelta(seconds=1)


async def test_queues_are_served_side_by_side_with_their_own_slots(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn, settings=CALM) as client:
        refs = await client.insert_all([Spec(Turn, n, queue=f"queue {n % 3}") for n in range(9)])
        queues: dict[str, int | Queue] = {"queue 0": 1, "queue 1": Queue(concurrency=5)}
        async with Worker([Turn], dsn=durable_dsn, settings=CALM, queues=queues):
            served = [ref for n, ref in enumerate(refs) if n % 3 < 2]
            await client.wait_all(served, timeout=PATIENCE)
        left = [one.state for one in await client.list(Turn, status=Status.RUNNABLE)]
    assert sorted(left) == [2, 5, 8]
