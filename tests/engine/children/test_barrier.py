"""Children: inserted with the outcome of their parent, waited for by round, seen with how they ended."""

from __future__ import annotations

import asyncio
from typing import Any

from gen_durable import (
    AsyncClient,
    Context,
    Done,
    EncodeError,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Spec,
    Status,
    Stop,
    Worker,
    step,
)
from tests.support.rows import row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, happens


class Leaf(Machine[int, int]):
    """Doubles; fails for negative numbers."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state * 2) if ctx.state >= 0 else Stop(f"{ctx.state} is negative")


async def test_children_and_the_sleep_of_their_parent_are_one_commit(durable_dsn: str, db: Any) -> None:
    class Parent(Machine[int, None]):
        @step
        async def start(self, ctx: Context[int]) -> Outcome[None]:
            bad: Any = "no number"
            return ScheduleChildren([Spec(Leaf, 1), Spec(Leaf, bad if ctx.state else 2)], then=self.end)

        @step
        async def end(self, ctx: Context[int]) -> Outcome[None]:
            return Done()

        def handle(self, error: Exception, ctx: Context[int]) -> Outcome[None]:
            assert isinstance(error, EncodeError)
            return Stop(error)

    # Nobody runs the children: what is there came with the commit of the parent.
    async with Worker([Parent], dsn=durable_dsn, settings=CALM) as worker:
        good, bad = await worker.insert(Parent, 0), await worker.insert(Parent, 1)
        parked = await worker.wait(good, timeout=PATIENCE, until="settled")
        failed = await worker.wait(bad, timeout=PATIENCE)
        children = await worker.children(good)
    assert (parked.status, parked.children_pending, parked.step_seq) == (Status.AWAITING_CHILDREN, 2, 1)
    assert [(child.state, child.status, child.parent_id) for child in children] == [
        (1, Status.RUNNABLE, good.id),
        (2, Status.RUNNABLE, good.id),
    ]
    assert failed.status is Status.FAILED
    assert await db.fetchval("select count(*) from gen_durable.gen_durable where parent_id = $1", bad.id) == 0


async def test_the_parent_sees_its_children_in_order_with_results_and_errors(durable_dsn: str) -> None:
    class Parent(Machine[None, list[Any]]):
        @step
        async def start(self, ctx: Context[None]) -> Outcome[list[Any]]:
            assert not ctx.children
            return ScheduleChildren([Spec(Leaf, n) for n in (3, -1, 1)], then=self.join)

        @step
        async def join(self, ctx: Context[None]) -> Outcome[list[Any]]:
            assert [child.state for child in ctx.children.failed] == [-1]
            assert ctx.children.results(Leaf) == [6, 2]
            if ctx.attempt < 2:
                return Retry()
            return Done(
                [[one.machine, one.status, one.state, one.result, one.last_error] for one in ctx.children]
            )

    async with Worker([Parent, Leaf], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(Parent), timeout=PATIENCE)
    assert ended.result == [
        ["Leaf", "done", 3, 6, None],
        ["Leaf", "failed", -1, None, "-1 is negative"],
        ["Leaf", "done", 1, 2, None],
    ]


async def test_children_are_for_the_woken_step_and_not_for_those_after_it(durable_dsn: str) -> None:
    class Parent(Machine[None, list[int]]):
        @step
        async def start(self, ctx: Context[None]) -> Outcome[list[int]]:
            return ScheduleChildren([Spec(Leaf, 1)], then=self.join)

        @step
        async def join(self, ctx: Context[None]) -> Outcome[list[int]]:
            assert len(ctx.children) == 1
            return Next(self.chained)

        @step
        async def chained(self, ctx: Context[None]) -> Outcome[list[int]]:
            assert not ctx.children
            return Next(self.requeued, requeue=True)

        @step
        async def requeued(self, ctx: Context[None]) -> Outcome[list[int]]:
            return Done([len(ctx.children)])

    async with Worker([Parent, Leaf], dsn=durable_dsn, settings=CALM) as worker:
        assert (await worker.wait(await worker.insert(Parent), timeout=PATIENCE)).result == [0]


async def test_each_round_has_its_own_children(durable_dsn: str) -> None:
    class Rounds(Machine[list[list[int]], list[list[int]]]):
        @step
        async def start(self, ctx: Context[list[list[int]]]) -> Outcome[list[list[int]]]:
            return ScheduleChildren([Spec(Leaf, n) for n in (1, 2)], then=self.second)

        @step
        async def second(self, ctx: Context[list[list[int]]]) -> Outcome[list[list[int]]]:
            ctx.state.append(ctx.children.results(Leaf))
            return ScheduleChildren([Spec(Leaf, n) for n in (10, 20, 30)], then=self.end)

        @step
        async def end(self, ctx: Context[list[list[int]]]) -> Outcome[list[list[int]]]:
            return Done([*ctx.state, ctx.children.results(Leaf)])

    async with Worker([Rounds, Leaf], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Rounds, [])
        assert (await worker.wait(ref, timeout=PATIENCE)).result == [[2, 4], [20, 40, 60]]
        assert [child.state for child in await worker.children(ref)] == [10, 20, 30]
        assert [child.state for child in await worker.children(ref, every=True)] == [1, 2, 10, 20, 30]


async def test_children_may_have_children_of_their_own(durable_dsn: str) -> None:
    class Tree(Machine[int, int]):
        """Counts the leaves of a tree three levels deep, three branches each."""

        @step
        async def grow(self, ctx: Context[int]) -> Outcome[int]:
            if ctx.state == 0:
                return Done(1)
            return ScheduleChildren([Spec(Tree, ctx.state - 1) for _ in range(3)], then=self.count)

        @step
        async def count(self, ctx: Context[int]) -> Outcome[int]:
            return Done(sum(ctx.children.results(Tree)))

    async with Worker([Tree], dsn=durable_dsn, settings=CALM) as worker:
        root = await worker.insert(Tree, 3)
        assert (await worker.wait(root, timeout=PATIENCE)).result == 27
        assert await worker.count(Tree, status=Status.DONE) == 1 + 3 + 9 + 27


async def test_a_child_of_another_round_does_not_touch_the_barrier(durable_dsn: str, db: Any) -> None:
    may_go = asyncio.Event()
    is_there = asyncio.Event()

    class Slow(Machine[None, str]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[str]:
            is_there.set()
            await may_go.wait()
            return Done(f"child of {ctx.parent_id}")

    class Parent(Machine[None, None]):
        @step
        async def start(self, ctx: Context[None]) -> Outcome[None]:
            return ScheduleChildren([Spec(Slow)], then=self.end)

        @step
        async def end(self, ctx: Context[None]) -> Outcome[None]:
            return Done()

    async with (
        Worker([Parent, Slow], dsn=durable_dsn, settings=CALM) as worker,
        AsyncClient(durable_dsn, settings=CALM) as client,
    ):
        parent = await worker.insert(Parent)
        await happens(is_there)
        (child,) = await client.children(parent)
        # Somebody moves the parent on by hand, to another round.
        await db.execute("update gen_durable.gen_durable set spawn_round = 99 where id = $1", parent.id)
        may_go.set()
        assert (await client.wait(child.id, timeout=PATIENCE)).result == f"child of {parent.id}"
        row = await row_of(db, parent.id)
    assert (row["status"], row["children_pending"]) == ("awaiting_children", 1)
