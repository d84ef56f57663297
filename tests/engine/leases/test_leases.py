"""LEASE, CRASH: who may write, and what becomes of the work of the dead."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

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
    Settings,
    Spec,
    Worker,
    step,
)
from gen_durable._db import lease as leases
from gen_durable._db.pool import Database
from gen_durable._runtime.database_status import DatabaseStatus
from gen_durable._runtime.maintenance.reaper import Reaper
from gen_durable._runtime.wake import Wakes
from gen_durable.telemetry import OutcomeStale, ReaperReaped, Telemetry
from gen_durable.testing import AsyncHarness, Crash, Harness
from tests.support.crashing_workers import Sleeper
from tests.support.machines import Say, probe
from tests.support.rows import SqlConnection, has_no_lease, is_near
from tests.support.settings import BRISK, CALM, FAST
from tests.support.waiting import PATIENCE, Events, happens, happens_to_the_deaf
from tests.support.worker_process import worker_process

# Leases that end while a test watches, and are renewed so often that a busy machine does not lose them.
STEADY = msgspec.structs.replace(BRISK, lease=timedelta(milliseconds=800))


class Gate(Machine[str, str]):
    """Waits in its step until it is let go, and then answers as it was told, or as its state says."""

    def __init__(self, answer: str = "", *, is_deaf: bool = False) -> None:
        self.answer = answer
        self.is_deaf = is_deaf
        self.was_cancelled = False
        self.close()

    def close(self) -> None:
        self.is_there, self.may_go = asyncio.Event(), asyncio.Event()

    @step
    async def wait(self, ctx: Context[str]) -> Outcome[str]:
        self.is_there.set()
        try:
            await (happens_to_the_deaf(self.may_go) if self.is_deaf else self.may_go.wait())
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        match self.answer or ctx.state:
            case "next":
                return Next(self.wait, "zombie", requeue=True)
            case "await":
                return Await("never", then=self.wait, state="zombie")
            case "children":
                return ScheduleChildren([Spec(Say, "orphan")], then=self.wait)
            case "retry":
                return Retry(state="zombie")
            case _:
                return Done("zombie")


@pytest.mark.clause("LEASE-1")
async def test_a_picked_row_has_a_lease(durable_dsn: str, sql: SqlConnection) -> None:
    gate, tokens = Gate(), set()
    async with Worker([gate], dsn=durable_dsn, settings=CALM) as worker:
        for _ in range(2):
            gate.is_there.clear()
            ref = await worker.insert(gate, "done")
            await happens(gate.is_there)
            row = sql.row(ref.id)
            assert (row["status"], row["locked_by"], row["execution"]) == ("executing", worker.name, 1)
            assert row["lease_expires_at"] - row["updated_at"] == CALM.lease
            assert is_near(row["updated_at"], sql.value("select now()"))
            tokens.add(row["lease_token"])
        gate.may_go.set()
    assert len(tokens) == 2


@pytest.mark.clause("LEASE-2")
async def test_live_executions_keep_their_leases(durable_dsn: str, sql: SqlConnection) -> None:
    gate = Gate()
    async with (
        Worker([gate], dsn=durable_dsn, settings=STEADY) as worker,
        Worker([Say], dsn=durable_dsn, settings=STEADY) as reaper,
    ):
        events = Events(reaper)
        ref = await worker.insert(gate, "done")
        await happens(gate.is_there)
        before = sql.row(ref.id)
        await asyncio.sleep(1.2)
        after = sql.row(ref.id)
        gate.may_go.set()
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert after["lease_expires_at"] > before["lease_expires_at"]
    assert (after["lease_token"], after["updated_at"]) == (before["lease_token"], before["updated_at"])
    assert (ended.result, ended.crash_count, events.of(ReaperReaped)) == ("zombie", 0, [])


@pytest.mark.clause("LEASE-3", "INV-1", "EXEC-9", "TEL-8")
@pytest.mark.parametrize(
    ("level", "outcomes"),
    [("all", ["next", "await", "children", "retry", "done"]), ("failures", ["next"]), ("off", ["next"])],
)
async def test_an_outcome_that_comes_too_late_writes_nothing(
    durable_dsn: str,
    async_durable: AsyncHarness,
    sql: SqlConnection,
    level: Any,
    outcomes: list[str],
    subtests: pytest.Subtests,
) -> None:
    zombie, heir = Gate(is_deaf=True), Gate("done")
    async_durable.use(heir)
    settings = msgspec.structs.replace(CALM, executions=level)
    async with Worker([zombie], dsn=durable_dsn, settings=settings, queues={"default": 1}) as worker:
        events = Events(worker)
        for number, outcome in enumerate(outcomes, start=1):
            with subtests.test(outcome=outcome):
                zombie.close()
                heir.close()
                ref = await worker.insert(zombie, outcome, concurrency_key="k")
                await worker.signal(ref, "unread")
                await happens(zombie.is_there)
                sql.expire(ref.id)
                taken = asyncio.get_running_loop().create_task(async_durable.drain())
                await happens(heir.is_there)
                before = sql.row(ref.id), sql.inbox(ref.id), sql.executions(ref.id)
                zombie.may_go.set()
                stale = await events.wait(OutcomeStale, count=number)
                assert (sql.row(ref.id), sql.inbox(ref.id), sql.executions(ref.id)) == before
                assert stale == OutcomeStale(id=ref.id, fsm="Gate", step="wait", step_seq=1)
                assert await worker.count(Say) == 0
                heir.may_go.set()
                await taken
                assert sql.columns(ref.id, "status state attempt") == ("done", outcome, 1)


@pytest.mark.clause("LEASE-4")
def test_a_step_that_blocks_the_loop_keeps_its_lease(durable_dsn: str, sql: SqlConnection) -> None:
    def block(ctx: Context[int]) -> Outcome[int]:
        time.sleep(1.2)
        return Done(ctx.attempt)

    machine = probe(block)
    with (
        Worker([Say], dsn=durable_dsn, settings=STEADY).in_thread(),
        Worker([machine], dsn=durable_dsn, settings=STEADY).in_thread() as client,
    ):
        ref = client.insert(machine, 7)
        assert client.wait(ref, timeout=PATIENCE).result == 0
    assert sql.columns(ref.id, "execution crash_count") == (1, 0)


@pytest.mark.clause("LEASE-5")
async def test_an_execution_without_its_lease_is_cancelled(durable_dsn: str, sql: SqlConnection) -> None:
    gate = Gate()
    async with Worker([gate], dsn=durable_dsn, settings=BRISK) as worker:
        await worker.insert(gate, "done")
        await happens(gate.is_there)
        sql("update gen_durable.gen_durable set lease_token = 1, lease_expires_at = now() + interval '1 h'")
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while not gate.was_cancelled:
                await asyncio.sleep(0.01)


@pytest.mark.clause("CRASH-1", "CRASH-2")
def test_the_reaper_returns_what_the_dead_had_leased(durable: Harness, sql: SqlConnection) -> None:
    handled: list[Exception] = []

    def handle(error: Exception, ctx: Context[int]) -> Outcome[Any]:
        handled.append(error)
        return Done(0)

    ref = durable.insert(probe(lambda ctx: Done(ctx.attempt), handle=handle), 7, concurrency_key="k")
    sql.abandon(ref.id)
    durable.drain(collapse=False)
    row = sql.row(ref.id)
    assert has_no_lease(row)
    assert (row["status"], row["step"], row["state"], row["step_seq"]) == ("runnable", "one", 7, 0)
    assert (row["attempt"], row["crash_count"]) == (1, 1)
    durable.drain()
    durable.assert_done(ref, 1)
    assert handled == []


@pytest.mark.clause("CRASH-3")
def test_after_each_crash_the_next_try_waits_longer(durable: Harness, sql: SqlConnection) -> None:
    crashes = [0, 1, 2, 7, 8, 9, 18]
    for count in crashes:
        ref = durable.insert(Say, "hi")
        sql("update gen_durable.gen_durable set crash_count = %s where id = %s", count, ref.id)
        sql.abandon(ref.id)
    durable.drain(collapse=False)
    waits = sql(
        "select extract(epoch from eligible_at - updated_at)::int as s from gen_durable.gen_durable order by id"
    )
    assert [row["s"] for row in waits] == [1, 2, 4, 128, 256, 300, 300]


@pytest.mark.clause("CRASH-4", "SIG-14", "CHD-6")
def test_what_kills_its_workers_again_and_again_fails_as_poison(durable_dsn: str, sql: SqlConnection) -> None:
    def join(ctx: Context[int]) -> Outcome[Any]:
        return Done([child.last_error for child in ctx.children])

    machine = probe(
        lambda ctx: ScheduleChildren([Spec(Say, "a", schedule_in=BRISK.lease * 100)], then="two"), join
    )
    with Harness(durable_dsn, settings=Settings.load(crash_limit=3)) as durable:
        parent = durable.insert(machine, 7)
        durable.drain(collapse=False)
        (child,) = durable.children(parent)
        durable.signal(child.id, "unread", dedup_key="once")
        for crash in (1, 2, 3):
            sql.abandon(child.id)
            durable.drain(collapse=False)
            # What has failed keeps the attempt at which it did.
            status, attempt = ("failed", 2) if crash == 3 else ("runnable", crash)
            assert sql.columns(child.id, "status attempt crash_count") == (status, attempt, crash)
        poison = "poison: the process died 3 times in step say"
        durable.assert_failed(child.id, match=poison)
        assert durable.assert_done(parent) == [poison]
    assert has_no_lease(sql.row(child.id))
    assert sql.signals(child.id) == 0


@pytest.mark.clause("CRASH-5")
def test_a_committed_outcome_forgets_the_crashes(durable: Harness, sql: SqlConnection) -> None:
    outcomes: list[Outcome[Any]] = [Next("two", delay=CALM.lease), Retry(CALM.lease), Await("go", then="two")]
    machine = probe(lambda ctx: outcomes[ctx.state])
    refs = [durable.insert(machine, number) for number in range(len(outcomes))]
    sql("update gen_durable.gen_durable set crash_count = 19, attempt = 19")
    durable.drain(collapse=False)
    for ref, outcome in zip(refs, outcomes, strict=True):
        expected = (0, 20 if isinstance(outcome, Retry) else 0)
        assert sql.columns(ref.id, "crash_count attempt") == expected, outcome


@pytest.mark.clause("CRASH-6", "TEL-7")
async def test_any_worker_reaps_for_all(durable_dsn: str, sql: SqlConnection) -> None:
    class Foreign(Machine[int, None], queue="elsewhere"):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[None]:
            return Done()

    settings = msgspec.structs.replace(BRISK, crash_limit=2)
    worker = Worker([Say], dsn=durable_dsn, settings=settings)
    events = Events(worker)
    async with worker:
        first, second = await worker.insert(Foreign, 1), await worker.insert(Foreign, 1)
        sql("update gen_durable.gen_durable set crash_count = 1 where id = %s", second.id)
        with sql.conn.transaction():
            sql.abandon(first.id)
            sql.abandon(second.id)
        reaped = await events.wait(ReaperReaped)
    assert reaped == ReaperReaped(count=2, ids=(first.id, second.id), capped=(second.id,))
    assert sql.columns(first.id, "status attempt") == ("runnable", 1)


@pytest.mark.clause("CRASH-7")
def test_a_row_that_somebody_holds_does_not_hold_up_the_reaper(durable: Harness, sql: SqlConnection) -> None:
    held, free = durable.insert(Say, "held"), durable.insert(Say, "free")
    sql.abandon(held.id)
    sql.abandon(free.id)
    with sql.another() as other:
        other.execute("select from gen_durable.gen_durable where id = %s for update", [held.id])
        durable.drain(collapse=False)
        assert sql.columns(free.id, "status attempt") == ("runnable", 1)
        assert sql.columns(held.id, "status attempt") == ("executing", 0)


@pytest.mark.clause("CRASH-8")
async def test_after_an_outage_the_living_renew_first(
    durable_dsn: str, direct_dsn: str, sql: SqlConnection
) -> None:
    with Harness(durable_dsn) as client:
        ref = client.insert(Say, "hi")
    sql.abandon(ref.id)
    async with await Database.open(direct_dsn, "gen_durable", size=1) as database:
        # As if the server had been started less than one lease ago.
        plan = leases.reap(timedelta(days=3650), 20, "all")
        assert (await database.run_in_transaction(plan)).ids == []
    settings = msgspec.structs.replace(BRISK, lease=timedelta(milliseconds=600))
    worker = Worker([Say], dsn=durable_dsn, settings=settings)
    events = Events(worker)
    began = time.monotonic()
    async with worker:
        await events.wait(ReaperReaped)
    assert time.monotonic() - began >= 0.6


@pytest.mark.clause("CRASH-9", "CHD-10")
@pytest.mark.parametrize("ends_by", ["signal", "clock", "children"])
def test_a_step_that_runs_again_sees_what_it_saw(durable: Harness, ends_by: str) -> None:
    seen: list[Any] = []

    def park(ctx: Context[int]) -> Outcome[Any]:
        if ends_by == "children":
            return ScheduleChildren([Spec(Say, "a"), Spec(Say, "b")], then="two")
        return Await("go", then="two", timeout=CALM.lease)

    def look(ctx: Context[int]) -> Outcome[Any]:
        seen.append(
            (
                ctx.timed_out,
                [message.id for message in ctx.awaited],
                [message.id for message in ctx.inbox],
                [(child.id, child.result) for child in ctx.children],
            )
        )
        return Done(0)

    ref = durable.insert(probe(park, look), 7)
    durable.signal(ref, "other")
    durable.drain() if ends_by != "children" else None
    if ends_by == "signal":
        durable.signal(ref, "go")
    durable.fire_timeouts()
    with durable.crash_at("two"), pytest.raises(Crash):
        durable.drain()
    durable.drain()
    durable.assert_done(ref)
    first, second = seen
    assert first == second
    assert (first[0], len(first[1]), len(first[2]), len(first[3])) == {
        "signal": (False, 1, 2, 0),
        "clock": (True, 0, 1, 0),
        "children": (False, 0, 1, 2),
    }[ends_by]


@pytest.mark.clause("CRASH-10")
async def test_what_a_killed_process_was_executing_is_finished_by_another(
    durable_dsn: str, sql: SqlConnection, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    async with AsyncClient(durable_dsn, settings=FAST) as client:
        ref = await client.insert(Sleeper, str(go))
        async with worker_process(durable_dsn, FAST) as victim:
            begun = await victim.hears(begun="sleep")
            await victim.kill()
        go.touch()
        async with worker_process(durable_dsn, FAST) as heir:
            again = await heir.hears(begun="sleep")
            ended = await client.wait(ref, timeout=PATIENCE)
    assert (begun["attempt"], again["attempt"], begun["key"]) == (0, 1, again["key"])
    assert ended.status == "done"
    assert [row["outcome"] for row in sql.executions(ref.id)] == ["lease", "done"]


@pytest.mark.clause("CRASH-11")
async def test_a_lease_that_has_run_out_may_still_be_renewed(
    durable_dsn: str, direct_dsn: str, sql: SqlConnection
) -> None:
    settings = msgspec.structs.replace(BRISK, lease=timedelta(milliseconds=600), heartbeat=BRISK.lease)
    async with Worker([Say], dsn=durable_dsn, settings=settings) as worker:
        events = Events(worker)
        ref = await worker.insert(Say, "hi", schedule_in=PATIENCE)
        await asyncio.sleep(0.7)  # in touch for longer than a lease
        sql.abandon(ref.id)
        began = time.monotonic()
        await events.wait(ReaperReaped)
        assert time.monotonic() - began >= settings.renew_after().total_seconds()
    sql.abandon(ref.id)
    async with await Database.open(direct_dsn, "gen_durable", size=1) as database:
        suspects = await database.run(leases.suspect())
        # Renewed, and so late that it has run out again.
        sql("update gen_durable.gen_durable set lease_expires_at = lease_expires_at + interval '1 ms'")
        reaped = await database.run_in_transaction(leases.reap(timedelta(0), 20, "all", suspects))
    assert ([one.id for one in suspects], reaped.ids) == ([ref.id], [])


@pytest.mark.clause("CRASH-11")
async def test_a_lease_that_somebody_keeps_from_being_renewed_is_not_taken(
    direct_dsn: str, durable: Harness, sql: SqlConnection
) -> None:
    held, free = durable.insert(Say, "held"), durable.insert(Say, "free")
    sql.abandon(held.id)
    sql.abandon(free.id)
    settings = Settings(lease=timedelta(milliseconds=2), heartbeat=timedelta(milliseconds=1))
    async with await Database.open(direct_dsn, "gen_durable", size=1) as database:
        reaper = Reaper(database, settings, Telemetry(), Wakes(), DatabaseStatus())

        async def look() -> list[str]:
            await asyncio.sleep(
                0.005
            )  # more than a lease of database_status, and more than a heartbeat since the last look
            await reaper.tick()
            return [sql.columns(ref.id, "status")[0] for ref in (held, free)]

        with sql.another() as other:
            other.execute("select from gen_durable.gen_durable where id = %s for update", [held.id])
            assert await look() == ["executing", "executing"]
            assert await look() == ["executing", "runnable"]
        assert await look() == ["executing", "runnable"], "its holder has had no time to renew it"
        assert await look() == ["runnable", "runnable"]


@pytest.mark.clause("CRASH-1")
async def test_many_that_die_at_once_come_back_at_once(
    direct_dsn: str, durable: Harness, sql: SqlConnection
) -> None:
    durable.insert_all([Spec(Say, "hi") for _ in range(1001)])
    sql(
        "update gen_durable.gen_durable set status = 'executing', lease_token = 1, locked_by = 'somebody',"
        " leased_at = now() - interval '1 hour', lease_expires_at = now() - interval '1 second'"
    )
    settings = Settings(lease=timedelta(milliseconds=2), heartbeat=timedelta(milliseconds=1))
    async with await Database.open(direct_dsn, "gen_durable", size=1) as database:
        reaper = Reaper(database, settings, Telemetry(), Wakes(), DatabaseStatus())
        left = []
        for _ in range(4):
            await asyncio.sleep(0.005)
            pause = await reaper.tick()
            left.append(
                (sql.value("select count(*) from gen_durable.gen_durable where status = 'executing'"), pause)
            )
    none = timedelta(0)
    assert left == [(1001, settings.renew_after()), (501, none), (1, none), (0, settings.reap_interval)]
