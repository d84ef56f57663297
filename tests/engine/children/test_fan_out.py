"""10,000 children of one parent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from gen_durable import Context, Done, Machine, Outcome, Queue, ScheduleChildren, Spec, Status, Worker, step
from tests.support.settings import CALM

MANY = 10_000


class Leaf(Machine[int, int]):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


class Crowd(Machine[int, int]):
    @step
    async def start(self, ctx: Context[int]) -> Outcome[int]:
        return ScheduleChildren([Spec(Leaf, n) for n in range(ctx.state)], then=self.end)

    @step
    async def end(self, ctx: Context[int]) -> Outcome[int]:
        assert [child.state for child in ctx.children] == list(range(ctx.state))
        return Done(sum(ctx.children.results(Leaf)))


async def test_parent_of_ten_thousand_children_finishes(durable_dsn: str, db: Any) -> None:
    async with Worker(
        [Crowd, Leaf], dsn=durable_dsn, settings=CALM, queues={"default": Queue(concurrency=500)}
    ) as worker:
        ref = await worker.insert(Crowd, MANY)
        ended = await worker.wait(ref, timeout=timedelta(seconds=50))
        assert ended.result == sum(range(MANY))
        assert await worker.count(Leaf, status=Status.DONE) == MANY
        # Each child ran once.
        assert (
            await db.fetchval("select sum(execution) from gen_durable.gen_durable where fsm = 'Leaf'") == MANY
        )
