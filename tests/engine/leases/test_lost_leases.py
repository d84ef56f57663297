"""Running executions keep their lease; an execution without its lease commits nothing."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Spec,
    Stop,
    Worker,
    step,
)
from gen_durable._core.model import Execution
from gen_durable._db import pick as picks
from gen_durable._db.failures import StatementError
from gen_durable._db.plan import Plan
from gen_durable.telemetry import OutcomeStale, ReaperReaped
from tests.support.crashing_workers import Hog, Sleeper
from tests.support.rows import inbox_of, row_of
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE, Events, happens, holds, wait_ignoring_cancel
from tests.support.worker_process import worker_process

SHORT = msgspec.structs.replace(
    FAST, lease=timedelta(milliseconds=600), heartbeat=timedelta(milliseconds=200)
)
# As the reaper does, without waiting for it.
_REAP = """
update gen_durable.gen_durable set status = 'runnable', attempt = attempt + 1, crash_count = crash_count + 1,
       lease_token = null, lease_expires_at = null, locked_by = null, eligible_at = now() where id = $1"""
_EXPIRE = "update gen_durable.gen_durable set lease_expires_at = now() - interval '1 s' where id = $1"


@pytest.mark.clause("LEASE-4")
@pytest.mark.parametrize("step", ["block", "compute"])
async def test_step_that_blocks_the_loop_for_three_leases_keeps_its_lease(
    durable_dsn: str, db: Any, step: str
) -> None:
    async with (
        AsyncClient(durable_dsn, settings=SHORT) as client,
        worker_process(durable_dsn, SHORT) as first,
        worker_process(durable_dsn, SHORT) as second,
    ):
        for process in (first, second):
            await process.wait_for(ready=True)
        ref = await client.insert(Hog, 1.8, step=step)
        ended = await client.wait(ref, timeout=PATIENCE)
        for process in (first, second):
            process.send(signal.SIGTERM)
            assert await process.ends() == 0
    lines = first.lines + second.lines
    assert [line["pid"] for line in lines if "begun" in line] == [ended.result], "it ran once"
    assert not any(line.get("event") in ("reaper.reaped", "outcome.stale") for line in lines)
    row = await row_of(db, ref.id)
    assert (row["attempt"], row["crash_count"], row["execution"], row["step_seq"]) == (0, 0, 1, 1)


class Zombie(Machine[str, str]):
    """Two executions of one step: the first returns the outcome that its state names, late."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.is_there, self.may_go = asyncio.Event(), asyncio.Event()
        self.heir_is_there, self.heir_may_go = asyncio.Event(), asyncio.Event()
        self.keys: list[str] = []

    @step
    async def start(self, ctx: Context[str]) -> Outcome[str]:
        return Await("go", then=self.work)

    @step
    async def work(self, ctx: Context[str]) -> Outcome[str]:
        self.keys.append(ctx.idempotency_key)
        if len(self.keys) > 1:
            self.heir_is_there.set()
            await self.heir_may_go.wait()
            return Await("more", then=self.end, state="by the heir")
        self.is_there.set()
        await wait_ignoring_cancel(self.may_go)
        answers: dict[str, Outcome[str]] = {
            "next": Next(self.end, "by the zombie"),
            "retry": Retry(state="by the zombie"),
            "await": Await("zombie", then=self.end, state="by the zombie"),
            "schedule_children": ScheduleChildren([Spec(Leaf)], then=self.end, state="by the zombie"),
            "done": Done("by the zombie"),
            "stop": Stop("by the zombie"),
        }
        return answers[ctx.state]

    @step
    async def end(self, ctx: Context[str]) -> Outcome[str]:
        return Done(ctx.state)


class Leaf(Machine[None, None], queue="not served"):
    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        return Done()


@pytest.mark.clause("LEASE-3", "INV-1", "TEL-8")
async def test_outcome_after_a_lost_lease_is_discarded(
    durable_dsn: str, db: Any, subtests: pytest.Subtests
) -> None:
    machine = Zombie()
    kinds = ("next", "retry", "await", "schedule_children", "done", "stop")
    cases = itertools.product(kinds, ("begun", "committed"))
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as zombie:
        events = Events(zombie)
        for number, (kind, heir_has) in enumerate(cases, start=1):
            with subtests.test(kind=kind, heir_has=heir_has):
                machine.forget()
                ref = await zombie.insert(machine, kind)
                await zombie.wait(ref, timeout=PATIENCE, until="parked")
                await zombie.signal(ref, "go")
                await happens(machine.is_there)
                await db.execute(_REAP, ref.id)
                await happens(machine.heir_is_there)
                if heir_has == "committed":
                    machine.heir_may_go.set()
                    await zombie.wait(ref, timeout=PATIENCE, until="parked")
                before = await row_of(db, ref.id)
                machine.may_go.set()
                stale = await events.wait(OutcomeStale, count=number)
                after = await row_of(db, ref.id)
                assert {**after, "now": None} == {**before, "now": None}
                assert (stale.name, stale.id, stale.fsm) == ("outcome.stale", ref.id, "Zombie")
                assert (stale.step, stale.step_seq) == ("work", 2)
                assert await inbox_of(db, ref.id) == ["go"], (
                    "the heir consumes nothing by awaiting, and the zombie may not"
                )
                leaves = "select count(*) from gen_durable.gen_durable where fsm = 'Leaf'"
                assert await db.fetchval(leaves) == 0
                machine.heir_may_go.set()
                parked = await zombie.wait(ref, timeout=PATIENCE, until="parked")
                assert (parked.state, parked.awaits, parked.attempt, parked.step_seq) == (
                    "by the heir",
                    ("more",),
                    0,
                    2,
                )
                await zombie.signal(ref, "more")
                assert (await zombie.wait(ref, timeout=PATIENCE)).result == "by the heir"
                assert machine.keys == [f"{ref.id}:2"] * 2


@pytest.mark.clause("LEASE-5")
async def test_step_whose_lease_is_lost_is_cancelled(durable_dsn: str, db: Any) -> None:
    is_there, is_cancelled = asyncio.Event(), asyncio.Event()
    attempts: list[int] = []

    class Long(Machine[None, int]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[int]:
            attempts.append(ctx.attempt)
            if ctx.attempt == 0:
                is_there.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    is_cancelled.set()
                    raise
            return Done(ctx.attempt)

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[int]:
            raise AssertionError("a lost lease is nothing to handle")

    async with Worker([Long], dsn=durable_dsn, settings=FAST) as worker:
        events = Events(worker)
        ref = await worker.insert(Long)
        await happens(is_there)
        await db.execute(_REAP, ref.id)
        await happens(is_cancelled)
        assert (await worker.wait(ref, timeout=PATIENCE)).result == 1
        assert attempts == [0, 1]
        assert events.of(OutcomeStale) == []


@pytest.mark.parametrize("notices", ["the heartbeat", "the commit"])
async def test_lost_lease_is_logged_instead_of_the_steps_error(
    durable_dsn: str, db: Any, caplog: pytest.LogCaptureFixture, notices: str
) -> None:
    is_there, may_raise = asyncio.Event(), asyncio.Event()

    class Ship(Machine[None, int]):
        @step
        async def ship(self, ctx: Context[None]) -> Outcome[int]:
            if ctx.attempt == 0:
                is_there.set()
                await wait_ignoring_cancel(may_raise)
                raise ValueError("of no interest to anyone")
            return Done(1)

    settings = FAST if notices == "the heartbeat" else CALM
    async with Worker([Ship], dsn=durable_dsn, settings=settings) as worker:
        ref = await worker.insert(Ship)
        await happens(is_there)
        await db.execute(_REAP, ref.id)
        if notices == "the heartbeat":
            async with asyncio.timeout(PATIENCE.total_seconds()):
                while "lease lost" not in caplog.text:
                    await asyncio.sleep(0.02)
        may_raise.set()
        assert (await worker.wait(ref, timeout=PATIENCE)).result == 1
        stale = f"lease lost: Ship {ref.id}, step ship (worker {worker.name}); outcome discarded"
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while stale not in caplog.text:
                await asyncio.sleep(0.02)
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if "Ship" in line] == [stale], lines


async def test_stopped_process_that_resumes_commits_nothing(
    durable_dsn: str, db: Any, tmp_path: Path
) -> None:
    go = tmp_path / "go"

    class Heir(Machine[str, str], name="Sleeper"):
        @step
        async def block_loop(self, ctx: Context[str]) -> Outcome[str]:
            return Done(f"heir {ctx.attempt} {ctx.idempotency_key}")

    async with (
        AsyncClient(durable_dsn, settings=CALM) as client,
        worker_process(durable_dsn, CALM) as process,
    ):
        ref = await client.insert(Sleeper, str(go), step="block_loop")
        await process.wait_for(begun="block_loop")
        process.send(signal.SIGSTOP)
        await db.execute(_EXPIRE, ref.id)
        async with Worker([Heir], dsn=durable_dsn, settings=FAST):
            ended = await client.wait(ref, timeout=PATIENCE)
        assert ended.result == f"heir 1 {ref.id}:1"
        go.touch()
        process.send(signal.SIGCONT)
        stale = await process.wait_for(event="outcome.stale")
        assert (stale["id"], stale["fsm"], stale["step"], stale["step_seq"]) == (
            ref.id,
            "Sleeper",
            "block_loop",
            1,
        )
        assert (await client.get(ref)) == ended
        process.send(signal.SIGTERM)
        assert await process.ends() == 0


async def test_outcome_that_waited_for_a_lock_until_its_lease_was_lost_is_stale(
    durable_dsn: str, direct_dsn: str, db: Any
) -> None:
    user = await asyncpg.connect(direct_dsn)
    waiting = (
        "select {} from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    )

    class Locked(Machine[str, None]):
        @step
        async def lock(self, ctx: Context[str]) -> Outcome[None]:
            if ctx.attempt:
                return Done()
            await user.execute(f"begin; select from gen_durable.gen_durable where id = {ctx.id} for update")
            return Retry(timedelta(0))

    async with Worker([Locked], dsn=durable_dsn, settings=FAST) as worker:
        events = Events(worker)
        await worker.insert(Locked, "")
        await holds(db, waiting.format("count(*) > 0"))
        in_batch = await db.fetchval(waiting.format("min(pid)"))
        await holds(db, waiting.format("coalesce(min(pid), $1) <> $1"), in_batch)
        await user.execute(
            """update gen_durable.gen_durable
                  set status = 'runnable', lease_token = null, attempt = attempt + 1, eligible_at = now() + interval '1 hour';
               commit"""
        )
        await events.wait(OutcomeStale)
    await user.close()


class Reads(Machine[str, int]):
    """Returns the number of its signals."""

    @step
    async def read(self, ctx: Context[str]) -> Outcome[int]:
        return Done(len(ctx.inbox))


_LOADS = """
from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%s.target_id = any%'"""
_KEEPS = "select lease_token = $2 and lease_expires_at > $3 from gen_durable.gen_durable where id = $1"


@pytest.mark.clause("LEASE-2")
@pytest.mark.parametrize("ends", ["well", "with its connection"])
async def test_leases_are_renewed_while_an_inbox_is_loaded(
    durable_dsn: str, direct_dsn: str, db: Any, ends: str
) -> None:
    """If the load fails, all picked rows go back to the queue at no cost."""
    user = await asyncpg.connect(direct_dsn)
    async with AsyncClient(durable_dsn, settings=SHORT) as client:
        laden, bare = await client.insert(Reads, ""), await client.insert(Reads, "")
        await client.signal(laden, "noise")
        await user.execute("begin; lock table gen_durable.signals")
        async with Worker([Reads], dsn=durable_dsn, settings=SHORT):
            await holds(db, f"select count(*) > 0 {_LOADS}")
            for ref in (laden, bare):
                row = await row_of(db, ref.id)
                await holds(db, _KEEPS, ref.id, row["lease_token"], row["lease_expires_at"])
            if ends != "well":
                await db.execute(f"select pg_terminate_backend(pid) {_LOADS}")
            await user.close()
            assert (await client.wait(laden, timeout=PATIENCE)).result == 1
            assert (await client.wait(bare, timeout=PATIENCE)).result == 0
    for ref in (laden, bare):
        row = await row_of(db, ref.id)
        assert (row["attempt"], row["crash_count"]) == (0, 0)


async def test_failed_load_counts_as_a_crash_of_its_instance_only(
    durable_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = picks.load

    def load_less(executions: Sequence[Execution]) -> Plan[list[Execution]]:
        if bad.id in {one.id for one in executions}:
            raise StatementError("57014", "canceling statement due to statement timeout")
        return (yield from load(executions))

    monkeypatch.setattr(picks, "load", load_less)
    async with AsyncClient(durable_dsn, settings=FAST) as client:
        bad, good, bare = [await client.insert(Reads, "") for _ in range(3)]
        for ref in (bad, good):
            await client.signal(ref, "noise")
        worker = Worker([Reads], dsn=durable_dsn, settings=msgspec.structs.replace(FAST, crash_limit=1))
        events = Events(worker)
        async with worker:
            assert [(await client.wait(ref, timeout=PATIENCE)).result for ref in (good, bare)] == [1, 0]
            assert (await client.wait(bad, timeout=PATIENCE)).status == "failed"
    assert [event.ids for event in events.of(ReaperReaped)] == [(bad.id,)]
    for ref in (good, bare):
        row = await row_of(db, ref.id)
        assert (row["execution"], row["crash_count"]) == (1, 0)
