"""EFF, FM, INV: the commit boundary. The table `ledger` is the user's, in the same database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gen_durable import (
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Spec,
    Sql,
    Stop,
    Transaction,
    Worker,
    step,
)
from gen_durable._db import commit as commits
from gen_durable.telemetry import OutcomeStale
from gen_durable.testing import AsyncHarness, Crash, Harness
from tests.support.machines import Say, probe
from tests.support.rows import SqlConnection
from tests.support.settings import AN_HOUR, BRISK, CALM
from tests.support.waiting import PATIENCE, Events, happens, happens_to_the_deaf

PAY = Sql("insert into ledger values ($1)", "paid")
BROKEN = Sql("insert into nowhere values (1)")


async def pay(transaction: Transaction) -> None:
    await transaction.execute("insert into ledger values ($1)", "paid")


@pytest.fixture
def sql(direct_dsn: str) -> Iterator[SqlConnection]:
    opened = SqlConnection(direct_dsn)
    opened("create table ledger (entry text)")
    yield opened
    opened.conn.close()


def ledger(sql: SqlConnection) -> list[str]:
    return [row["entry"] for row in sql("select entry from ledger")]


@pytest.mark.clause("EFF-1", "EXEC-5")
def test_an_effect_rides_on_its_outcome(
    durable: Harness, sql: SqlConnection, subtests: pytest.Subtests
) -> None:
    outcomes: list[Outcome[Any]] = [
        Next("two", delay=AN_HOUR, effect=PAY),
        Next("two", delay=AN_HOUR, effect=pay),
        Await("go", then="two", effect=PAY),
        ScheduleChildren([Spec(Say, "a", schedule_in=AN_HOUR)], then="two", effect=pay),
        Done(0, effect=PAY),
        Stop("no", effect=pay),
    ]
    machine = probe(lambda ctx: outcomes[ctx.state])
    for number, outcome in enumerate(outcomes):
        with subtests.test(outcome=outcome):
            sql("delete from ledger")
            ref = durable.insert(machine, number)
            durable.drain(collapse=False)
            assert (ledger(sql), sql.row(ref.id)["step_seq"]) == (["paid"], 1)
            assert sql.value(
                "select (select xmin::text from ledger) ="
                "       (select xmin::text from gen_durable.gen_durable where id = %s)",
                ref.id,
            ), "one transaction wrote both"
            assert [row["status"] for row in sql.executions(ref.id)] == ["DONE"]


@pytest.mark.clause("EFF-1")
def test_a_retry_has_no_effect() -> None:
    with pytest.raises(TypeError, match="effect"):
        Retry(effect=PAY)  # type: ignore[call-arg]


@pytest.mark.clause("EFF-2", "INV-2")
def test_an_effect_happens_once_however_often_its_step_runs(durable: Harness, sql: SqlConnection) -> None:
    """INV_002: the step prepares and may be repeated; the commit applies."""
    prepared: list[int] = []

    def one(ctx: Context[int]) -> Outcome[Any]:
        prepared.append(ctx.attempt)
        return Next("two", effect=PAY)

    ref = durable.insert(probe(one), 7)
    for _ in range(2):
        with durable.crash_at("one"), pytest.raises(Crash):
            durable.drain()
        assert ledger(sql) == []
    durable.drain()
    durable.assert_done(ref)
    assert (prepared, ledger(sql)) == ([0, 1, 2], ["paid"])


@pytest.mark.clause("EFF-3", "INV-2")
def test_an_effect_that_fails_takes_its_outcome_with_it(durable: Harness, sql: SqlConnection) -> None:
    seen: list[Any] = []

    async def pay_and_fail(transaction: Transaction) -> None:
        await pay(transaction)
        raise ConnectionError("the bank does not answer")

    def handle(error: Exception, ctx: Context[int]) -> Outcome[Any]:
        seen.append((str(error), sql.columns(ctx.id, "status step state step_seq"), ledger(sql)))
        return Retry()

    def one(ctx: Context[int]) -> Outcome[Any]:
        return Next("two", 8, effect=pay if ctx.attempt else pay_and_fail)

    ref = durable.insert(probe(one, handle=handle), 7)
    durable.drain()
    durable.assert_done(ref, 8)
    assert seen == [("the bank does not answer", ("executing", "one", 7, 0), [])]
    assert ledger(sql) == ["paid"]


@pytest.mark.clause("EFF-4")
def test_if_the_effect_of_the_handler_fails_too_the_instance_fails(
    durable: Harness, sql: SqlConnection
) -> None:
    ref = durable.insert(
        probe(lambda ctx: Done(0, effect=BROKEN), handle=lambda error, ctx: Stop(error, effect=BROKEN)), 7
    )
    durable.drain()
    durable.assert_failed(ref, match='"nowhere" does not exist')
    assert ledger(sql) == []


@pytest.mark.clause("EFF-5")
async def test_nobody_waits_for_the_effect_of_another(durable_dsn: str, sql: SqlConnection) -> None:
    begun, may_go = asyncio.Event(), asyncio.Event()

    async def slow(transaction: Transaction) -> None:
        begun.set()
        await may_go.wait()
        await pay(transaction)

    class Slow(Machine[int, int]):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[int]:
            return Done(0, effect=slow) if ctx.state else Done(0, effect=BROKEN)

    async with Worker([Slow, Say], dsn=durable_dsn, settings=CALM) as worker:
        held = await worker.insert(Slow, 1)
        await happens(begun)
        others = await worker.insert_all([Spec(Slow, 0), *[Spec(Say, str(n)) for n in range(30)]])
        ended = await worker.wait_all(others, timeout=PATIENCE)
        assert [one.status for one in ended] == ["failed"] + ["done"] * 30
        assert sql.columns(held.id, "status") == ("executing",)
        may_go.set()
        await worker.wait(held, timeout=PATIENCE)
    assert ledger(sql) == ["paid"]


class Pay(Machine[str, str]):
    """Pays in its body, where it may happen twice, or with its commit, where it cannot."""

    def __init__(self, sql: SqlConnection, *, waits: bool) -> None:
        self.sql = sql
        self.is_there, self.may_go = asyncio.Event(), asyncio.Event()
        if not waits:
            self.may_go.set()

    @step
    async def run(self, ctx: Context[str]) -> Outcome[str]:
        self.is_there.set()
        await happens_to_the_deaf(self.may_go)
        if ctx.state == "naive":
            self.sql("insert into ledger values (%s)", "paid")
            return Done("paid")
        return Done("paid", effect=PAY)


@pytest.mark.clause("FM-1", "EFF-6", "INV-1")
@pytest.mark.parametrize(("variant", "count"), [("naive", 2), ("effect", 1)])
async def test_a_duplicate_execution(
    durable_dsn: str, async_durable: AsyncHarness, sql: SqlConnection, variant: str, count: int
) -> None:
    """FM_001: A leases and starts, its lease runs out, B runs the same job, then A comes back.

    INV_001: A finds at its commit that the transition is committed, and does nothing.
    """
    a, b = Pay(sql, waits=True), Pay(sql, waits=False)
    async with Worker([a], dsn=durable_dsn, settings=CALM, queues={"default": 1}) as worker:
        events = Events(worker)
        ref = await worker.insert(a, variant)
        await happens(a.is_there)
        sql.expire(ref.id)
        async_durable.use(b)
        await async_durable.drain()
        after_b = sql.row(ref.id)
        a.may_go.set()
        await events.wait(OutcomeStale)
    assert len(ledger(sql)) == count
    assert sql.row(ref.id) == after_b
    assert after_b["status"] == "done"
    assert [(row["status"], row["outcome"]) for row in sql.executions(ref.id)] == [
        ("ABORTED", "lease"),
        ("DONE", "done"),
    ]


@pytest.mark.clause("INV-4", "EXEC-5")
async def test_a_worker_that_dies_between_committed_and_done_is_made_up_for(
    durable_dsn: str, sql: SqlConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV_004: recovery finishes what is committed and repeats nothing."""
    machine = probe(lambda ctx: Done("paid", effect=PAY))
    with monkeypatch.context() as patch:
        nothing: tuple[Any, ...] = ()
        patch.setattr(commits, "finish", lambda entries: (call for call in nothing))
        async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
            ref = await worker.insert(machine, 7)
            await worker.wait(ref, timeout=PATIENCE)
    assert [row["status"] for row in sql.executions(ref.id)] == ["COMMITTED"]
    before = sql.row(ref.id)
    async with Worker([Say], dsn=durable_dsn, settings=BRISK), asyncio.timeout(PATIENCE.total_seconds()):
        while sql.executions(ref.id)[0]["status"] != "DONE":
            await asyncio.sleep(0.02)
    assert (ledger(sql), sql.row(ref.id)) == (["paid"], before)
