"""Workers and clients killed during control verbs."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gen_durable import AsyncClient, CancelRequested, Deleted, Restored, Retried, Spec, Status, Worker
from tests.support.crashing_workers import Sleeper
from tests.support.machines import Order, Plain, Sitter
from tests.support.rows import has_no_lease, job_states, row_of
from tests.support.settings import FAST
from tests.support.waiting import PATIENCE, eventually, happens, holds
from tests.support.worker_process import program, worker_process

NEVER = "/nonexistent/go"


@pytest.mark.clause("CAN-7")
async def test_killed_worker_with_a_requested_cancel_ends_as_cancelled(
    durable_dsn: str, db: Any, subtests: pytest.Subtests
) -> None:
    """The reaper of another worker ends it, without knowing the machine."""
    cases = list(itertools.product(("sleep", "block"), ("cancel", "soft_delete")))
    async with AsyncClient(durable_dsn, settings=FAST) as client:
        refs = {
            case: await client.insert(
                Sleeper, NEVER, step=case[0], concurrency_key=f"{case}", correlation_key=f"{case}"
            )
            for case in cases
        }
        async with worker_process(durable_dsn, FAST) as victim:
            for _ in cases:
                await victim.wait_for(begun=...)
            for (_, verb), ref in refs.items():
                answer = await (client.cancel(ref) if verb == "cancel" else client.soft_delete(ref))
                assert isinstance(answer, CancelRequested | Deleted)
            await victim.kill()
        async with Worker([Plain], dsn=durable_dsn, settings=FAST):
            for case, ref in refs.items():
                with subtests.test(case=case):
                    ended = await eventually(client, ref, "cancelled")
                    heir = await client.insert(Plain, 7, concurrency_key=f"{case}", correlation_key=f"{case}")
                    assert (await client.wait(heir, timeout=PATIENCE)).result == 7, "both keys are free"
                    (record,) = await client.executions(ref)
                    row = await row_of(db, ref.id)
                    assert (ended.step_seq, ended.crash_count, row["status"]) == (0, 1, "cancelled")
                    assert has_no_lease(row)
                    assert (record.status, record.outcome) == ("ABORTED", "cancelled")
                    assert await job_states(db, [ref.id]) == ["CANCELLED"]


async def test_retried_instance_runs_while_its_old_step_still_runs(durable_dsn: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with AsyncClient(durable_dsn, settings=FAST) as client:
        ref = await client.insert(Sleeper, NEVER)
        async with worker_process(durable_dsn, FAST) as victim:
            await victim.wait_for(begun="sleep")
            await client.cancel(ref, force=True)
            assert await client.retry(ref, state=str(go)) == Retried(ref.id)
            # The old step may still run in the same process.
            begun = await victim.wait_for(begun="sleep")
            assert (begun["attempt"], begun["key"]) == (0, f"{ref.id}:1")
            await victim.kill()
        go.touch()
        async with worker_process(durable_dsn, FAST) as heir:
            begun = await heir.wait_for(begun="sleep")
            assert (begun["attempt"], begun["key"]) == (1, f"{ref.id}:1")
            ended = await client.wait(ref, timeout=PATIENCE)
        outcomes = [one.outcome for one in await client.executions(ref)]
    assert (ended.result, ended.step_seq) == (str(begun["pid"]), 1)
    assert outcomes == ["cancelled", "lease", "done"]


_BUSY = """
select count(*) from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid() and state = 'active' and query like '%\\_rows(%'"""


@pytest.mark.clause("CTL-3")
@pytest.mark.parametrize("verb", ["cancel", "delete", "restore", "retry"])
async def test_client_killed_during_a_bulk_verb(durable_dsn: str, db: Any, verb: str) -> None:
    """Each instance is either changed completely or not at all, and another client can finish."""
    async with AsyncClient(durable_dsn) as client:
        refs = await client.insert_all(
            [Spec(Plain if n % 2 else Order, n, correlation_key=f"c{n}") for n in range(40)]
        )
        if verb in ("retry", "restore"):
            await client.cancel_all()
        if verb == "restore":
            await client.delete_all()
        before = await db.fetchval("select count(*) from gen_durable.audit_events")
        blocker = await asyncpg.connect(durable_dsn)
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute(
            "select from gen_durable.gen_durable where id = $1 for no key update", refs[20].id
        )
        async with program(
            "tests.control.bulk_client", durable_dsn, verb, *(str(ref.id) for ref in refs)
        ) as asker:
            await holds(db, f"{_BUSY} and wait_event_type = 'Lock'")
            await asker.kill()
        await transaction.rollback()
        await blocker.close(timeout=5)
        await holds(db, f"select ({_BUSY}) = 0")
        # The server may have finished the statement of the killed client, completely or not at all.
        audited = await db.fetchval("select count(*) from gen_durable.audit_events") - before
        events = 2 if verb == "delete" else 1
        column = "deleted_at is not null" if verb in ("delete", "restore") else "status = 'cancelled'"
        is_so = await db.fetchval(f"select count(*) from gen_durable.gen_durable where {column}")
        happened = is_so if verb in ("cancel", "delete") else len(refs) - is_so
        assert audited == events * happened
        match verb:
            case "cancel":
                assert await client.cancel_all() == len(refs) - happened
            case "delete":
                assert await client.delete_all() == len(refs) - happened
            case "retry":
                assert await client.retry_all() == len(refs) - happened
            case _:
                assert {type(await client.restore(ref)) for ref in refs} == {Restored}
    states = await job_states(db, [ref.id for ref in refs])
    assert set(states) == ({"PENDING"} if verb == "retry" else {"CANCELLED"})


@pytest.mark.clause("BAT-2")
@pytest.mark.parametrize("verb", ["cancel", "retry"])
async def test_runner_of_a_batch_killed_twice(
    durable_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch, verb: Any
) -> None:
    """Another process continues: each instance is changed and counted once."""
    monkeypatch.setattr("gen_durable._verbs.batches._LEASE", timedelta(seconds=2))
    many = 20_000
    async with AsyncClient(durable_dsn) as client:
        for first in range(0, many, 5_000):
            await client.insert_all([Spec(Plain, n) for n in range(first, first + 5_000)])
        if verb == "retry":
            await client.cancel_all()
        batch = await client.start_batch(verb, actor="ann")
        for killed_after in (2_000, 8_000):
            async with program("tests.control.bulk_client", durable_dsn, "batch", str(batch.id)) as runner:
                while (await client.get_batch(batch.id)).visited < killed_after:
                    await asyncio.sleep(0.01)
                await runner.kill()
        killed = await client.get_batch(batch.id)
        assert (killed.status, killed.is_over) == ("running", False), "until its lease expires"
        ended = await client.run_batch(batch)
    outcome = {"cancel": "cancelled", "retry": "retried"}[verb]
    assert (ended.status, dict(ended.outcomes)) == ("finished", {outcome: many})
    events = await db.fetchrow(
        """select count(*) as events, count(distinct instance_id) as instances from gen_durable.audit_events
            where event = $1 and (data ->> 'batch')::bigint = $2 and actor = 'ann'""",
        outcome,
        batch.id,
    )
    assert tuple(events) == (many, many)
    assert await db.fetchval("select lease_token from gen_durable.batches") == 3, "it had three runners"


@pytest.mark.clause("CAN-3")
async def test_heartbeat_notices_a_cancel_of_another_process(durable_dsn: str) -> None:
    """The step is cancelled although its worker gets no notification."""
    machine = Sitter()
    async with Worker([machine], dsn=durable_dsn, settings=FAST) as worker:
        ref = await worker.insert(machine, "", step="looks")
        await happens(machine.is_there)
        async with AsyncClient(durable_dsn) as elsewhere:
            assert await elsewhere.cancel(ref) == CancelRequested(ref.id)
        assert (await worker.wait(ref, timeout=PATIENCE)).status is Status.CANCELLED
    assert machine.saw == ["True"]
