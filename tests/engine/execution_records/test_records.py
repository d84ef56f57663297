"""Every leased attempt at a step is an execution: visible while it runs, recorded when it ends."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Client,
    Context,
    Done,
    ExecutionRecord,
    ExecutionStatus,
    Machine,
    Next,
    Outcome,
    Retry,
    Stop,
    Worker,
    step,
)
from gen_durable._core.model import Committed
from gen_durable._db import commit as commits
from gen_durable._db import lease as leases
from gen_durable._db.pool import Database
from gen_durable.errors import NoTargetError
from gen_durable.testing import AsyncHarness, Harness
from tests.support.engine_plans import RECORDER, entry, inserted, new, picked
from tests.support.ledger import BOOK, booked, commit_with_effect
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE, happens

LEASED, IN_PROGRESS, COMMITTED, DONE, ABORTED = ExecutionStatus
_CANCEL = "update gen_durable.gen_durable set cancel_requested_at = now() where id = $1"
_EXPIRE = "update gen_durable.gen_durable set lease_expires_at = now() - interval '1 s' where id = $1"
SHORT = timedelta(milliseconds=1)


class Slow(Machine[None, str]):
    """Records when its step starts, and waits for the test."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.is_there, self.may_go = asyncio.Event(), asyncio.Event()
        self.began: list[datetime] = []

    @step
    async def run(self, ctx: Context[None]) -> Outcome[str]:
        self.began.append(await self._db.fetchval("select clock_timestamp()"))
        self.is_there.set()
        await self.may_go.wait()
        return Done("by and by")


async def _until(client: AsyncClient, id: int, status: ExecutionStatus) -> ExecutionRecord:
    """Wait until the last execution has this status, and return it."""
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while True:
            found = await client.executions(id)
            if found and found[-1].status is status:
                return found[-1]
            await asyncio.sleep(0.02)


@pytest.mark.clause("EXEC-3", "EXEC-4", "EXEC-7")
async def test_execution_is_leased_then_in_progress_then_done(durable_dsn: str, db: Any) -> None:
    machine = Slow(db)
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine)
        await happens(machine.is_there)
        (leased,) = await worker.executions(ref)
        assert leased == ExecutionRecord(
            exec_id=f"{ref.id}:1",
            job_id=ref.id,
            attempt=1,
            status=LEASED,
            step="run",
            step_seq=1,
            step_attempt=0,
            lease_owner=worker.name,
            lease_expires_at=leased.lease_expires_at,
            leased_at=leased.leased_at,
        )
        assert leased.leased_at is not None
        assert leased.lease_expires_at == leased.leased_at + CALM.lease
        running = await _until(worker, ref.id, IN_PROGRESS)
        seen = await db.fetchval("select clock_timestamp()")
        (began,) = machine.began
        assert seen - began < timedelta(seconds=1.3), "running within a second, and seen a moment later"
        assert running == msgspec.structs.replace(leased, status=IN_PROGRESS, started_at=running.started_at)
        machine.may_go.set()
        await worker.wait(ref, timeout=PATIENCE)
        (done,) = await worker.executions(ref)
    assert done == msgspec.structs.replace(
        leased,
        status=DONE,
        outcome="done",
        started_at=done.started_at,
        finished_at=done.finished_at,
    )
    assert running.started_at is not None
    assert done.started_at is not None
    assert done.finished_at is not None
    assert abs(done.started_at - running.started_at) < timedelta(milliseconds=50)
    assert abs(done.started_at - began) < timedelta(seconds=1)
    assert leased.leased_at <= done.started_at < seen < done.finished_at


async def test_chained_executions_have_exact_times(durable_dsn: str, db: Any) -> None:
    class Chain(Machine[int, int]):
        @step
        async def count(self, ctx: Context[int]) -> Outcome[int]:
            return Done(ctx.state) if ctx.state == 4 else Next(self.count, ctx.state + 1)

    async with Worker([Chain], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Chain, 0)
        await worker.wait(ref, timeout=PATIENCE)
        records = await worker.executions(ref)
    assert [one.exec_id for one in records] == [f"{ref.id}:{n}" for n in (1, 2, 3, 4, 5)]
    assert [(one.attempt, one.step_seq, one.step_attempt) for one in records] == [
        (n, n, 0) for n in (1, 2, 3, 4, 5)
    ]
    assert [one.outcome for one in records] == ["next"] * 4 + ["done"]
    assert {(one.status, one.lease_owner, one.step) for one in records} == {(DONE, worker.name, "count")}
    for one in records:
        assert one.leased_at is not None
        assert one.started_at is not None
        assert one.finished_at is not None
        assert one.leased_at <= one.started_at <= one.finished_at
    # On one lease: an execution begins when its predecessor ends.
    assert [one.leased_at for one in records[1:]] == [one.finished_at for one in records[:-1]]


async def test_outcome_with_an_effect_is_committed_then_done(database: Database, db: Any) -> None:
    await inserted(database, new())
    (execution,) = await picked(database)

    async def book(tx: Any) -> None:
        await tx.execute(BOOK, "once", "")

    outcome = entry(execution, "done", payload="1", effect=book)
    assert await commit_with_effect(database, outcome, RECORDER) == Committed("done")
    assert await booked(db) == ["once"]
    look = "select status, outcome, finished_at from gen_durable.gen_durable_executions"
    (committed,) = await db.fetch(look)
    assert (committed["status"], committed["outcome"]) == ("COMMITTED", "done")
    await database.run(commits.finish([outcome]))
    (done,) = await db.fetch(look)
    assert (done["status"], done["finished_at"]) == ("DONE", committed["finished_at"])


@pytest.mark.clause("EXEC-6")
async def test_retry_aborts_its_execution(durable_dsn: str, db: Any) -> None:
    class Twice(Machine[None, int]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[int]:
            if ctx.attempt == 0:
                raise ConnectionError("the bank does not answer")
            return Retry() if ctx.attempt == 1 else Done(ctx.attempt)

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[int]:
            return Retry()

    async with Worker([Twice], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Twice)
        await worker.wait(ref, timeout=PATIENCE)
        records = await worker.executions(ref)
    assert [(one.status, one.outcome, one.attempt, one.step_attempt, one.step_seq) for one in records] == [
        (ABORTED, "retry", 1, 0, 1),
        (ABORTED, "retry", 2, 1, 1),
        (DONE, "done", 3, 2, 1),
    ]
    assert [one.error for one in records] == ["ConnectionError: the bank does not answer", None, None]
    assert all(one.started_at is not None for one in records)


def test_stop_is_a_transition_with_a_reason(durable: Harness) -> None:
    class Strict(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            return Stop("no such card")

    ref = durable.insert(Strict)
    durable.drain()
    (record,) = durable.executions(ref)
    assert (record.status, record.outcome, record.error) == (DONE, "stop", "no such card")


@pytest.mark.clause("EXEC-6")
async def test_shutdown_aborts_executions_at_no_attempt(durable_dsn: str, db: Any) -> None:
    machine = Slow(db)
    settings = msgspec.structs.replace(CALM, drain_timeout=timedelta(0))
    async with Worker([machine], dsn=durable_dsn, settings=settings) as worker:
        ref = await worker.insert(machine)
        await happens(machine.is_there)
    machine.may_go.set()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as heir:
        await heir.wait(ref, timeout=PATIENCE)
        released, done = await heir.executions(ref)
    assert (released.status, released.outcome, released.lease_owner) == (ABORTED, "shutdown", worker.name)
    assert released.started_at is not None, "its step had begun"
    assert abs(released.started_at - machine.began[0]) < timedelta(seconds=1)
    assert (released.attempt, released.step_attempt, released.step_seq) == (1, 0, 1)
    assert (done.attempt, done.step_attempt, done.step_seq) == (2, 0, 1)
    assert (done.status, done.lease_owner) == (DONE, heir.name)


async def test_prefetched_execution_has_no_start(durable_dsn: str, db: Any) -> None:
    """A worker may lease more rows than it can run; those are LEASED, not IN_PROGRESS."""
    machine = Slow(db)
    settings = msgspec.structs.replace(CALM, drain_timeout=timedelta(0))
    async with Worker([machine], dsn=durable_dsn, queues={"default": 1}, settings=settings) as worker:
        refs = [await worker.insert(machine) for _ in range(3)]
        await happens(machine.is_there)
        await asyncio.sleep(0.2)
    async with AsyncClient(durable_dsn, settings=CALM) as client:
        records = [one for ref in refs for one in await client.executions(ref)]
    assert {one.outcome for one in records} == {"shutdown"}
    assert [one.started_at is not None for one in records] == [True] + [False] * (len(records) - 1)


async def test_reaper_aborts_executions_with_expired_leases(durable_dsn: str, db: Any) -> None:
    machine = Slow(db)
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine)
        running = await _until(worker, ref.id, IN_PROGRESS)
        await db.execute(_EXPIRE, ref.id)
        async with await Database.open(durable_dsn, "gen_durable") as database:
            await database.run_in_transaction(leases.reap(SHORT, leases.CrashPolicy(20, "all")))
        (reaped,) = await worker.executions(ref)
        assert (await worker.get(ref)) is not None
        machine.may_go.set()
    assert (reaped.status, reaped.outcome, reaped.step_attempt) == (ABORTED, "lease", 0)
    assert (reaped.lease_owner, reaped.leased_at, reaped.started_at) == (
        worker.name,
        running.leased_at,
        running.started_at,
    )
    assert reaped.finished_at is not None


@pytest.mark.clause("EXEC-6")
async def test_last_allowed_crash_is_recorded_as_poison(database: Database, db: Any) -> None:
    (id,) = await inserted(database, new())
    for _ in range(3):
        await db.execute("update gen_durable.gen_durable set eligible_at = now()")
        assert len(await picked(database)) == 1
        await db.execute(_EXPIRE, id)
        await database.run_in_transaction(leases.reap(SHORT, leases.CrashPolicy(3, "all")))
    rows = await db.fetch("select * from gen_durable.gen_durable_executions order by attempt")
    assert [(row["status"], row["outcome"], row["attempt"], row["step_attempt"]) for row in rows] == [
        ("ABORTED", "lease", 1, 0),
        ("ABORTED", "lease", 2, 1),
        ("ABORTED", "poison", 3, 2),
    ]
    assert {(row["step_seq"], row["exec_id"]) for row in rows} == {(1, f"{id}:{n}") for n in (1, 2, 3)}
    assert await db.fetchval("select status from gen_durable.gen_durable") == "failed"


@pytest.mark.parametrize("ended_by", ["its own outcome", "the reaper"])
async def test_cancelled_execution_is_aborted_whatever_it_returns(
    durable_dsn: str, db: Any, ended_by: str
) -> None:
    machine = Slow(db)
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine)
        await happens(machine.is_there)
        await db.execute(_CANCEL, ref.id)
        if ended_by == "the reaper":
            await db.execute(_EXPIRE, ref.id)
            async with await Database.open(durable_dsn, "gen_durable") as database:
                await database.run_in_transaction(leases.reap(SHORT, leases.CrashPolicy(20, "all")))
        machine.may_go.set()
        instance = await worker.wait(ref, timeout=PATIENCE)
        (record,) = await worker.executions(ref)
    assert (record.status, record.outcome, record.step_seq) == (ABORTED, "cancelled", 1)
    assert (instance.status.value, instance.stored_result, instance.step_seq) == ("cancelled", None, 0)


async def test_start_time_is_kept_when_the_effect_fails(durable_dsn: str, db: Any) -> None:
    """The time in `handle` belongs to the execution; it does not move the start."""

    async def fail(tx: object) -> None:
        await asyncio.sleep(0.3)
        raise ValueError("no")

    class Careless(Machine[str, str]):
        @step
        async def run(self, ctx: Context[str]) -> Outcome[str]:
            return Done("", effect=fail)

        def handle(self, error: Exception, ctx: Context[str]) -> Outcome[str]:
            return Done("handled") if ctx.state == "once" else Done("", effect=fail)

    async with Worker([Careless], dsn=durable_dsn, settings=CALM) as worker:
        for kind in ("once", "twice"):
            ref = await worker.insert(Careless, kind)
            await worker.wait(ref, timeout=PATIENCE)
            (record,) = await worker.executions(ref)
            assert record.leased_at is not None
            assert record.started_at is not None
            assert record.finished_at is not None
            assert record.started_at - record.leased_at < timedelta(milliseconds=200)
            assert record.finished_at - record.started_at > timedelta(milliseconds=300)


def test_both_clients_return_the_same_executions(durable: Harness, durable_dsn: str) -> None:
    class Pair(Machine[None, int]):
        @step
        async def first(self, ctx: Context[None]) -> Outcome[int]:
            return Next(self.second) if ctx.attempt else Retry()

        @step
        async def second(self, ctx: Context[None]) -> Outcome[int]:
            return Done(2)

    ref = durable.insert(Pair, correlation_key="pair")
    durable.drain()

    async def ask() -> list[Any]:
        async with AsyncClient(durable_dsn) as client:
            return [await client.executions(target) for target in (ref, ref.id)]

    with Client(durable_dsn) as client:
        found = [client.executions(target) for target in (ref, ref.id)]
    assert found == asyncio.run(ask())
    assert [one.status for one in found[0]] == [ABORTED, DONE, DONE]
    assert found[0] == found[1]
    assert all(one.started_at is not None for one in found[0])


async def test_executions_are_found_by_correlation_key(async_durable: AsyncHarness) -> None:
    class Waits(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            return Next(self.run, delay=timedelta(hours=1))

    await async_durable.insert(Waits, correlation_key="there")
    await async_durable.drain(collapse=False)
    (record,) = await async_durable.executions("there")
    assert (record.status, record.outcome) == (DONE, "next")
    with pytest.raises(NoTargetError):
        await async_durable.executions("elsewhere")


async def test_instance_that_was_never_leased_has_no_executions(async_durable: AsyncHarness) -> None:
    class Later(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            return Done()

    ref = await async_durable.insert(Later, schedule_in=timedelta(hours=1))
    assert list(await async_durable.executions(ref)) == []


async def test_view_and_clients_return_the_same_executions(durable_dsn: str, db: Any) -> None:
    machine = Slow(db)
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine)
        await happens(machine.is_there)
        live = await db.fetch("select * from gen_durable.gen_durable_executions")
        assert [_record(row) for row in live] == list(await worker.executions(ref))
        machine.may_go.set()
        await worker.wait(ref, timeout=PATIENCE)
        ended = await db.fetch("select * from gen_durable.gen_durable_executions")
        assert [_record(row) for row in ended] == list(await worker.executions(ref))
        job = await db.fetchrow("select * from gen_durable.gen_durable_job_state")
    assert (job["job_id"], job["payload"], job["attempt"], job["state"]) == (ref.id, "null", 1, "SUCCEEDED")


async def test_heartbeat_extends_the_lease_of_an_execution(durable_dsn: str, db: Any) -> None:
    machine = Slow(db)
    async with Worker([machine], dsn=durable_dsn, settings=FAST) as worker:
        ref = await worker.insert(machine)
        await happens(machine.is_there)
        first = await _until(worker, ref.id, IN_PROGRESS)
        await asyncio.sleep(0.7)
        (later,) = await worker.executions(ref)
        assert first.lease_expires_at is not None
        assert later.lease_expires_at is not None
        assert later.lease_expires_at > first.lease_expires_at
        assert later == msgspec.structs.replace(first, lease_expires_at=later.lease_expires_at)
        machine.may_go.set()
        await worker.wait(ref, timeout=PATIENCE)
        (ended,) = await worker.executions(ref)
    assert ended.lease_expires_at is not None
    assert ended.finished_at is not None
    assert later.lease_expires_at <= ended.lease_expires_at <= ended.finished_at + FAST.lease


def _record(row: Any) -> ExecutionRecord:
    return ExecutionRecord(**{**dict(row), "status": ExecutionStatus(row["status"])})
