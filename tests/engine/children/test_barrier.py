"""The children barrier: rounds, refused children, and what the woken step sees."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import (
    Context,
    Done,
    Inserted,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Spec,
    Stop,
    Worker,
    step,
)
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE


class Leaf(Machine[int, int]):
    """Doubles; fails for negative numbers."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state * 2) if ctx.state >= 0 else Stop(f"{ctx.state} is negative")


@pytest.mark.clause("CHD-8", "CHD-9")
async def test_parent_sees_children_in_order_with_results_and_errors(durable_dsn: str) -> None:
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


@pytest.mark.clause("CHD-10", "CHD-11")
async def test_children_are_visible_to_the_woken_step_only(durable_dsn: str) -> None:
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


@pytest.mark.clause("CHD-10", "CHD-11")
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


@pytest.mark.clause("CHD-4", "CHD-5")
async def test_barrier_ignores_children_whose_key_is_taken(
    durable_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Parent(Machine[list[str], list[int]]):
        @step
        async def start(self, ctx: Context[list[str]]) -> Outcome[list[int]]:
            specs = [Spec(Leaf, n, unique_key=key) for n, key in enumerate(ctx.state)]
            return ScheduleChildren(specs, then=self.end)

        @step
        async def end(self, ctx: Context[list[str]]) -> Outcome[list[int]]:
            return Done([child.state for child in ctx.children])

    async with Worker([Parent, Leaf], dsn=durable_dsn, settings=CALM) as worker:
        # The holder never ends, so a parent that waited for it would hang.
        holder = await worker.insert(Leaf, 9, queue="not served", unique_key="taken")
        assert isinstance(holder, Inserted)
        some, none, twice, empty = [
            await worker.insert(Parent, keys)
            for keys in (["taken", "free"], ["taken", "taken"], ["once", "once"], list[str]())
        ]
        assert (await worker.wait(some, timeout=PATIENCE)).result == [1]
        assert (await worker.wait(none, timeout=PATIENCE)).result == []
        assert (await worker.wait(twice, timeout=PATIENCE)).result == [0]
        assert (await worker.wait(empty, timeout=PATIENCE)).result == []
    warnings = sorted(each.getMessage() for each in caplog.records if "not inserted" in each.getMessage())
    assert warnings == [
        f"children not inserted: Parent {parent.id}, step start; the keys of {count} of 2 children are taken"
        for parent, count in ((some, 1), (none, 2), (twice, 1))
    ]
