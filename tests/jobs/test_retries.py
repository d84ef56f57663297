"""Retries of jobs: number and delay."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn

import pytest

from gen_durable import (
    Backoff,
    Context,
    Discard,
    Done,
    Machine,
    Outcome,
    RetryAfter,
    ScheduleChildren,
    Spec,
    Worker,
    job,
    step,
)
from gen_durable.testing import DrainCounts, Harness
from tests.jobs.billing import flaky
from tests.support.rows import SqlConnection
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE


@job("retries.fail.v1")
def fail(number: int) -> NoReturn:
    raise ValueError(f"no {number}")


@job("retries.once.v1", max_attempts=1)
async def once(number: int) -> NoReturn:
    raise ValueError(f"no {number}")


@job(
    "retries.often.v1",
    retry=Backoff(max_attempts=5, base=timedelta(hours=1), cap=timedelta(hours=3), jitter=0),
)
async def often(number: int) -> NoReturn:
    raise ValueError(f"no {number}")


@pytest.mark.clause("JOB-9")
def test_max_attempts_limits_the_executions(
    durable: Harness, sql: SqlConnection, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[Any, int | None, int]] = [
        (fail, None, 3),
        (fail, 1, 1),
        (fail, 5, 5),
        (once, None, 1),
        (once, 2, 2),
        (often, None, 5),
        (often, 2, 2),
    ]
    for which, max_attempts, executions in cases:
        with subtests.test(job=which.name, max_attempts=max_attempts):
            options: Any = {} if max_attempts is None else {"max_attempts": max_attempts}
            ref = durable.insert(which, 7, **options)
            assert durable.drain() == DrainCounts(retry=executions - 1, stopped=1)
            assert durable.assert_failed(ref).last_error == "ValueError: no 7"
            found = sql.row(ref.id)
            assert (found["execution"], found["step_seq"]) == (executions, 1)
            assert found["max_attempts"] == max_attempts
            records = durable.executions(ref)
            assert [each.outcome for each in records] == ["retry"] * (executions - 1) + ["stop"]
            assert [each.step_attempt for each in records] == list(range(executions))
            assert {each.error for each in records} == {"ValueError: no 7"}
            assert {each.step_seq for each in records} == {1}, (
                "however often it is tried, it is one transition"
            )


@pytest.mark.clause("JOB-9")
def test_max_attempts_of_a_spec_applies_to_batches_and_children(durable: Harness) -> None:
    class Parent(Machine[None, int]):
        @step
        async def split(self, ctx: Context[None]) -> Outcome[int]:
            return ScheduleChildren([Spec(fail, n, max_attempts=n) for n in (1, 2)], then=self.join)

        @step
        async def join(self, ctx: Context[None]) -> Outcome[int]:
            return Done(len(ctx.children.failed))

    batch = durable.insert_all([Spec(fail, n, max_attempts=n) for n in (1, 2)])
    parent = durable.insert(Parent)
    durable.drain()
    assert durable.assert_done(parent) == 2
    children = durable.children(parent)
    assert [len(durable.executions(ref.id)) for ref in (*batch, *children)] == [1, 2, 1, 2]


@pytest.mark.clause("JOB-10")
def test_backoff_doubles_up_to_five_minutes_with_jitter(
    durable: Harness, sql: SqlConnection, subtests: pytest.Subtests
) -> None:
    seconds = {0: 1.0, 1: 2.0, 2: 4.0, 7: 128.0, 8: 256.0, 9: 300.0, 60: 300.0}
    refs = {attempt: durable.insert(fail, 7, max_attempts=1000) for attempt in seconds}
    for attempt, ref in refs.items():
        sql("update gen_durable.gen_durable set attempt = %s where id = %s", attempt, ref.id)
    assert durable.drain(collapse=False) == DrainCounts(retry=len(refs))
    slack = timedelta(milliseconds=1)
    for attempt, ref in refs.items():
        with subtests.test(attempt=attempt):
            assert sql.row(ref.id)["attempt"] == attempt + 1
            raw = timedelta(seconds=seconds[attempt])
            assert raw - slack <= sql.delay(ref.id) <= 1.5 * raw + slack


@pytest.mark.clause("JOB-10")
def test_jitter_spreads_simultaneous_failures(durable: Harness, sql: SqlConnection) -> None:
    refs = durable.insert_all([Spec(fail, n) for n in range(20)])
    durable.drain(collapse=False)
    rows = sql("select eligible_at - updated_at as wait from gen_durable.gen_durable")
    lengths = {row["wait"] for row in rows}
    assert len(rows) == len(refs)
    assert len(lengths) > 15
    assert max(lengths) - min(lengths) > timedelta(milliseconds=50)


@pytest.mark.clause("JOB-10")
def test_job_may_have_its_own_backoff(durable: Harness, sql: SqlConnection) -> None:
    hours = {0: 1, 1: 2, 2: 3, 3: 3}
    refs = {attempt: durable.insert(often, 7) for attempt in hours}
    for attempt, ref in refs.items():
        sql("update gen_durable.gen_durable set attempt = %s where id = %s", attempt, ref.id)
    durable.drain(collapse=False)
    assert {attempt: sql.delay(ref.id) / timedelta(hours=1) for attempt, ref in refs.items()} == hours


@pytest.mark.clause("JOB-10")
async def test_worker_retries_after_the_backoff(durable_dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Worker([flaky], dsn=durable_dsn, settings=CALM) as worker:
        twice = await worker.insert(flaky, 2)
        often = await worker.insert(flaky, 3)
        assert (await worker.wait(twice, timeout=PATIENCE)).result == 2
        ended = await worker.wait(often, timeout=PATIENCE)
        assert (ended.status, ended.last_error) == ("failed", "ConnectionError: refusal 2")
        enough = await worker.insert(flaky, 3, max_attempts=4)
        assert (await worker.wait(enough, timeout=PATIENCE)).result == 3
    of = f"step failed: {flaky.name} {often.id}, step run, attempt"
    messages = [message.splitlines() for message in caplog.messages if message.startswith(of)]
    assert [lines[0].partition("; ")[0] for lines in messages] == [
        f"{of} {n}: ConnectionError: refusal {n - 1}" for n in (1, 2, 3)
    ]
    assert [lines[0].partition("; ")[2][:8] for lines in messages] == [
        "retry in",
        "retry in",
        "the inst",
    ]
    assert {lines[-1].partition(":")[0] for lines in messages} == {"ConnectionError"}, (
        "the traceback is logged too"
    )
    places = [line for lines in messages for line in lines if line.startswith("  File ")]
    assert len(places) == len(messages), "and only the user's part of it"
    assert all(place.endswith("in flaky") for place in places)


# RetryAfter


@job("retries.later.v1", max_attempts=3)
async def later(seconds: int, ctx: Context[int]) -> int:
    if ctx.attempt < 5:
        raise RetryAfter(timedelta(seconds=seconds), f"the bank rests, {ctx.attempt}")
    return ctx.attempt


@pytest.mark.clause("JOB-12")
def test_retry_after_sets_the_delay_and_counts_an_attempt(
    durable: Harness, sql: SqlConnection, caplog: pytest.LogCaptureFixture
) -> None:
    ref = durable.insert(later, 5000)
    assert durable.drain(collapse=False) == DrainCounts(retry=1)
    assert sql.delay(ref.id) == timedelta(seconds=5000)
    found = sql.row(ref.id)
    assert (found["attempt"], found["last_error"]) == (1, "the bank rests, 0")
    assert found["error"]["type"] == "RetryAfter"
    assert durable.drain() == DrainCounts(retry=1, stopped=1)
    durable.assert_failed(ref, match="^the bank rests, 2$")
    assert sql.row(ref.id)["error"]["attempt"] == 2
    assert [each.getMessage().partition(", step run, ")[2] for each in caplog.records] == [
        "attempt 1: the bank rests, 0; retry in 1h23m20s",
        "attempt 2: the bank rests, 1; retry in 1h23m20s",
        "attempt 3: the bank rests, 2; the instance fails",
    ]


@pytest.mark.clause("JOB-12")
def test_retry_after_obeys_max_attempts_of_the_instance(durable: Harness) -> None:
    once, enough = durable.insert(later, 0, max_attempts=1), durable.insert(later, 0, max_attempts=6)
    assert durable.drain() == DrainCounts(retry=5, stopped=1, done=1)
    durable.assert_failed(once, match="^the bank rests, 0$")
    assert durable.assert_done(enough) == 5


def test_retry_after_without_a_reason_shows_the_delay(durable: Harness) -> None:
    @job("retries.silent.v1")
    def silent() -> NoReturn:
        raise RetryAfter(timedelta(minutes=2))

    ref = durable.insert(silent)
    durable.drain()
    durable.assert_failed(ref, match="^retry after 0:02:00$")


def test_retry_after_with_an_invalid_delay_fails(durable: Harness) -> None:
    @job("retries.wrong.v1", max_attempts=2)
    def wrong() -> NoReturn:
        seconds: Any = 60
        raise RetryAfter(seconds)

    ref = durable.insert(wrong)
    assert durable.drain() == DrainCounts(retry=1, stopped=1)
    durable.assert_failed(ref, match=r"the delay of this RetryAfter is a number without a unit, got 60; ")


def test_retry_after_is_unlimited_without_max_attempts(durable: Harness) -> None:
    class Patient(Machine[None, int]):
        @step
        async def ask(self, ctx: Context[None]) -> Outcome[int]:
            if ctx.attempt < 7:
                raise RetryAfter(timedelta(hours=1))
            return Done(ctx.attempt)

    ref, limited = durable.insert(Patient), durable.insert(Patient, max_attempts=3)
    durable.drain()
    assert durable.assert_done(ref) == 7
    durable.assert_failed(limited)


def test_retried_job_keeps_its_payload(durable: Harness) -> None:
    seen: list[list[int]] = []

    @job("retries.mutates.v1")
    def mutates(numbers: list[int]) -> list[int]:
        seen.append(list(numbers))
        numbers.append(0)
        if len(seen) < 3:
            raise ValueError("half done")
        raise Discard("enough")

    ref = durable.insert(mutates, [1])
    durable.drain()
    assert durable.assert_failed(ref).state == [1]
    assert seen == [[1], [1], [1]]
