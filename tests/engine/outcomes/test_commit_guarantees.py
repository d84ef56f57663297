"""Commit guarantees: when outcomes are durable, and what is repeated."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import (
    Await,
    Context,
    DatabaseError,
    Done,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Spec,
    Worker,
    step,
)
from gen_durable.testing import Crash, Harness
from tests.support.machines import Say, probe
from tests.support.rows import SqlConnection
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE


@pytest.mark.clause("GUA-1")
async def test_state_is_committed_before_the_next_step(durable_dsn: str, sql: SqlConnection) -> None:
    seen: list[tuple[Any, ...]] = []

    def two(ctx: Context[int]) -> Outcome[int]:
        seen.append(sql.columns(ctx.id, "step state step_seq"))
        return Done(ctx.state)

    machine = probe(lambda ctx: Next("two", ctx.state + 1), two)
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        await worker.wait(await worker.insert(machine, 7), timeout=PATIENCE)
        later = await worker.insert(machine, 9)
        await worker.wait(later, timeout=PATIENCE)
    assert seen == [("two", 8, 1), ("two", 10, 1)]


@pytest.mark.clause("GUA-2", "GUA-3")
def test_uncommitted_step_runs_again_from_its_start(durable: Harness) -> None:
    effects: list[int] = []

    class Once(Machine[list[int], list[int]]):
        @step
        async def work(self, ctx: Context[list[int]]) -> Outcome[list[int]]:
            effects.append(ctx.attempt)
            ctx.state.append(len(effects))
            return Done(ctx.state)

    ref = durable.insert(Once, [])
    with durable.crash_at(Once.work), pytest.raises(Crash):
        durable.drain()
    durable.drain()
    assert durable.assert_done(ref) == [2], "it began with the state that was committed"
    assert effects == [0, 1]


@pytest.mark.clause("GUA-4")
def test_outcome_commits_in_one_transaction(durable: Harness, sql: SqlConnection) -> None:
    def spawn(ctx: Context[int]) -> Outcome[int]:
        return ScheduleChildren([Spec(Say, "a")], then="one", state=8)

    ref = durable.insert(probe(lambda ctx: Await("go", then="two"), spawn), 7)
    durable.drain()
    durable.signal(ref, "go")
    # The last statement of the transaction fails.
    sql("create function no() returns trigger language plpgsql as $$ begin raise 'no'; end $$")
    sql("create trigger no before insert on gen_durable.executions execute function no()")
    with pytest.raises(DatabaseError, match="no"):
        durable.drain()
    assert sql.columns(ref.id, "status step state step_seq") == ("executing", "two", 7, 1)
    assert sql.inbox(ref.id) == ["go"]
    assert durable.count(Say) == 0
    sql("drop trigger no on gen_durable.executions")
    with pytest.raises(AssertionError, match="still runs after"):
        durable.drain(max_steps=1)
    assert sql.columns(ref.id, "status step state step_seq") == ("awaiting_children", "one", 8, 2)
    assert sql.inbox(ref.id) == []
    assert [child.parent_id for child in durable.instances(Say)] == [ref.id]


@pytest.mark.clause("GUA-5")
def test_idempotency_key_identifies_the_transition(durable: Harness) -> None:
    keys: list[str] = []

    def one(ctx: Context[int]) -> Outcome[int]:
        keys.append(ctx.idempotency_key)
        return Next("two")

    def two(ctx: Context[int]) -> Outcome[int]:
        keys.append(ctx.idempotency_key)
        return Done(0)

    ref = durable.insert(probe(one, two), 7)
    with durable.crash_at("one"), pytest.raises(Crash):
        durable.drain()
    durable.drain()
    assert keys == [f"{ref.id}:1", f"{ref.id}:1", f"{ref.id}:2"]


@pytest.mark.clause("GUA-6")
def test_returned_insert_and_signal_are_committed(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(Say, "hi")
    durable.signal(ref, "go")
    assert sql.columns(ref.id, "status state") == ("runnable", "hi")
    assert sql.inbox(ref.id) == ["go"]


@pytest.mark.clause("GUA-7")
async def test_database_defaults_do_not_change_isolation_or_durability(
    durable_dsn: str, sql: SqlConnection
) -> None:
    name = sql.value("select current_database()")
    sql(f"alter database {name} set default_transaction_isolation = 'serializable'")
    sql(f"alter database {name} set synchronous_commit = off")
    sql("create table seen (isolation text, is_synchronous text)")
    sql(
        "create function note() returns trigger language plpgsql as $$ begin insert into public.seen values"
        " (current_setting('transaction_isolation'), current_setting('synchronous_commit')); return null; end $$"
    )
    sql("create trigger note after insert or update on gen_durable.gen_durable execute function note()")
    machine = probe(lambda ctx: Await("go", then="two"))
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine, 7)
        await worker.wait(ref, timeout=PATIENCE, until="parked")
        await worker.signal(ref, "go")
        await worker.wait(ref, timeout=PATIENCE)
    with Harness(durable_dsn, settings=CALM) as blocking:
        blocking.insert(machine, 8)
    assert sql("select distinct * from seen") == [{"isolation": "read committed", "is_synchronous": "on"}]
