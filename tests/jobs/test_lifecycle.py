"""Section 11 of the specification: the life of a job, seen in its row."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gen_durable import Cancel, Context, Discard, RetryAfter, Settings, Status, job
from gen_durable.testing import Crash, DrainCounts, Harness
from tests.support.conformance import SPEC, table_of
from tests.support.rows import SqlConnection, has_no_lease


@job("jobs.flaky.v1")
def flaky(fails: int, ctx: Context[int]) -> int:
    if ctx.attempt < fails:
        raise ConnectionError(f"no answer, {ctx.attempt}")
    return ctx.attempt


@pytest.mark.clause("JOB-11")
def test_job_between_two_attempts_is_runnable(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(flaky, 2, queue="slow", priority=3)
    assert durable.drain(collapse=False) == DrainCounts(retry=1)
    row = sql.row(ref.id)
    assert has_no_lease(row)
    assert (row["status"], row["step"], row["state"], row["step_seq"]) == ("runnable", "run", 2, 0)
    assert (row["attempt"], row["queue"], row["priority"]) == (1, "slow", 3)
    assert timedelta(seconds=1) <= row["eligible_at"] - row["updated_at"] <= timedelta(seconds=1.5)
    assert row["last_error"] == "ConnectionError: no answer, 0"
    assert (row["error"]["message"], row["error"]["attempt"]) == ("no answer, 0", 0)
    assert sql.value("select gen_durable.job_status(%s)", ref.id) == "pending"


@pytest.mark.clause("JOB-16")
def test_failed_job_is_not_retried(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(flaky, 9)
    durable.drain()
    failed = sql.row(ref.id)
    assert (failed["status"], failed["execution"]) == ("failed", 3)
    assert has_no_lease(failed)
    sql(
        "update gen_durable.gen_durable set eligible_at = now() - interval '1 year', finished_at = eligible_at"
    )
    assert durable.drain() == DrainCounts()
    assert sql.columns(ref.id, "status execution") == ("failed", 3)


@pytest.mark.clause("JOB-19")
def test_killed_process_costs_an_attempt(durable_dsn: str, sql: SqlConnection) -> None:
    with Harness(durable_dsn, settings=Settings.load(crash_limit=5)) as durable:
        well = durable.insert(flaky, 0, max_attempts=2)
        for _ in range(4):
            sql.abandon(well.id)
            durable.drain(collapse=False)
        ill = durable.insert(flaky, 9, max_attempts=2)
        sql.abandon(ill.id)
        durable.drain()
        assert durable.assert_done(well) == 4, "more than its two attempts"
        assert [each.outcome for each in durable.executions(ill)] == ["lease", "stop"]
        assert durable.assert_failed(ill).last_error == "ConnectionError: no answer, 1"


@pytest.mark.clause("SQL-2")
def test_job_states_match_the_specification(sql: SqlConnection) -> None:
    words = {
        status: word
        for word, statuses in table_of(SPEC.read_text(encoding="utf-8"), "word of a job")
        for status in statuses.split(", ")
    }
    assert set(words) == set(Status)
    for status, word in words.items():
        assert sql.value("select gen_durable.job_status_name(%s)", status) == word


@job("jobs.fate.v1", max_attempts=2)
def fate(kind: str, ctx: Context[str]) -> str:
    match kind:
        case "raises":
            raise ValueError("no")
        case "recovers" if ctx.attempt == 0:
            raise ValueError("at first")
        case "discards":
            raise Discard("declined")
        case "cancels":
            raise Cancel("not needed")
        case "waits":
            raise RetryAfter(timedelta(hours=1))
    return kind


_LOG = """
create table public.moves (id bigint, was text, became text);
create function note() returns trigger language plpgsql as $$ begin
  insert into public.moves values (new.id, gen_durable.job_status_name(old.status::text), gen_durable.job_status_name(new.status::text));
  return new; end $$;
create trigger note after update on gen_durable.gen_durable for each row when (old.status <> new.status)
  execute function note()"""


@pytest.mark.clause("JOB-20")
def test_job_makes_only_the_specified_transitions(durable: Harness, sql: SqlConnection) -> None:
    sql(_LOG)
    kinds = ("ends", "raises", "recovers", "discards", "cancels", "waits")
    refs: dict[str, Any] = {kind: durable.insert(fate, kind) for kind in (*kinds, "dies", "early", "gone")}
    durable.cancel(refs["early"])
    durable.soft_delete(refs["gone"])
    with durable.crash_at("run"), pytest.raises(Crash):
        durable.drain()
    durable.drain()
    found = {(row["was"], row["became"]) for row in sql("select was, became from moves")}
    assert found == {
        ("pending", "leased"),
        ("leased", "pending"),
        ("leased", "succeeded"),
        ("leased", "failed"),
        ("leased", "cancelled"),
        ("pending", "cancelled"),
    }
    sql("truncate moves")
    for kind in ("raises", "early"):
        durable.retry(refs[kind])
    found = {(row["was"], row["became"]) for row in sql("select was, became from moves")}
    assert found == {("failed", "pending"), ("cancelled", "pending")}
