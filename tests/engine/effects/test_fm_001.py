"""FM_001, duplicate execution: A leases a job and stalls, its lease expires, B runs the job, then A resumes.

`docs/internals/failure-lab.md` describes the failure mode. These tests use real processes.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from gen_durable import AsyncClient, ExecutionStatus, Worker
from tests.engine.effects.crashing_payment import Payment
from tests.engine.effects.worker_processes import naive, victim
from tests.support.ledger import booked
from tests.support.settings import FAST
from tests.support.waiting import PATIENCE, holds

ROOT = Path(__file__).parents[3]
COMMITTED, DONE, ABORTED = (ExecutionStatus.COMMITTED, ExecutionStatus.DONE, ExecutionStatus.ABORTED)
_LEASE_IS_OVER = "select lease_expires_at < clock_timestamp() from gen_durable.gen_durable where id = $1"


@pytest.mark.clause("FM-1")
async def test_naive_worker_applies_the_effect_twice(durable_dsn: str, db: Any, tmp_path: Path) -> None:
    wake_up = tmp_path / "wake up"
    async with AsyncClient(durable_dsn) as client:
        job = await client.insert(Payment)
    async with naive(durable_dsn, "A", stalled_until=wake_up) as a:
        assert (await a.wait_for(leased=...))["leased"] == f"{job.id}:1"
        await holds(db, _LEASE_IS_OVER, job.id)
        async with naive(durable_dsn, "B") as b:
            assert (await b.wait_for(leased=...))["leased"] == f"{job.id}:2"
            assert await b.ends() == 0
        assert await _paid_by(db) == ["B"]
        wake_up.touch()
        assert await a.ends() == 0
    assert await _paid_by(db) == ["B", "A"], "the effect was applied twice"
    assert await booked(db) == [f"{job.id}:1"] * 2
    assert await db.fetchval("select status from gen_durable.gen_durable") == "done", "no error is visible"


@pytest.mark.clause("FM-1", "EFF-6", "INV-1")
async def test_effect_is_applied_once_after_a_lost_lease(durable_dsn: str, db: Any, tmp_path: Path) -> None:
    """INV_001, under the same schedule: the second execution detects the loss at its commit and does nothing."""
    wake_up = tmp_path / "wake up"
    async with AsyncClient(durable_dsn, settings=FAST) as client:
        job = await client.insert(Payment)
        async with victim(durable_dsn, FAST, "stall", wake_up) as a:
            name_of_a = (await a.wait_for(worker=...))["worker"]
            paying = await a.wait_for(paying=f"{job.id}:1")
            # A slow worker keeps its lease because its heartbeat runs; only a stopped one loses it.
            a.send(signal.SIGSTOP)
            await holds(db, _LEASE_IS_OVER, job.id)
            async with victim(durable_dsn, FAST) as b:
                name_of_b = (await b.wait_for(worker=...))["worker"]
                paying_again = await b.wait_for(paying=f"{job.id}:1")
                ended = await client.wait(job, timeout=PATIENCE)
                before = await _all_of(db, job.id)
                wake_up.touch()
                a.send(signal.SIGCONT)
                stale = await a.wait_for(stale=job.id)
                after = await _all_of(db, job.id)
                for process in (a, b):
                    process.send(signal.SIGTERM)
                    assert await process.ends() == 0
        first, second = await client.executions(job)
    assert await booked(db) == [f"{job.id}:1"]
    assert await _paid_by(db) == [ended.result] == [str(paying_again["pid"])]
    assert stale["step_seq"] == 1
    assert after == before, "what A did after it woke up left no trace in the database"
    assert (first.status, first.outcome, first.lease_owner) == (ABORTED, "lease", name_of_a)
    assert (second.status, second.outcome, second.lease_owner) == (DONE, "done", name_of_b)
    # The body of the step ran twice, with the same idempotency key.
    assert [(one["paying"], one["attempt"]) for one in (paying, paying_again)] == [
        (f"{job.id}:1", 0),
        (f"{job.id}:1", 1),
    ]


@pytest.mark.clause("INV-4", "EXEC-5")
async def test_crash_between_committed_and_done_is_finished_not_repeated(durable_dsn: str, db: Any) -> None:
    """INV_004: recovery marks the committed execution as DONE and repeats nothing."""
    async with AsyncClient(durable_dsn, settings=FAST) as client:
        job = await client.insert(Payment)
        async with victim(durable_dsn, FAST, "after COMMIT") as a:
            await a.wait_for(paying=f"{job.id}:1")
            assert await a.ends() == -signal.SIGKILL
        (left,) = await client.executions(job)
        instance = await client.get(job)
        assert instance is not None
        assert (left.status, left.outcome, instance.status) == (COMMITTED, "done", "done")
        assert await booked(db) == [f"{job.id}:1"]
        state = "select state from gen_durable.gen_durable_job_state"
        assert await db.fetchval(state) == "RUNNING"
        async with Worker([Payment], dsn=durable_dsn, settings=FAST) as b:
            await holds(db, "select bool_and(status = 'DONE') from gen_durable.executions")
            (done,) = await b.executions(job)
        assert await db.fetchval(state) == "SUCCEEDED"
    assert (done.exec_id, done.lease_owner, done.finished_at) == (
        left.exec_id,
        left.lease_owner,
        left.finished_at,
    )
    assert await booked(db) == [f"{job.id}:1"]


def test_failure_lab_names_existing_tests() -> None:
    text = (ROOT / "docs" / "internals" / "failure-lab.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    for file, test in named:
        assert re.search(
            rf"^(async )?def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE
        ), test
    assert len(named) > 10
    # Each invariant is named by the docstring of a test.
    files = (ROOT / "tests" / "engine").rglob("test_*.py")
    held = {name for file in files for name in re.findall(r'^ *"""(INV_\d+)', file.read_text(), re.MULTILINE)}
    assert held == set(re.findall(r"INV_\d+", text)) == {"INV_001", "INV_002", "INV_003", "INV_004"}


async def _paid_by(db: Any) -> list[str]:
    return [row["who"] for row in await db.fetch("select who from ledger order by id")]


async def _all_of(db: Any, id: int) -> list[dict[str, Any]]:
    rows = await db.fetch("select * from gen_durable.gen_durable where id = $1", id)
    records = await db.fetch(
        "select * from gen_durable.executions where instance_id = $1 order by execution", id
    )
    # B sets DONE shortly after COMMITTED.
    return [
        *map(dict, rows),
        *[{**row, "status": row["status"].replace("COMMITTED", "DONE")} for row in records],
    ]
