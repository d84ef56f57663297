"""`drain` runs effects in the transaction of their outcome."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from gen_durable import (
    Backoff,
    Context,
    Done,
    ExecutionStatus,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Spec,
    Sql,
    Stop,
    Transaction,
    step,
)
from gen_durable.testing import AsyncHarness, Crash, DrainCounts, Harness, crash_everywhere


@pytest.fixture
def ledger(conn: psycopg.Connection) -> psycopg.Connection:
    conn.execute("create table ledger (id int generated always as identity, key text unique)")
    return conn


def _booked(ledger: psycopg.Connection) -> list[str]:
    return [row[0] for row in ledger.execute("select key from ledger order by id").fetchall()]


def _book(key: str) -> Sql:
    return Sql("insert into ledger (key) values ($1)", key)


class Sale(Machine[str, str]):
    """Two steps with different kinds of effects."""

    async def _note(self, key: str, tx: Transaction) -> None:
        await tx.execute("insert into ledger (key) values ($1)", key)

    @step
    async def reserve(self, ctx: Context[str]) -> Outcome[str]:
        return Next(self.pay, effect=_book(f"{ctx.state} reserved"))

    @step
    def pay(self, ctx: Context[str]) -> Outcome[str]:
        return Done(ctx.state, effect=functools.partial(self._note, f"{ctx.state} paid"))


def test_drain_runs_effects(durable: Harness, ledger: psycopg.Connection) -> None:
    sale = durable.insert(Sale, "book")
    assert durable.drain() == DrainCounts(next=1, done=1)
    assert durable.assert_done(sale) == "book"
    assert _booked(ledger) == ["book reserved", "book paid"]
    assert [one.status for one in durable.executions(sale)] == [ExecutionStatus.DONE] * 2


async def test_async_drain_runs_effects(async_durable: AsyncHarness, ledger: psycopg.Connection) -> None:
    sale = await async_durable.insert(Sale, "book")
    assert await async_durable.drain() == DrainCounts(next=1, done=1)
    async_durable.assert_done(sale, "book")
    assert _booked(ledger) == ["book reserved", "book paid"]


def test_drain_records_execution_times(durable: Harness, ledger: psycopg.Connection) -> None:
    sale = durable.insert(Sale, "book")
    durable.drain()
    for record in durable.executions(sale):
        assert record.leased_at is not None
        assert record.started_at is not None
        assert record.finished_at is not None
        assert record.leased_at <= record.started_at <= record.finished_at


def test_drain_passes_a_failing_effect_to_handle(durable: Harness, ledger: psycopg.Connection) -> None:
    class Careful(Machine[list[str], str]):
        @step
        async def run(self, ctx: Context[list[str]]) -> Outcome[str]:
            ctx.state.append("changed by the step")
            return ScheduleChildren([Spec(Sale, "child")], then=self.run, effect=_book("taken"))

        def handle(self, error: Exception, ctx: Context[list[str]]) -> Outcome[str]:
            return Done(f"{type(error).__name__} {ctx.state}")

    ledger.execute("insert into ledger (key) values ('taken')")
    ref = durable.insert(Careful, [])
    assert durable.drain() == DrainCounts(done=1)
    assert durable.assert_done(ref) == "UniqueViolationError []"
    assert durable.instances(Sale) == []
    assert _booked(ledger) == ["taken"]


def test_drain_retries_a_failing_effect(durable: Harness, ledger: psycopg.Connection) -> None:
    class Stubborn(Machine[None, int], retry=Backoff(max_attempts=5, base=timedelta(minutes=1))):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[int]:
            return Done(ctx.attempt, effect=_book("taken" if ctx.attempt < 2 else "free"))

    ledger.execute("insert into ledger (key) values ('taken')")
    ref = durable.insert(Stubborn)
    assert durable.drain() == DrainCounts(retry=2, done=1)
    assert durable.assert_done(ref) == 2
    assert [transition.kind for transition in durable.outcomes(ref)] == ["retry", "retry", "done"]


def test_drain_fails_an_instance_whose_handle_effect_fails(durable: Harness) -> None:
    class Doomed(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            return Done(effect=Sql("select 1 / 0"))

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[None]:
            return Stop(error, effect=Sql("insert into nowhere values (1)"))

    ref = durable.insert(Doomed)
    assert durable.drain() == DrainCounts(stopped=1)
    durable.assert_failed(
        ref, match="division by zero; then the effect of the outcome of handle raised Undefined"
    )


@pytest.mark.parametrize("text", ["commit", "rollback", "select 1; end"])
def test_drain_rejects_an_effect_that_ends_its_transaction(durable: Harness, text: str) -> None:
    class Eager(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            return Done(effect=Sql(text))

    ref = durable.insert(Eager)
    durable.drain()
    durable.assert_failed(ref, match="the effect ends the transaction that it runs in")


def test_crash_before_the_commit_leaves_no_effect(durable: Harness, ledger: psycopg.Connection) -> None:
    sale = durable.insert(Sale, "book")
    with durable.crash_at(Sale.reserve), pytest.raises(Crash):
        durable.drain()
    assert _booked(ledger) == []
    durable.drain()
    durable.assert_done(sale)
    assert _booked(ledger) == ["book reserved", "book paid"]


def test_crash_everywhere_applies_effects_once() -> None:
    def scenario(durable: Harness) -> None:
        with psycopg.connect(str(durable.dsn), autocommit=True) as conn:
            conn.execute("create table ledger (id int generated always as identity, key text)")
            durable.insert(Sale, "book")
            durable.drain()
            assert _booked(conn) == ["book reserved", "book paid"]

    assert crash_everywhere(scenario) == 4


def test_effect_sees_committed_rows_of_the_test(durable: Harness, ledger: psycopg.Connection) -> None:
    seen: list[Any] = []

    class Reader(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            async def read(tx: Transaction) -> None:
                seen.extend(row["key"] for row in await tx.fetch("select key from ledger"))

            return Done(effect=read)

    ledger.execute("insert into ledger (key) values ('before')")
    durable.insert(Reader)
    durable.drain()
    assert seen == ["before"]
