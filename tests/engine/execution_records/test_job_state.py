"""The state of a job is a function of its executions: the view, the pure function and `status` always agree."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, example, given, settings

from gen_durable import Status
from gen_durable._db import lease as leases
from gen_durable._db.pool import Database
from gen_durable.config import RecordLevel
from tests.engine.execution_records.random_histories import Happening, History, histories, of
from tests.support.engine_plans import entry, flushed, inserted, new, picked
from tests.support.ledger import LEDGER

_STATE = "select state from gen_durable.gen_durable_job_state where job_id = $1"
_EXPIRE = "update gen_durable.gen_durable set lease_expires_at = now() - interval '1 s'"


_FAMILY = of(
    "lease 0, schedule_children 0, lease 0, CANCEL 0, RETRY 0, done 2, DELETE 2, RESTORE 2, RETRY 2, lease 0, stop 3,"
    "done 4, lease 0, stop 5, RETRY 0, lease 0, FORCE 0, RETRY 0, lease 0, lose 0, wait 0, lease 0, lose 0, RETRY 0,"
    "lease 0, done 8"
)
_SIGNALS = of(
    "CANCEL 0, insert 0, RETRY 0, FORCE 2, RETRY 0, lease 0, await 0, CANCEL 0, RETRY 0, wait 0, lease 0, stop 2,"
    "RETRY 0, lease 0, CANCEL 3, DELETE 0, insert 0, RESTORE 0, RETRY 0, signal 1, CANCEL 1, insert 0, RETRY 1,"
    "RETRY 0, lease 0, CANCEL 0, next 4, RETRY 0, insert 0"
)


_ENDS = of("lease 0, continue 0 +, next 0 +, done 2 -, done 2 +, stop 1, RETRY 1, lease 0")
_LOSSES = of("lease 0, begin 0, lose 0, wait 0, lease 0, CANCEL 0, next 2 +, done 0 +, release 3")


@pytest.mark.clause("JOB-2", "JOB-3", "JOB-5", "INV-3")
@pytest.mark.parametrize(("level", "count"), [("all", 40), ("failures", 16), ("off", 16)])
def test_view_function_and_status_agree_in_random_histories(
    durable_dsn: str, level: RecordLevel, count: int
) -> None:
    """INV_003: executions and transitions are numbered without gaps, and determine the state of the job."""
    seen: Counter[str] = Counter()
    with asyncio.Runner() as runner:
        database = runner.run(Database.open(durable_dsn, "gen_durable", size=2))
        db = runner.run(asyncpg.connect(durable_dsn))
        runner.run(db.execute(LEDGER))

        @given(histories())
        @example(_FAMILY)
        @example(_SIGNALS)
        @example(_ENDS)
        @example(_LOSSES)
        @settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        def check(happenings: list[Happening]) -> None:
            runner.run(_play(History(database, db, level), happenings, seen))

        try:
            check()
        finally:
            runner.run(db.close())
            runner.run(database.close())
    everything = {*Status, "Committed", "Stale", "EffectError", "lost", "retried", "key taken"}
    if level == "all":
        everything.add("committed, not done")
    assert everything <= {name for name, times in seen.items() if times}, "histories that show something"


async def _play(history: History, happenings: list[Happening], seen: Counter[str]) -> None:
    await history.begin()
    for happening in happenings:
        await history.happen(happening)
    seen.update(history.seen)


@pytest.mark.clause("JOB-4", "JOB-2")
async def test_job_is_pending_again_when_its_first_lease_expires(database: Database, db: Any) -> None:
    """INV_003: each change of a job's state is a change of an execution."""
    (id,) = await inserted(database, new())
    states = [await db.fetchval(_STATE, id)]
    await picked(database)
    states.append(await db.fetchval(_STATE, id))
    await db.execute(_EXPIRE)
    await database.run_in_transaction(leases.reap(timedelta(milliseconds=1), leases.CrashPolicy(20, "all")))
    states.append(await db.fetchval(_STATE, id))
    await db.execute("update gen_durable.gen_durable set eligible_at = now()")
    (execution,) = await picked(database)
    states.append(await db.fetchval(_STATE, id))
    await flushed(database, [entry(execution, "done", payload="1")])
    states.append(await db.fetchval(_STATE, id))
    assert states == ["PENDING", "RUNNING", "PENDING", "RUNNING", "SUCCEEDED"]


async def test_waiting_job_with_a_committed_transition_is_running(database: Database, db: Any) -> None:
    (id,) = await inserted(database, new())
    (execution,) = await picked(database)
    await flushed(database, [entry(execution, "await", awaits=("go",), payload="1")])
    assert await db.fetchval(_STATE, id) == "RUNNING"


async def test_job_state_ignores_earlier_aborted_executions(database: Database, db: Any) -> None:
    """Aborted attempts of a job that continued do not decide its state."""
    (id,) = await inserted(database, new())
    for kind in ("retry", "release", "next", "stop"):
        await db.execute("update gen_durable.gen_durable set eligible_at = now()")
        (execution,) = await picked(database)
        await flushed(database, [entry(execution, kind, error="no" if kind == "stop" else None)])
    assert await db.fetchval(_STATE, id) == "FAILED"
