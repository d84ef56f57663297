"""INV_001: at most one execution commits a transition. The lease token guards it, a unique index enforces it."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from gen_durable import (
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Spec,
    Sql,
    Stop,
    Worker,
    step,
)
from gen_durable._core.model import CommitEntry, Committed, Execution, Stale
from gen_durable._db import commit as commits
from gen_durable._db import lease as leases
from gen_durable._db.pool import Database
from gen_durable.telemetry import OutcomeStale
from tests.support.engine_plans import RECORDER, entry, flushed, inserted, new, picked
from tests.support.ledger import BOOK, booked, booking, commit_with_effect
from tests.support.rows import row_of
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE, Events, happens, wait_ignoring_cancel

_INSERT = """
insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, finished_at)
values ($1, $2, $3, 0, $4, 'next', 's', now())"""
# As the reaper does, without waiting for it.
_REAP = """
update gen_durable.gen_durable set status = 'runnable', attempt = attempt + 1, crash_count = crash_count + 1,
       lease_token = null, lease_expires_at = null, locked_by = null, leased_at = null, started_at = null,
       eligible_at = now() where id = $1"""


@pytest.mark.clause("INV-1")
async def test_database_rejects_a_second_commit_of_a_transition(db: Any, subtests: pytest.Subtests) -> None:
    ends = ("COMMITTED", "DONE")
    for id, (first, second) in enumerate(itertools.product(ends, ends)):
        with subtests.test(first=first, second=second):
            await db.execute(_INSERT, id, 1, 1, first)
            with pytest.raises(asyncpg.UniqueViolationError, match="executions_commit"):
                await db.execute(_INSERT, id, 1, 2, second)
            await db.execute(_INSERT, id, 2, 2, second)
            await db.execute(_INSERT, -id - 1, 1, 1, second)


async def test_transition_may_have_many_aborted_attempts(db: Any) -> None:
    for number in range(1, 4):
        await db.execute(_INSERT, 1, 1, number, "ABORTED")
    await db.execute(_INSERT, 1, 1, 4, "DONE")
    assert await db.fetchval("select count(*) from gen_durable.executions") == 4
    with pytest.raises(asyncpg.CheckViolationError):
        await db.execute(_INSERT, 1, 1, 5, "IN_PROGRESS")


def _all_there_is() -> str:
    tables = ("gen_durable", "executions", "signals")
    parts = (
        f"(select jsonb_agg(to_jsonb(t) order by t::text) from gen_durable.{table} t)" for table in tables
    )
    return f"select jsonb_build_array({', '.join(parts)}, (select jsonb_agg(key) from ledger))"


def _outcome(execution: Execution, kind: str, *, has_effect: bool) -> CommitEntry:
    of_kind: dict[str, dict[str, Any]] = {
        "await": {"awaits": ("go",)},
        "schedule_children": {"children": (new("B"), new("B"))},
        "stop": {"error": "by the zombie"},
    }
    effect = Sql(BOOK, kind, "zombie") if has_effect else None
    return entry(execution, kind, payload='"zombie"', effect=effect, **of_kind.get(kind, {}))


@pytest.mark.parametrize("successor", ["none yet", "another execution", "another transition"])
async def test_commit_of_a_stale_execution_writes_nothing(
    database: Database, db: Any, successor: str, subtests: pytest.Subtests
) -> None:
    """No state, record, effect, child, or consumed signal."""
    await inserted(database, new())
    (zombie,) = await picked(database)
    await db.execute("update gen_durable.gen_durable set lease_expires_at = now() - interval '1 s'")
    await database.run_in_transaction(leases.reap(timedelta(milliseconds=1), leases.CrashPolicy(20, "all")))
    if successor != "none yet":
        await db.execute("update gen_durable.gen_durable set eligible_at = now()")
        (heir,) = await picked(database)
        if successor == "another transition":
            await flushed(database, [entry(heir, "continue", payload="1")])
    before = await db.fetchval(_all_there_is())
    for kind in ("continue", "next", "retry", "release", "await", "schedule_children", "done", "stop"):
        with subtests.test(kind=kind):
            for has_effect in (False, True) if kind not in ("retry", "release") else (False,):
                assert await flushed(database, [_outcome(zombie, kind, has_effect=has_effect)]) == [Stale()]
                assert await db.fetchval(_all_there_is()) == before
            plan = commits.commit([_outcome(zombie, kind, has_effect=False)], RECORDER)
            report = await database.run_in_transaction(plan)
            assert (report.results, report.queues) == ([Stale()], set())
            assert await db.fetchval(_all_there_is()) == before


async def test_stale_outcome_in_a_batch_does_not_affect_others(database: Database, db: Any) -> None:
    await inserted(database, *[new() for _ in range(5)])
    executions = await picked(database)
    zombie = executions[2]
    await db.execute(_REAP, zombie.id)
    results = await flushed(database, [entry(one, "done", payload="1") for one in executions])
    assert [type(result) for result in results] == [Committed, Committed, Stale, Committed, Committed]
    rows = await db.fetch("select instance_id from gen_durable.executions order by 1")
    assert [row[0] for row in rows] == [one.id for one in executions if one is not zombie]


async def test_outcome_with_an_effect_sent_twice_is_applied_once(database: Database, db: Any) -> None:
    await inserted(database, new())
    (execution,) = await picked(database)
    twice = entry(execution, "continue", payload="1", effect=Sql(BOOK, "once", ""))
    first = await commit_with_effect(database, twice, RECORDER)
    second = await commit_with_effect(database, twice, RECORDER)
    assert isinstance(first, Committed)
    assert second == Stale()
    assert await booked(db) == ["once"]


class Zombie(Machine[str, str]):
    """Two executions of one step in one worker; the first waits until the second has the lease."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.is_there, self.may_go = asyncio.Event(), asyncio.Event()
        self.keys: list[str] = []

    @step
    async def run(self, ctx: Context[str]) -> Outcome[str]:
        self.keys.append(ctx.idempotency_key)
        if len(self.keys) > 1:
            return Done("heir", effect=booking(ctx, "heir"))
        self.is_there.set()
        await wait_ignoring_cancel(self.may_go)
        effect = booking(ctx, "zombie")
        answers: dict[str, Outcome[str]] = {
            "next": Next(self.run, effect=effect),
            "await": Await("never", then=self.run, effect=effect),
            "schedule_children": ScheduleChildren([Spec(Leaf)], then=self.run, effect=effect),
            "done": Done("zombie", effect=effect),
            "stop": Stop("zombie", effect=effect),
        }
        return answers[ctx.state]


class Leaf(Machine[None, None], queue="not served"):
    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        return Done()


async def test_stale_execution_is_reported_and_runs_no_effect(
    durable_dsn: str, db: Any, subtests: pytest.Subtests
) -> None:
    machine = Zombie()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        for number, kind in enumerate(("next", "await", "schedule_children", "done", "stop"), start=1):
            with subtests.test(kind=kind):
                machine.forget()
                ref = await worker.insert(machine, kind)
                await happens(machine.is_there)
                await db.execute(_REAP, ref.id)
                assert (await worker.wait(ref, timeout=PATIENCE)).result == "heir"
                before = await row_of(db, ref.id)
                machine.may_go.set()
                stale = await events.wait(OutcomeStale, count=number)
                after = await row_of(db, ref.id)
                records = await worker.executions(ref)
                assert (stale.id, stale.step, stale.step_seq) == (ref.id, "run", 1)
                assert len(events.of(OutcomeStale)) == number
                assert {**after, "now": None} == {**before, "now": None}
                assert machine.keys == [f"{ref.id}:1"] * 2, "the same transition, so the same key"
                booked_last = await db.fetch("select key, who from ledger order by id offset $1", number - 1)
                assert [tuple(row) for row in booked_last] == [(f"{ref.id}:1", "heir")]
                assert [one.step_seq for one in records if one.outcome == "done"] == [1]
                assert await db.fetchval("select count(*) from gen_durable.gen_durable") == number


async def test_conflicting_record_fails_one_instance_only(durable_dsn: str, db: Any) -> None:
    """A conflicting record can exist after a partial restore; then no outcome of that transition can be written.

    The worker must neither spin nor stop; the reaper ends the instance without a transition.
    """

    class Short(Machine[None, str]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[str]:
            return Done("done")

    settings = msgspec.structs.replace(FAST, crash_limit=1)
    async with Worker([Short], dsn=durable_dsn, settings=settings) as worker:
        ref = await worker.insert(Short, schedule_in=timedelta(milliseconds=200))
        await db.execute(_INSERT, ref.id, 1, 0, "DONE")
        ended = await worker.wait(ref, timeout=PATIENCE)
        other = await worker.insert(Short)
        assert (await worker.wait(other, timeout=PATIENCE)).result == "done"
    assert ended.status == "failed"
    assert ended.last_error == "poison: the process died 1 time in step run"
