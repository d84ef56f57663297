"""Fan-out, the barrier, and the parent's view of its children."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from gen_durable import (
    Context,
    Done,
    Instance,
    Machine,
    Outcome,
    ScheduleChildren,
    Spec,
    Status,
    Stop,
    Worker,
    step,
)
from gen_durable.testing import Crash, DrainCounts, Harness
from tests.support.machines import Fail, Say, one_step, probe
from tests.support.rows import SqlConnection, is_near
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import PATIENCE


def spawning(
    *specs: Spec[Any, Any], then: Any = lambda ctx: Done(len(ctx.children))
) -> type[Machine[int, Any]]:
    return probe(lambda ctx: ScheduleChildren(specs, then="two"), then)


def later(state: str, **options: Any) -> Spec[Any, Any]:
    """A child that is not due yet."""
    return Spec(Say, state, schedule_in=AN_HOUR, **options)


def run(durable: Harness, sql: SqlConnection, child: Instance[Any, Any]) -> None:
    """Run this child only."""
    sql("update gen_durable.gen_durable set eligible_at = now() where id = %s", child.id)
    one_step(durable)


class Grown(Machine[str, str], version=4, queue="machine's"):
    @step
    async def first(self, ctx: Context[str]) -> Outcome[str]:
        return Done(ctx.state)

    @step
    async def second(self, ctx: Context[str]) -> Outcome[str]:
        return Done(ctx.state)


@pytest.mark.clause("CHD-1")
def test_children_take_all_insert_options(durable: Harness, sql: SqlConnection) -> None:
    moment = datetime(2040, 1, 1, tzinfo=UTC)
    spec = Spec(
        Grown,
        "hi",
        step=Grown.second,
        queue="chosen",
        priority=5,
        eligible_at=moment,
        concurrency_key=("tenant", 7),
        correlation_key="order:7",
        unique_key=b"u",
        unique_scope=[Status.RUNNABLE],
    )
    parent = durable.insert(spawning(spec, Spec(Grown, "plain", schedule_in=AN_HOUR)), 7)
    durable.drain(collapse=False)
    full, plain = durable.children(parent)
    assert sql.columns(full.id, "fsm fsm_version step state queue priority eligible_at parent_id") == (
        *("Grown", 4, "second", "hi", "chosen", 5, moment, parent.id),
    )
    assert sql.columns(full.id, "concurrency_key correlation_key unique_key") == ("tenant:7", "order:7", b"u")
    assert "done" not in sql.value(
        "select unique_scope::text from gen_durable.gen_durable where id = %s", full.id
    )
    assert sql.columns(plain.id, "step queue priority unique_key parent_id") == (
        *("first", "machine's", 0, None, parent.id),
    )


@pytest.mark.clause("CHD-2")
async def test_children_and_parent_status_commit_together(durable_dsn: str, sql: SqlConnection) -> None:
    parent_and_children = (
        "select min(status::text) filter (where parent_id is null) as parent, count(parent_id) as children"
        " from gen_durable.gen_durable"
    )
    waiting = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    machine = spawning(later("a"), later("b", unique_key="u"))
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        with sql.another() as other:
            # The second child waits for an uncommitted insert of the same key, so the commit is half done.
            other.execute("select gen_durable.insert('Say', '\"x\"', 'say', unique_key => 'u')")
            parent = await worker.insert(machine, 7)
            while not sql(waiting):
                await asyncio.sleep(0.01)
            assert sql(parent_and_children) == [{"parent": "executing", "children": 0}]
            other.rollback()
        await worker.wait(parent, timeout=PATIENCE, until="parked")
    assert sql(parent_and_children) == [{"parent": "awaiting_children", "children": 2}]


@pytest.mark.clause("CHD-3")
def test_step_that_scheduled_children_does_not_run_again(durable: Harness) -> None:
    parent = durable.insert(spawning(Spec(Say, "a")), 7)
    with durable.crash_at("two"), pytest.raises(Crash):
        durable.drain()
    durable.drain()
    durable.assert_done(parent, 1)
    assert [(t.step, t.kind) for t in durable.outcomes(parent)] == [
        ("one", "schedule_children"),
        ("two", "done"),
    ]
    assert durable.count(Say) == 1


@pytest.mark.clause("CHD-6", "CHD-7")
def test_last_child_to_end_releases_the_parent(durable: Harness, sql: SqlConnection) -> None:
    parent = durable.insert(spawning(later("a"), later("b")), 7)
    durable.drain(collapse=False)
    first, last = durable.children(parent)
    sql("update gen_durable.gen_durable set eligible_at = now() where id = %s", first.id)
    with durable.crash_at(Say.say), pytest.raises(Crash):
        durable.drain(collapse=False)
    assert sql.columns(parent.id, "children_pending") == (2,), "it died before its commit"
    one_step(durable)
    assert sql.columns(parent.id, "status children_pending") == ("awaiting_children", 1)
    run(durable, sql, last)
    row = sql.row(parent.id)
    assert (row["status"], row["step"], row["children_pending"]) == ("runnable", "two", 0)
    assert is_near(row["eligible_at"], sql.row(last.id)["finished_at"])


@pytest.mark.clause("CHD-12")
def test_child_of_another_round_does_not_count_down_the_barrier(durable: Harness, sql: SqlConnection) -> None:
    parent = durable.insert(spawning(later("a"), later("b")), 7)
    durable.drain(collapse=False)
    strange, own = durable.children(parent)
    sql("update gen_durable.gen_durable set parent_round = 99 where id = %s", strange.id)
    run(durable, sql, strange)
    durable.assert_done(strange.id)
    assert sql.columns(parent.id, "status children_pending") == ("awaiting_children", 2)
    run(durable, sql, own)
    assert sql.columns(parent.id, "status children_pending") == ("awaiting_children", 1)


@pytest.mark.clause("CHD-13")
def test_children_outlive_their_parent(durable: Harness, sql: SqlConnection) -> None:
    parent = durable.insert(spawning(later("a"), later("b")), 7)
    durable.drain(collapse=False)
    sql("update gen_durable.gen_durable set status = 'failed', finished_at = now() where id = %s", parent.id)
    before = sql.row(parent.id)
    assert durable.drain() == DrainCounts(done=2)
    assert sql.row(parent.id) == before
    assert [child.status for child in durable.children(parent)] == ["done", "done"]


@pytest.mark.clause("CHD-13", "CHD-9")
def test_failed_child_does_not_fail_the_parent(durable: Harness) -> None:
    def two(ctx: Context[int]) -> Outcome[Any]:
        return Stop(f"{len(ctx.children.failed)} of {len(ctx.children)} failed")

    parent = durable.insert(spawning(Spec(Fail, "no"), Spec(Say, "a"), then=two), 7)
    durable.drain()
    durable.assert_failed(parent, match="^1 of 2 failed$")


class Tree(Machine[int, int]):
    """Counts its leaves; each level is a round of children."""

    @step
    async def grow(self, ctx: Context[int]) -> Outcome[int]:
        if ctx.state == 0:
            return Done(1)
        return ScheduleChildren([Spec(Tree, ctx.state - 1)] * 2, then=self.count)

    @step
    async def count(self, ctx: Context[int]) -> Outcome[int]:
        return Done(sum(ctx.children.results(Tree)))


@pytest.mark.clause("CHD-14")
def test_children_may_have_children(durable: Harness) -> None:
    root = durable.insert(Tree, 3)
    assert durable.drain() == DrainCounts(children=7, done=15)
    durable.assert_done(root, 8)
