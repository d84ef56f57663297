"""One execution at a time per concurrency key, without delaying other rows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gen_durable import Context, Done, Machine, Next, Outcome, Queue, Retry, Spec, Status, Worker, step
from gen_durable.telemetry import ConcurrencyContended, StepStop
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import PATIENCE, Events, happens


class Critical(Machine[int, int]):
    """Counts concurrent executions, over two steps; the second is chained or requeued."""

    def __init__(self) -> None:
        self.inside: set[int] = set()
        self.most = 0
        self.order: list[int] = []

    async def _stay(self, ctx: Context[int]) -> None:
        self.inside.add(ctx.id)
        self.most = max(self.most, len(self.inside))
        await asyncio.sleep(0.001)
        self.inside.remove(ctx.id)

    @step
    async def one(self, ctx: Context[int]) -> Outcome[int]:
        self.order.append(ctx.state)
        await self._stay(ctx)
        return Next(self.two, requeue=ctx.state % 3 == 0)

    @step
    async def two(self, ctx: Context[int]) -> Outcome[int]:
        await self._stay(ctx)
        return Retry() if ctx.attempt == 0 and ctx.state % 5 == 0 else Done(ctx.state)


@pytest.mark.clause("CON-1", "CON-2")
async def test_two_workers_never_run_one_key_concurrently(durable_dsn: str) -> None:
    machine = Critical()
    async with (
        Worker([machine], dsn=durable_dsn, settings=CALM) as first,
        Worker([machine], dsn=durable_dsn, settings=CALM) as second,
    ):
        events = [Events(first), Events(second)]
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while not all(one.of(StepStop) for one in events):  # until both workers have run some
                refs = await first.insert_all([Spec(machine, n, concurrency_key="one") for n in range(30)])
                ended = await first.wait_all(refs, timeout=PATIENCE)
                assert [one.result for one in ended] == list(range(30))
    assert machine.most == 1


@pytest.mark.clause("CON-1", "CON-2")
async def test_distinct_keys_run_concurrently(durable_dsn: str) -> None:
    met = asyncio.Barrier(8)

    class Meeting(Machine[int, None]):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[None]:
            await met.wait()
            return Done()

    async with Worker([Meeting], dsn=durable_dsn, settings=CALM) as worker:
        refs = await worker.insert_all([Spec(Meeting, n, concurrency_key=("tenant", n)) for n in range(8)])
        ended = await worker.wait_all(refs, timeout=PATIENCE)
    assert {one.status for one in ended} == {Status.DONE}


@pytest.mark.clause("CON-3")
async def test_rows_of_a_key_run_by_priority_then_time_then_id(durable_dsn: str, db: Any) -> None:
    class Turn(Machine[int, None]):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[None]:
            order.append(ctx.id)
            return Done()

    order: list[int] = []
    async with Worker([Turn], dsn=durable_dsn, settings=CALM, queues={"elsewhere": 1}) as client:
        refs = await client.insert_all(
            [Spec(Turn, n, concurrency_key="one", priority=(n * 7) % 3) for n in range(30)]
        )
        await client.insert(Turn, 99, concurrency_key="one", priority=-9, schedule_in=AN_HOUR)
        # Every other row was due a second earlier; the others run in id order.
        await db.execute(
            "update gen_durable.gen_durable set eligible_at = now() - id % 2 * interval '1 s' where priority >= 0"
        )
        wanted = await db.fetch(
            "select id from gen_durable.gen_durable where priority >= 0 order by priority, eligible_at, id"
        )
        async with (
            Worker([Turn], dsn=durable_dsn, settings=CALM),
            Worker([Turn], dsn=durable_dsn, settings=CALM),
        ):
            await client.wait_all(refs, timeout=PATIENCE)
    assert order == [row["id"] for row in wanted]


@pytest.mark.clause("CON-4", "TEL-6")
async def test_saturated_key_does_not_starve_other_rows(durable_dsn: str, db: Any) -> None:
    is_held, may_go = asyncio.Event(), asyncio.Event()

    class Keyed(Machine[str, None]):
        @step
        async def run(self, ctx: Context[str]) -> Outcome[None]:
            if ctx.state == "holder":
                is_held.set()
                await may_go.wait()
            return Done()

    async with Worker(
        [Keyed], dsn=durable_dsn, settings=CALM, queues={"default": Queue(concurrency=10)}
    ) as worker:
        events = Events(worker)
        holder = await worker.insert(Keyed, "holder", concurrency_key="busy")
        await happens(is_held)
        # They are ahead of all other rows, by priority.
        busy = await worker.insert_all(
            [Spec(Keyed, "busy", concurrency_key="busy", priority=-5) for _ in range(2000)]
        )
        others = await worker.insert_all(
            [Spec(Keyed, "other", concurrency_key=("key", n % 7)) for n in range(35)]
            + [Spec(Keyed, "other", priority=3) for _ in range(35)]
        )
        assert {one.status for one in await worker.wait_all(others, timeout=PATIENCE)} == {Status.DONE}
        assert await worker.count(Keyed, concurrency_key="busy", status=Status.RUNNABLE) == 2000
        event = await events.wait(ConcurrencyContended)
        assert (event.name, event.fsm, event.concurrency_key) == ("concurrency.contended", "Keyed", "busy")
        assert event.id in {ref.id for ref in busy}
        assert event.count >= 1
        # When the key is free they run one by one, in order.
        may_go.set()
        await worker.wait(holder, timeout=PATIENCE)
        assert {one.status for one in await worker.wait_all(busy[:50], timeout=PATIENCE)} == {Status.DONE}
