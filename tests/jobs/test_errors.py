"""`last_error` is a short text; `error` is structured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

from gen_durable import Context, Failure, Machine, Outcome, Retry, Settings, Stop, Worker, job, step
from gen_durable.testing import Crash, Harness
from tests.support.rows import SqlConnection
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE

HERE = str(Path(__file__))


def bank(token: str) -> NoReturn:
    secret = f"secret {token}"
    raise ConnectionError("the bank does not answer") from ValueError(secret)


@job("errors.plain.v1")
def plain(token: str) -> None:
    bank(token)


@job("errors.on_the_loop.v1")
async def on_the_loop(token: str) -> None:
    bank(token)


@pytest.mark.clause("JOB-15")
async def test_error_has_type_message_traceback_attempt_and_step(durable_dsn: str, db: Any) -> None:
    async with Worker([plain, on_the_loop], dsn=durable_dsn, settings=CALM) as worker:
        refs = [await worker.insert(each, "12345", max_attempts=1) for each in (plain, on_the_loop)]
        ended = [await worker.wait(ref, timeout=PATIENCE) for ref in refs]
    assert {each.last_error for each in ended} == {"ConnectionError: the bank does not answer"}
    for ref, name in zip(refs, ("plain", "on_the_loop"), strict=True):
        text = await db.fetchval("select error from gen_durable.gen_durable where id = $1", ref.id)
        error = json.loads(text)
        assert set(error) == {"type", "message", "traceback", "attempt", "step"}
        assert (error["type"], error["message"], error["attempt"]) == (
            "ConnectionError",
            "the bank does not answer",
            0,
        )
        *_, caller, place = error["traceback"]
        assert caller.startswith(f"{HERE}:")
        assert caller.endswith(f" in {name}")
        assert place.startswith(f"{HERE}:")
        assert place.endswith(" in bank")
        assert not [line for line in error["traceback"] if "src/gen_durable/" in line], (
            "our own frames are cut"
        )
        assert "12345" not in text, "no locals, and nothing of what they hold"


@pytest.mark.clause("JOB-15")
def test_last_failure_is_kept(durable: Harness, sql: SqlConnection) -> None:
    @job("errors.changing.v1")
    def changing(number: int, ctx: Context[int]) -> None:
        raise ValueError("first") if ctx.attempt == 0 else KeyError("then")

    ref = durable.insert(changing, 1)
    durable.drain(collapse=False)
    found = sql.row(ref.id)
    assert (found["last_error"], found["error"]["type"], found["error"]["attempt"]) == (
        "ValueError: first",
        "ValueError",
        0,
    )
    durable.drain()
    found = sql.row(ref.id)
    assert (found["last_error"], found["error"]["type"], found["error"]["attempt"]) == (
        "KeyError: 'then'",
        "KeyError",
        2,
    )


def test_recovered_job_has_no_error_but_its_records_do(durable: Harness, sql: SqlConnection) -> None:
    @job("errors.recovers.v1")
    def recovers(number: int, ctx: Context[int]) -> int:
        if ctx.attempt == 0:
            raise ValueError("at first")
        return ctx.attempt

    ref = durable.insert(recovers, 1)
    durable.drain()
    assert durable.assert_done(ref) == 1
    found = sql.row(ref.id)
    assert (found["last_error"], found["error"]) == (None, None)
    assert [each.error for each in durable.executions(ref)] == ["ValueError: at first", None]


def test_error_text_is_escaped_for_postgresql(durable: Harness, sql: SqlConnection) -> None:
    @job("errors.odd.v1", max_attempts=1)
    def odd() -> None:
        raise ValueError("a\0b\ud800c" + "x" * 20_000)

    ref = durable.insert(odd)
    durable.drain()
    found = sql.row(ref.id)
    assert found["last_error"].startswith(r"ValueError: a\x00b\ud800cxxx")
    assert found["error"]["message"].startswith(r"a\x00b\ud800cxxx")
    assert len(found["last_error"]) < 8100, "a dumped page does not fill every list of failures"
    assert len(found["error"]["message"]) < 8100


def test_error_is_stored_when_handle_stops_or_retries(durable: Harness, sql: SqlConnection) -> None:
    class Handled(Machine[None, None]):
        @step
        def run(self, ctx: Context[None]) -> Outcome[None]:
            bank("12345")

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[None]:
            return Stop("the handler's own words") if ctx.attempt else Retry()

    ref = durable.insert(Handled)
    durable.drain()
    found = sql.row(ref.id)
    assert (found["last_error"], found["error"]["type"]) == ("the handler's own words", "ConnectionError")
    assert found["error"]["attempt"] == 1


@pytest.mark.clause("JOB-15")
async def test_client_returns_the_error_as_a_value(durable_dsn: str) -> None:
    async with Worker([on_the_loop], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(on_the_loop, "12345", max_attempts=1)
        ended = await worker.wait(ref, timeout=PATIENCE)
        (listed,) = await worker.list(on_the_loop)
    assert ended.error is not None
    assert listed.error == ended.error
    assert ended.error == Failure(
        type="ConnectionError",
        message="the bank does not answer",
        traceback=ended.error.traceback,
        attempt=0,
        step="run",
    )
    assert ended.error.traceback[-1].endswith(" in bank")


def test_end_without_an_exception_has_no_error(durable: Harness) -> None:
    """An earlier error is cleared."""

    class Gives(Machine[str, None]):
        @step
        def run(self, ctx: Context[str]) -> Outcome[None]:
            if ctx.attempt == 0:
                raise ValueError("at first")
            return Stop("given up")

        def handle(self, error: Exception, ctx: Context[str]) -> Outcome[None]:
            return Retry()

    both: list[Any] = [{}, {"concurrency_key": "k"}]
    for options in both:  # the two ways to commit
        ref = durable.insert(Gives, "", **options)
        durable.drain()
        failed = durable.assert_failed(ref)
        assert (failed.last_error, failed.error) == ("given up", None)


def test_poisoned_and_rejected_jobs_have_an_error(durable_dsn: str, sql: SqlConnection) -> None:
    @job("errors.number.v1")
    def number(value: int) -> int:
        return value

    sql("alter table gen_durable.gen_durable add constraint no_seven check (result is distinct from '7')")
    with Harness(durable_dsn, settings=Settings.load(crash_limit=1)) as durable:
        poisoned = durable.insert(number, 8)
        with durable.crash_at("run"), pytest.raises(Crash):
            durable.drain()
        refused = durable.insert(number, 7)
        durable.drain()
        assert durable.assert_failed(poisoned).error == Failure(
            type="Poison", message="the process died 1 time in step run", attempt=0, step="run"
        )
        error = durable.assert_failed(refused).error
    assert error is not None
    assert (error.type, error.message.partition(" for ")[0]) == ("StatementError", "new row")


def test_foreign_json_in_the_error_column_is_ignored(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(plain, "x")
    sql("update gen_durable.gen_durable set error = '[1]'")
    found = durable.get(ref)
    assert found is not None
    assert found.error is None
