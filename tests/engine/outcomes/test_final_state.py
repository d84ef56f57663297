"""The state that `Done` and `Stop` leave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from gen_durable import (
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Ref,
    ScheduleChildren,
    Settings,
    Spec,
    Stop,
    Worker,
    job,
    step,
)
from gen_durable.testing import Harness
from gen_durable.worker import CallNext
from tests.support.rows import SqlConnection
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE
from tests.workers.pool_machines import Crunch, Work


def state_of(durable: Harness, ref: Ref[Any, Any]) -> Any:
    found = durable.get(ref)
    assert found is not None
    return found.state


@dataclass
class Count:
    """Its `==` ignores the count."""

    name: str
    ratio: float = 1.0
    count: int = field(default=0, compare=False)
    later: str = ""


class End(Machine[Count, None]):
    @step
    async def first(self, ctx: Context[Count]) -> Outcome[None]:
        if "chained" not in ctx.state.name:
            return self.end(ctx)
        ctx.state.later = "before"
        return Next(self.last)

    @step
    async def last(self, ctx: Context[Count]) -> Outcome[None]:
        return self.end(ctx)

    def end(self, ctx: Context[Count]) -> Outcome[None]:
        if "same" not in ctx.state.name:
            ctx.state.count += 1
        return Stop("over") if "stop" in ctx.state.name else Done()


# Not as the engine would write it: a default is missing, keys have another order, a number has another form.
_AS_A_PRODUCER_WRITES = (
    """update gen_durable.gen_durable set state = '{"ratio": 1.00, "name": "%s"}' where id = %d"""
)


@pytest.mark.clause("OUT-8")
@pytest.mark.parametrize("how", ["done", "stop", "done chained", "stop chained"])
def test_end_stores_a_changed_state(durable: Harness, how: str) -> None:
    ref = durable.insert(End, Count(how))
    durable.drain()
    state = state_of(durable, ref)
    assert (state.count, state.later) == (1, "before" if "chained" in how else "")


@pytest.mark.clause("OUT-8")
@pytest.mark.parametrize("how", ["done same", "stop same"])
def test_end_does_not_write_an_unchanged_state(durable: Harness, sql: SqlConnection, how: str) -> None:
    ref = durable.insert(End, Count(how))
    sql(_AS_A_PRODUCER_WRITES % (how, ref.id))
    durable.drain()
    stored = sql.value("select state::text from gen_durable.gen_durable where id = %s", ref.id)
    assert stored == f'{{"name": "{how}", "ratio": 1.00}}'


@pytest.mark.clause("OUT-8")
@pytest.mark.parametrize("durable_settings", [Settings(max_payload=100)])
def test_unchanged_state_above_a_lowered_bound_does_not_fail_the_end(
    durable: Harness, sql: SqlConnection
) -> None:
    same, changed = durable.insert(End, Count("done same")), durable.insert(End, Count("done"))
    for ref, name in ((same, "done same"), (changed, "done")):
        sql(_AS_A_PRODUCER_WRITES % (name + "x" * 200, ref.id))
    durable.drain()
    durable.assert_done(same)
    durable.assert_failed(changed, match="PayloadTooLargeError")


@pytest.mark.clause("OUT-8")
def test_handle_decides_the_state_of_a_failed_instance(durable: Harness) -> None:
    class Raise(Machine[list[int], None]):
        @step
        async def run(self, ctx: Context[list[int]]) -> Outcome[None]:
            ctx.state.append(99)
            raise ValueError

        def handle(self, error: Exception, ctx: Context[list[int]]) -> Outcome[None]:
            if ctx.state[0]:
                ctx.state.append(2)
            return Stop(error)

    changed, same = durable.insert(Raise, [1]), durable.insert(Raise, [0])
    durable.drain()
    assert [state_of(durable, ref) for ref in (changed, same)] == [[1, 2], [0]]


@pytest.mark.clause("OUT-8")
def test_job_never_changes_its_payload(durable: Harness) -> None:
    @job("sorter")
    async def sorter(numbers: list[int]) -> list[int]:
        numbers.sort()
        return numbers

    ref = durable.insert(sorter, [2, 1])
    durable.drain()
    durable.assert_done(ref, [1, 2])
    assert state_of(durable, ref) == [2, 1]


@pytest.mark.clause("OUT-8")
def test_parent_sees_the_last_state_of_a_child_that_is_not_kept(durable: Harness) -> None:
    class Child(Machine[dict[str, int], None], keep=False):
        @step
        async def run(self, ctx: Context[dict[str, int]]) -> Outcome[None]:
            ctx.state["n"] += 1
            return Done()

    class Parent(Machine[int, Any]):
        @step
        async def spawn(self, ctx: Context[int]) -> Outcome[Any]:
            return ScheduleChildren([Spec(Child, {"n": 1})], then=self.join)

        @step
        async def join(self, ctx: Context[int]) -> Outcome[Any]:
            return Done(ctx.children[0].state)

    ref = durable.insert(Parent, 0)
    durable.drain()
    durable.assert_done(ref, {"n": 2})


@pytest.mark.clause("OUT-8", "MID-3")
@pytest.mark.parametrize("replaces", [False, True])
async def test_step_in_a_process_stores_the_state_that_it_changed(durable_dsn: str, replaces: bool) -> None:
    async def middleware(ctx: Context[Work], call_next: CallNext) -> Outcome[Any]:
        outcome = await call_next()
        return Done(f"seen {ctx.state.number}") if replaces and isinstance(outcome, Done) else outcome

    async with Worker([Crunch], dsn=durable_dsn, settings=CALM, middleware=[middleware]) as worker:
        ended = await worker.wait(await worker.insert(Crunch, Work("chain", number=4)), timeout=PATIENCE)
    assert ended.result == ("seen 5" if replaces else 5)
    assert ended.state.number == 5
