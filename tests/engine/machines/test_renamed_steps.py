"""`was=` of a step: it runs instances that are stored at its former name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gen_durable import (
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Signal,
    Spec,
    Worker,
    step,
)
from gen_durable.telemetry import StepStop
from gen_durable.testing import Harness
from tests.support.machines import Say
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events, holds


class Before(Machine[str, str], name="order"):
    paid = Signal("paid", int)

    @step
    async def begin(self, ctx: Context[str]) -> Outcome[str]:
        if ctx.state == "children":
            return ScheduleChildren([Spec(Say, "child")], then=self.decide)
        if ctx.state == "due":
            return Next(self.decide, delay=timedelta(hours=1))
        return Await(self.paid, then=self.decide)

    @step
    async def decide(self, ctx: Context[str]) -> Outcome[str]:
        return Done("before")


class After(Machine[str, str], name="order"):
    paid = Signal("paid", int)

    @step
    async def begin(self, ctx: Context[str]) -> Outcome[str]:
        return Next("decide")

    @step(was="decide", lease=timedelta(seconds=7))
    async def approve(self, ctx: Context[str]) -> Outcome[str]:
        found = [*(each.payload for each in ctx.awaited), *(child.result for child in ctx.children)]
        return Done(f"{ctx.step}: {', '.join(map(str, found))}")


@pytest.mark.clause("VER-4")
@pytest.mark.parametrize(("state", "result"), [("due", ""), ("signal", "5"), ("children", "child")])
async def test_renamed_step_continues_instances_at_its_former_name(
    durable_dsn: str, db: Any, state: str, result: str
) -> None:
    async with Worker([Before], dsn=durable_dsn, settings=CALM) as old:
        ref = await old.insert(Before, state)
        await holds(db, "select step = 'decide' from gen_durable.gen_durable where id = $1", ref.id)
    async with Worker([After, Say], dsn=durable_dsn, settings=CALM) as new:
        events = Events(new)
        if state == "signal":
            await new.signal(ref, After.paid, 5)
        await db.execute("update gen_durable.gen_durable set eligible_at = now() where id = $1", ref.id)
        ended = await new.wait(ref, timeout=PATIENCE)
        steps = {event.step for event in events.of(StepStop) if event.id == ref.id}
    assert (ended.result, steps) == (f"approve: {result}", {"approve"})
    records = await db.fetch(
        "select step from gen_durable.executions where instance_id = $1 order by execution", ref.id
    )
    assert [record["step"] for record in records] == ["begin", "approve"]


@pytest.mark.clause("VER-4")
def test_outcome_and_insert_may_name_a_former_step(durable: Harness) -> None:
    by_outcome = durable.insert(After, "x")
    by_insert = durable.insert(After, "x", step="decide")
    durable.assert_at(by_insert, After.approve)
    durable.drain()
    assert [durable.assert_done(ref) for ref in (by_outcome, by_insert)] == ["approve: "] * 2


@pytest.mark.clause("VER-4")
async def test_former_name_has_the_lease_of_the_step(durable_dsn: str, db: Any) -> None:
    worker = Worker([After], dsn=durable_dsn, settings=CALM)
    assert worker._registry.leases == {
        ("order", 1, "approve"): timedelta(seconds=7),
        ("order", 1, "decide"): timedelta(seconds=7),
    }
