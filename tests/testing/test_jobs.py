"""Testing jobs: drained like machines, or called as functions."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import psycopg
import pytest

from gen_durable import (
    Backoff,
    Cancel,
    Context,
    Discard,
    Done,
    Duplicate,
    Machine,
    Outcome,
    RetryAfter,
    ScheduleChildren,
    Spec,
    Sql,
    Status,
    job,
    step,
)
from gen_durable.testing import AsyncHarness, Crash, DrainCounts, Harness, context


class Invoice(msgspec.Struct):
    number: int
    cents: int = 100


class Charge(msgspec.Struct):
    id: str


class Letter(msgspec.Struct):
    job: str
    payload: Invoice
    error: str


@job(
    "billing.charge.v1", queue="billing", dead_letter="ops.dead.v1", retry=Backoff(base=timedelta(minutes=1))
)
async def charge(invoice: Invoice, ctx: Context[Invoice]) -> Charge:
    if invoice.cents < 0:
        raise Discard("card declined")
    if invoice.cents == 0:
        raise Cancel("nothing to charge")
    if ctx.attempt < invoice.number:
        raise RetryAfter(timedelta(days=1), "the bank rests")
    return Charge(ctx.idempotency_key)


@job("ops.dead.v1")
def dead(letter: Letter) -> str:
    return f"{letter.job} of {letter.payload.number}: {letter.error}"


@job("billing.sweep.v1")
def sweep() -> int:
    return 3


def test_drain_runs_a_job(durable: Harness) -> None:
    ref, swept = durable.insert(charge, Invoice(0)), durable.insert(sweep)
    assert durable.drain() == DrainCounts(done=2)
    assert durable.assert_done(ref) == Charge(f"{ref.id}:1")
    assert durable.assert_done(swept, 3) == 3
    assert [transition.step for transition in durable.outcomes(ref)] == ["run"]


def test_drain_skips_or_keeps_backoffs(durable: Harness) -> None:
    ref = durable.insert(charge, Invoice(2))
    assert durable.drain(collapse=False) == DrainCounts(retry=1)
    durable.advance(hours=23)
    assert durable.drain(collapse=False) == DrainCounts()
    durable.advance(hours=1)
    assert durable.drain(collapse=False) == DrainCounts(retry=1)
    assert durable.drain() == DrainCounts(done=1)
    durable.assert_done(ref)
    assert [transition.kind for transition in durable.outcomes(ref)] == ["retry", "retry", "done"]


def test_drain_counts_failures_and_cancels(durable: Harness) -> None:
    failed, cancelled = durable.insert(charge, Invoice(0, -1)), durable.insert(charge, Invoice(0, 0))
    assert durable.drain() == DrainCounts(stopped=1, cancelled=1)
    durable.assert_failed(failed, match="card declined")
    found = durable.get(cancelled)
    assert found is not None
    assert (found.status, found.last_error) == (Status.CANCELLED, "nothing to charge")
    with pytest.raises(AssertionError, match="is not done; it has status cancelled at step 'run'"):
        durable.assert_done(cancelled)


def test_drain_runs_dead_letters_of_used_jobs(durable: Harness) -> None:
    durable.use(dead)
    durable.insert(charge, Invoice(7, -1))
    assert durable.drain() == DrainCounts(stopped=1, done=1)
    (letter,) = durable.instances(dead)
    assert durable.assert_done(letter.id) == "billing.charge.v1 of 7: card declined"


def test_fake_replaces_a_job(durable: Harness) -> None:
    @job("billing.charge.v1", queue="billing")
    async def fake(invoice: Invoice) -> Charge:
        return Charge("fake")

    durable.use(fake)
    ref = durable.insert(fake, Invoice(1, -1))
    durable.drain()
    assert durable.assert_done(ref) == Charge("fake")


def test_drain_runs_jobs_as_children(durable: Harness) -> None:
    class Close(Machine[None, int]):
        @step
        async def split(self, ctx: Context[None]) -> Outcome[int]:
            return ScheduleChildren([Spec(sweep), Spec(charge, Invoice(0))], then=self.join)

        @step
        async def join(self, ctx: Context[None]) -> Outcome[int]:
            return Done(sum(ctx.children.results(sweep)) + len(ctx.children.results(charge)))

    ref = durable.insert(Close)
    assert durable.drain() == DrainCounts(children=1, done=3)
    assert durable.assert_done(ref) == 4


def test_crash_at_a_job(durable: Harness) -> None:
    ref = durable.insert(sweep)
    with durable.crash_at("run"), pytest.raises(Crash):
        durable.drain()
    assert durable.drain() == DrainCounts(done=1)
    durable.assert_done(ref)
    assert [record.outcome for record in durable.executions(ref)] == ["lease", "done"]


def test_idempotency_key_in_a_test(durable: Harness) -> None:
    first = durable.insert(charge, Invoice(0), idempotency_key="invoice:7")
    durable.drain()
    again = durable.insert(charge, Invoice(0), idempotency_key="invoice:7")
    assert isinstance(again, Duplicate)
    assert (again.id, again.status) == (first.id, Status.DONE)


def test_effect_commits_with_the_result_of_a_job(durable: Harness, conn: psycopg.Connection) -> None:
    conn.execute("create table paid (number int)")

    @job("billing.record.v1")
    def record(number: int) -> Done[int]:
        return Done(number, effect=Sql("insert into paid values ($1)", number))

    ref = durable.insert(record, 7)
    durable.drain()
    assert durable.assert_done(ref) == 7
    assert conn.execute("select number from paid").fetchall() == [(7,)]


async def test_async_drain_runs_jobs(async_durable: AsyncHarness) -> None:
    ref = await async_durable.insert(charge, Invoice(1))
    assert await async_durable.drain() == DrainCounts(retry=1, done=1)
    assert async_durable.assert_done(ref) == Charge(f"{ref.id}:1")


# Without a database: a call


async def test_job_is_called_with_a_context() -> None:
    ctx = context(Invoice(1), attempt=1, id=9, step_seq=2)
    assert await charge(Invoice(1), ctx) == Charge("9:2")


def test_called_job_raises() -> None:
    coroutine = charge(Invoice(0, -1), context(Invoice(0, -1)))
    with pytest.raises(Discard, match="card declined"):
        coroutine.send(None)


async def test_backoff_of_a_job_can_be_computed() -> None:
    with pytest.raises(RetryAfter, match="the bank rests") as raised:
        await charge(Invoice(5), context(Invoice(5)))
    assert raised.value.delay == timedelta(days=1)


def test_plain_job_is_called_directly() -> None:
    assert sweep() == 3
    assert dead(Letter("m", Invoice(1), "no")) == "m of 1: no"
