"""Control verbs on parents and children."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from gen_durable import (
    AlreadyFinished,
    Await,
    Cancelled,
    CancelRequested,
    Context,
    Done,
    Machine,
    NotRetried,
    Outcome,
    Ref,
    Retried,
    Retry,
    ScheduleChildren,
    Spec,
    Status,
    Stop,
    Worker,
    step,
)
from gen_durable._core.model import Execution
from gen_durable._runtime.picker import Picker
from gen_durable.testing import AsyncHarness
from tests.support.machines import REASON, Order, Sitter
from tests.support.rows import audit, job_states
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, eventually, happens


class Leaf(Machine[int, int]):
    """Doubles positive numbers, waits for a signal with zero, fails with negative ones."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        if ctx.state == 0:
            return Await("go", then=self.went)
        return Done(2 * ctx.state) if ctx.state > 0 else Stop("negative")

    @step
    async def went(self, ctx: Context[int]) -> Outcome[int]:
        return Done(0)


class Parent(Machine[list[int], list[str]]):
    """Returns how its children ended."""

    @step
    async def start(self, ctx: Context[list[int]]) -> Outcome[list[str]]:
        return ScheduleChildren([Spec(Leaf, n) for n in ctx.state], then=self.join)

    @step
    async def join(self, ctx: Context[list[int]]) -> Outcome[list[str]]:
        return Done([f"{one.status} {one.result}" for one in ctx.children])


class Tree(Machine[int, int]):
    """A tree of this many levels, two branches each; the leaves await a signal."""

    @step
    async def grow(self, ctx: Context[int]) -> Outcome[int]:
        if ctx.state == 0:
            return Await("fall", then=self.end)
        return ScheduleChildren([Spec(Tree, ctx.state - 1) for _ in range(2)], then=self.end)

    @step
    async def end(self, ctx: Context[int]) -> Outcome[int]:
        return Done(len(ctx.children))


async def _statuses(client: Any) -> dict[int, str]:
    return {one.id: one.status.value for one in await client.list(limit=1000)}


@pytest.mark.clause("CAN-8")
async def test_cancelled_child_releases_its_parent(
    async_durable: AsyncHarness,
) -> None:
    parent = await async_durable.insert(Parent, [1, 0, -1])
    await async_durable.drain()
    one = await async_durable.children(parent)
    assert async_durable.assert_at(parent, "join").children_pending == 1
    assert await async_durable.cancel(one[1].id, reason=REASON) == Cancelled(one[1].id)
    assert async_durable.assert_at(parent, "join").status is Status.RUNNABLE
    await async_durable.drain()
    assert async_durable.assert_done(parent) == ["done 2", "cancelled None", "failed None"]


async def test_cancelled_executing_child_releases_its_parent_when_it_ends(durable_dsn: str) -> None:
    class Sits(Machine[None, str]):
        @step
        async def start(self, ctx: Context[None]) -> Outcome[str]:
            return ScheduleChildren([Spec(Sitter, "", step="looks")], then=self.join)

        @step
        async def join(self, ctx: Context[None]) -> Outcome[str]:
            return Done(", ".join(one.status.value for one in ctx.children))

    machine = Sitter()
    async with Worker([Sits, machine], dsn=durable_dsn, settings=CALM) as worker:
        parent = await worker.insert(Sits)
        await happens(machine.is_there)
        (child,) = await worker.children(parent)
        assert await worker.cancel(child.id) == CancelRequested(child.id)
        assert (await worker.wait(parent, timeout=PATIENCE)).result == "cancelled"


@pytest.mark.clause("CAN-8")
async def test_cancel_without_cascade_leaves_children_alone(async_durable: AsyncHarness) -> None:
    parent = await async_durable.insert(Parent, [0])
    await async_durable.drain()
    (child,) = await async_durable.children(parent)
    assert await async_durable.cancel(parent) == Cancelled(parent.id)
    assert async_durable.assert_cancelled(parent).children_pending == 0
    await async_durable.signal(child.id, "go")
    await async_durable.drain()
    async_durable.assert_done(child.id)
    async_durable.assert_cancelled(parent)


@pytest.mark.clause("CAN-8")
async def test_cascade_cancels_all_descendants(async_durable: AsyncHarness, db: Any) -> None:
    tree = await async_durable.insert(Tree, 3)
    other = await async_durable.insert(Tree, 1)
    await async_durable.drain()
    assert await async_durable.cancel(tree, cascade=True, reason=REASON, actor="ann") == Cancelled(tree.id)
    statuses = await _statuses(async_durable)
    assert len(statuses) == 15 + 3
    cancelled = {id for id, status in statuses.items() if status == "cancelled"}
    assert len(cancelled) == 15
    assert statuses[other.id] == "awaiting_children"
    for id in cancelled:
        assert await audit(db, id) == [("cancelled", "ann", REASON)]
    assert await job_states(db, sorted(cancelled)) == ["CANCELLED"] * 15


async def test_cascade_continues_below_ended_descendants(async_durable: AsyncHarness) -> None:
    """The middle of the tree was cancelled alone, and the root has ended."""
    tree = await async_durable.insert(Tree, 2)
    await async_durable.drain()
    for child in await async_durable.children(tree):
        await async_durable.cancel(child.id)
    await async_durable.drain()
    assert async_durable.assert_done(tree) == 2
    assert sorted((await _statuses(async_durable)).values()).count("awaiting_signal") == 4
    assert await async_durable.cancel(tree, cascade=True) == AlreadyFinished(tree.id, Status.DONE)
    assert "awaiting_signal" not in (await _statuses(async_durable)).values()


@pytest.mark.clause("RTY-6")
async def test_waiting_parent_waits_for_a_retried_child(
    async_durable: AsyncHarness,
) -> None:
    parent = await async_durable.insert(Parent, [-1, 0])
    await async_durable.drain()
    failed, waiting = await async_durable.children(parent)
    assert async_durable.assert_at(parent, "join").children_pending == 1
    assert await async_durable.retry(failed.id, state=5) == Retried(failed.id)
    assert async_durable.assert_at(parent, "join").children_pending == 2
    await async_durable.signal(waiting.id, "go")
    assert (await async_durable.drain()).done == 3
    assert async_durable.assert_done(parent) == ["done 10", "done 0"]


async def test_retried_child_does_not_affect_a_parent_that_continued(
    async_durable: AsyncHarness,
) -> None:
    parent = await async_durable.insert(Parent, [-1])
    await async_durable.drain()
    assert async_durable.assert_done(parent) == ["failed None"]
    (child,) = await async_durable.children(parent)
    assert await async_durable.retry(child.id, state=5) == Retried(child.id)
    await async_durable.drain()
    assert async_durable.assert_done(child.id) == 10
    assert async_durable.assert_done(parent) == ["failed None"]


async def test_parent_does_not_wait_for_a_retried_child_of_an_earlier_round(
    async_durable: AsyncHarness,
) -> None:
    class Rounds(Machine[None, int]):
        @step
        async def first(self, ctx: Context[None]) -> Outcome[int]:
            return ScheduleChildren([Spec(Leaf, -1)], then=self.second)

        @step
        async def second(self, ctx: Context[None]) -> Outcome[int]:
            return ScheduleChildren([Spec(Leaf, 0)], then=self.end)

        @step
        async def end(self, ctx: Context[None]) -> Outcome[int]:
            return Done(len(ctx.children))

    parent = await async_durable.insert(Rounds)
    await async_durable.drain()
    old, waiting = await async_durable.children(parent, every=True)
    assert await async_durable.retry(old.id, state=0) == Retried(old.id)
    assert async_durable.assert_at(parent, "end").children_pending == 1
    await async_durable.signal(waiting.id, "go")
    await async_durable.drain()
    assert async_durable.assert_done(parent) == 1
    async_durable.assert_awaiting(old.id, "go")


@pytest.mark.clause("RTY-6")
async def test_retried_parent_waits_at_its_barrier_again(async_durable: AsyncHarness) -> None:
    """Its join step sees only ended children, after any number of cancels and retries."""
    parent = await async_durable.insert(Parent, [1, 0, 0])
    await async_durable.drain()
    _, second, third = await async_durable.children(parent)
    await async_durable.cancel(parent)
    await async_durable.signal(second.id, "go")
    await async_durable.drain()
    assert await async_durable.retry(parent) == Retried(parent.id)
    assert async_durable.assert_at(parent, "join").children_pending == 1
    await async_durable.drain()
    await async_durable.signal(third.id, "go")
    await async_durable.drain()
    assert async_durable.assert_done(parent) == ["done 2", "done 0", "done 0"]


async def test_cancelled_tree_can_be_retried(async_durable: AsyncHarness) -> None:
    """A parent and its children were cancelled, and continue after a retry."""
    parent = await async_durable.insert(Parent, [0, 0])
    await async_durable.drain()
    await async_durable.cancel(parent, cascade=True)
    assert await async_durable.retry_all() == 3
    assert async_durable.assert_at(parent, "join").children_pending == 2
    for child in await async_durable.children(parent):
        async_durable.assert_awaiting(child.id, "go")
        await async_durable.signal(child.id, "go")
    await async_durable.drain()
    assert async_durable.assert_done(parent) == ["done 0", "done 0"]


async def test_retried_join_step_sees_its_children(async_durable: AsyncHarness) -> None:
    class Sum(Machine[bool, int]):
        @step
        async def start(self, ctx: Context[bool]) -> Outcome[int]:
            return ScheduleChildren([Spec(Leaf, n) for n in (1, 2, 3)], then=self.join)

        @step
        async def join(self, ctx: Context[bool]) -> Outcome[int]:
            return Done(sum(ctx.children.results(Leaf))) if ctx.state else Stop("not yet")

    parent = await async_durable.insert(Sum, False)
    await async_durable.drain()
    async_durable.assert_failed(parent, match="not yet")
    assert await async_durable.retry(parent) == Retried(parent.id)
    await async_durable.drain()
    async_durable.assert_failed(parent, match="not yet")
    assert await async_durable.retry(parent, state=True) == Retried(parent.id)
    await async_durable.drain()
    assert async_durable.assert_done(parent) == 12
    assert [one.result for one in await async_durable.children(parent)] == [2, 4, 6]
    assert await async_durable.retry(parent) == NotRetried(parent.id, Status.DONE)


@pytest.mark.clause("DEL-4")
async def test_deleted_child_releases_its_parent(async_durable: AsyncHarness) -> None:
    parent = await async_durable.insert(Parent, [0])
    await async_durable.drain()
    (child,) = await async_durable.children(parent)
    await async_durable.soft_delete(child.id)
    await async_durable.drain()
    assert async_durable.assert_done(parent) == ["cancelled None"]


async def test_worker_finds_a_parent_released_by_another_process(durable_dsn: str) -> None:
    """A cancel from another process releases the parent; the worker finds it by polling."""
    async with Worker([Parent, Leaf, Order], dsn=durable_dsn, settings=CALM) as worker:
        parent = await worker.insert(Parent, [0])
        await eventually(worker, parent, "awaiting_children")
        (child,) = await worker.children(parent)
        await eventually(worker, child.id, "awaiting_signal")
        await worker.cancel(child.id)
        assert (await worker.wait(parent, timeout=PATIENCE)).result == ["cancelled None"]


class Joiner(Machine[list[int], list[str]]):
    """Fails its first join, and records its children on each attempt."""

    seen: ClassVar[list[list[str]]] = []

    @step
    async def start(self, ctx: Context[list[int]]) -> Outcome[list[str]]:
        return ScheduleChildren([Spec(Leaf, n) for n in ctx.state], then=self.join)

    @step
    async def join(self, ctx: Context[list[int]]) -> Outcome[list[str]]:
        statuses = [one.status.value for one in ctx.children]
        self.seen.append(statuses)
        return Retry(timedelta(hours=1)) if ctx.attempt == 0 else Done(statuses)


async def _until_second_try(durable: AsyncHarness) -> tuple[Ref[Any, Any], int]:
    """A parent with a failed child; its join step retries in an hour."""
    Joiner.seen.clear()
    parent = await durable.insert(Joiner, [1, -1])
    await durable.drain(collapse=False)
    assert durable.assert_at(parent, "join").attempt == 1
    return parent, (await durable.children(parent))[1].id


@pytest.mark.clause("RTY-6")
async def test_join_waits_for_a_child_retried_between_its_attempts(async_durable: AsyncHarness) -> None:
    parent, child = await _until_second_try(async_durable)
    assert isinstance(await async_durable.retry(child, state=0), Retried)
    waiting = async_durable.assert_at(parent, "join")
    assert (waiting.status, waiting.children_pending, waiting.attempt) == (Status.AWAITING_CHILDREN, 1, 1)
    await async_durable.drain(collapse=False)
    await async_durable.signal(child, "go")
    await async_durable.drain(collapse=False)
    released = async_durable.assert_at(parent, "join")
    assert (released.status, released.attempt) == (Status.RUNNABLE, 1)
    assert released.eligible_at > released.updated_at, "the delay of the retry is lost"
    await async_durable.drain()
    assert async_durable.assert_done(parent) == ["done", "done"]
    assert Joiner.seen == [["done", "failed"], ["done", "done"]]


async def test_harness_returns_a_join_with_a_live_child_to_its_barrier(
    async_durable: AsyncHarness, db: Any
) -> None:
    parent, child = await _until_second_try(async_durable)
    # As if the child had been retried while the join executed.
    await db.execute(
        "update gen_durable.gen_durable set status = 'awaiting_signal', awaits = '{go}', step = 'went', finished_at = null"
        " where id = $1",
        child,
    )
    await async_durable.drain()
    waiting = async_durable.assert_at(parent, "join")
    assert (waiting.status, waiting.children_pending, waiting.attempt) == (Status.AWAITING_CHILDREN, 1, 1)
    await async_durable.signal(child, "go")
    await async_durable.drain()
    assert async_durable.assert_done(parent) == ["done", "done"]
    assert Joiner.seen == [["done", "failed"], ["done", "done"]]


@pytest.mark.clause("RTY-6")
async def test_join_never_sees_a_child_retried_after_its_lease(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child is retried between the pick of its parent and the load of its children."""
    load = Picker._load
    retried: list[int] = []
    is_retried = asyncio.Event()

    async def retry_first(self: Picker, executions: list[Execution]) -> list[Execution]:
        if not retried and any(one.has_children for one in executions):
            failed = [child for child in await worker.children(parent) if child.status is Status.FAILED]
            retried.extend(child.id for child in failed)
            assert isinstance(await worker.retry(failed[0].id, state=0), Retried)
            is_retried.set()
        return await load(self, executions)

    monkeypatch.setattr(Picker, "_load", retry_first)
    async with Worker([Parent, Leaf], dsn=durable_dsn, settings=CALM) as worker:
        parent = await worker.insert(Parent, [1, -1])
        await happens(is_retried)
        waiting = await eventually(worker, parent, "awaiting_children")
        assert (waiting.children_pending, waiting.attempt) == (1, 0)
        await worker.signal(retried[0], "go")
        assert (await worker.wait(parent, timeout=PATIENCE)).result == ["done 2", "done 0"]
        outcomes = [one.outcome for one in await worker.executions(parent)]
    assert outcomes == ["schedule_children", "rejoin", "done"]
