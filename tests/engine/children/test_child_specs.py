"""A child is specified like an insert; one whose key is taken is neither inserted nor waited for."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from gen_durable import (
    Context,
    Done,
    Inserted,
    Machine,
    Outcome,
    ScheduleChildren,
    Spec,
    Status,
    Stop,
    Worker,
    step,
)
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import PATIENCE


class Leaf(Machine[int, int]):
    """Doubles; fails for negative numbers."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state * 2) if ctx.state >= 0 else Stop(f"{ctx.state} is negative")


async def test_a_child_whose_key_is_taken_is_not_waited_for(
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
        # The holder never ends: whoever waited for it would wait for ever.
        holder = await worker.insert(Leaf, 9, queue="nobody", unique_key="taken")
        assert isinstance(holder, Inserted)
        some, none, twice, empty = [
            await worker.insert(Parent, keys)
            for keys in (["taken", "free"], ["taken", "taken"], ["once", "once"], list[str]())
        ]
        assert (await worker.wait(some, timeout=PATIENCE)).result == [1]
        assert (await worker.wait(none, timeout=PATIENCE)).result == []
        assert (await worker.wait(twice, timeout=PATIENCE)).result == [0]
        assert (await worker.wait(empty, timeout=PATIENCE)).result == []
    told = sorted(each.getMessage() for each in caplog.records if "not inserted" in each.getMessage())
    assert told == [
        f"children not inserted: Parent {parent.id}, step start; the keys of {count} of 2 children are taken"
        for parent, count in ((some, 1), (none, 2), (twice, 1))
    ]


class Family(msgspec.Struct):
    names: list[str]


async def test_a_child_is_specified_like_an_insert(durable_dsn: str) -> None:
    class Parent(Machine[None, None]):
        @step
        async def start(self, ctx: Context[None]) -> Outcome[None]:
            return ScheduleChildren(
                [
                    Spec(
                        Heir,
                        Family(["a"]),
                        step=Heir.second,
                        queue="quiet",
                        priority=7,
                        schedule_in=AN_HOUR,
                        concurrency_key=("tenant", 7),
                        correlation_key="heir:1",
                        unique_key="heir",
                        unique_scope=[Status.RUNNABLE, Status.DONE],
                    ),
                    Spec(Heir, Family([])),
                ],
                then=self.start,
            )

    class Heir(Machine[Family, None], version=4, queue="heirs"):
        @step
        async def first(self, ctx: Context[Family]) -> Outcome[None]:
            return Done()

        @step
        async def second(self, ctx: Context[Family]) -> Outcome[None]:
            return Done()

    async with Worker([Parent], dsn=durable_dsn, settings=CALM) as worker:
        parent = await worker.insert(Parent)
        await worker.wait(parent, timeout=PATIENCE, until="settled")
        first, second = await worker.children(parent)
        assert await worker.get("heir:1") == first
    assert (first.machine, first.version, first.step, first.queue, first.priority) == (
        "Heir",
        4,
        "second",
        "quiet",
        7,
    )
    assert (first.concurrency_key, first.correlation_key, first.unique_key) == ("tenant:7", "heir:1", b"heir")
    assert AN_HOUR - timedelta(seconds=5) < first.eligible_at - first.inserted_at <= AN_HOUR
    assert (second.step, second.queue, second.priority, second.parent_id) == ("first", "heirs", 0, parent.id)
