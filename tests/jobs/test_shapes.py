"""Functions of every shape as jobs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import AsyncClient, Context, Done, Job, Retry, Status, Worker, job
from gen_durable.errors import EncodeError
from gen_durable.testing import DrainCounts, Harness, context
from tests.jobs import billing
from tests.jobs.billing import Charge, Invoice, charge, charge_in_words, record, sweep, where
from tests.support.rows import SqlConnection, row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE

LEDGER = "create table ledger (entry int check (entry > 0))"


@pytest.mark.clause("JOB-6")
async def test_worker_runs_all_jobs_of_a_module(durable_dsn: str, db: Any) -> None:
    await db.execute(LEDGER)
    async with Worker([billing], dsn=durable_dsn, settings=CALM) as worker:
        assert set(worker.served_queues) == {"billing", "default"}
        first = await worker.insert(charge, Invoice(42, 100))
        words = await worker.insert(charge_in_words, Invoice(42, 100))
        swept, place = await worker.insert(sweep), await worker.insert(where)
        recorded = await worker.insert(record, 5)
        assert (await worker.wait(first, timeout=PATIENCE)).result == Charge(f"42/{first.id}:1")
        assert (await worker.wait(words, timeout=PATIENCE)).result == "100 cents for 42"
        assert (await worker.wait(swept, timeout=PATIENCE)).result == 7
        thread, is_main = (await worker.wait(place, timeout=PATIENCE)).result
        assert thread.startswith("gen_durable step"), "a plain def has a thread of its own"
        assert not is_main
        assert (await worker.wait(recorded, timeout=PATIENCE)).result == "recorded 5"
        records = await worker.executions(first)
    assert [(each.status.value, each.step, each.outcome, each.step_seq) for each in records] == [
        ("DONE", "run", "done", 1)
    ]
    assert await db.fetchval("select array_agg(entry) from ledger") == [5]
    row = await row_of(db, first.id)
    assert (row["fsm"], row["fsm_version"], row["step"], row["queue"]) == (
        "billing.charge.v1",
        1,
        "run",
        "billing",
    )
    assert (row["status"], row["attempt"], row["execution"], row["step_seq"], row["max_attempts"]) == (
        "done",
        0,
        1,
        1,
        None,
    )
    assert (row["last_error"], row["error"]) == (None, None)


@pytest.mark.clause("JOB-7")
async def test_client_returns_typed_results_of_jobs(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn) as client, Worker([charge], dsn=durable_dsn, settings=CALM):
        ref = await client.insert(charge, Invoice(1))
        ended = await client.wait(ref, timeout=PATIENCE)
        assert (ended.state, ended.result) == (Invoice(1), Charge(f"1/{ref.id}:1"))
        assert [each.state for each in await client.list(charge)] == [Invoice(1)]


@pytest.mark.clause("JOB-7")
def test_payload_of_another_type_is_rejected_at_insert(durable: Harness) -> None:
    wrong: Any = {"number": "1"}
    with pytest.raises(EncodeError, match=r"the state of billing\.charge\.v1"):
        durable.insert(charge, wrong)
    with pytest.raises(EncodeError, match=r"the state of billing\.sweep\.v1"):
        durable.insert(sweep, wrong)
    assert durable.count() == 0


@pytest.mark.clause("JOB-7")
def test_result_of_another_type_fails_the_job(durable: Harness) -> None:
    @job("wrong.result.v1", max_attempts=2)
    def wrong() -> int:
        value: Any = "seven"
        return value  # type: ignore[no-any-return]

    ref = durable.insert(wrong)
    assert durable.drain() == DrainCounts(retry=1, stopped=1)
    durable.assert_failed(ref, match="EncodeError: the result of wrong.result.v1")


def test_undecodable_payload_is_retried_then_fails_unchanged(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(charge, Invoice(1))
    sql("""update gen_durable.gen_durable set state = '{"nummer": 1}'""")
    assert durable.drain() == DrainCounts(retry=2, stopped=1)
    assert durable.assert_failed(ref, match="DecodeError").state == {"nummer": 1}


def test_job_types_may_be_local_to_a_function(durable: Harness) -> None:
    class Parcel(msgspec.Struct):
        number: int

    @job("local.pack.v1")
    def pack(parcel: Parcel, ctx: Context[Parcel]) -> list[Parcel]:
        return [parcel, ctx.state]

    ref = durable.insert(pack, Parcel(3))
    durable.drain()
    assert durable.assert_done(ref) == [Parcel(3), Parcel(3)]


def test_extra_parameters_keep_their_defaults(durable: Harness) -> None:
    @job("local.keyword.v1")
    def keyword(number: int, *, factor: int = 10) -> int:
        return number * factor

    @job("local.keywords.v1")
    def keywords(number: int, /, **more: int) -> dict[str, int]:
        return {"number": number, **more}

    @job("local.second.v1")
    def second(number: int, factor: int = 10) -> int:
        return number * factor

    @job("local.untyped.v1")
    def untyped(number, ctx):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - what has no types has JSON
        return [number, ctx.machine]

    refs = [
        durable.insert(keyword, 2),
        durable.insert(keywords, 2),
        durable.insert(second, 3),
        durable.insert(untyped, {"n": 4}),
    ]
    durable.drain()
    assert [durable.assert_done(ref) for ref in refs] == [
        20,
        {"number": 2},
        30,
        [{"n": 4}, "local.untyped.v1"],
    ]


def test_done_and_a_bare_result_are_equivalent(durable: Harness) -> None:
    @job("local.either.v1")
    def either(number: int) -> Done[int] | str | None:
        return Done(number) if number > 1 else "one" if number else None

    refs = [durable.insert(either, number) for number in (2, 1, 0)]
    durable.drain()
    assert [durable.assert_done(ref) for ref in refs] == [2, "one", None]


def test_failing_effect_fails_the_job(durable: Harness, sql: SqlConnection) -> None:
    sql(LEDGER)
    ref = durable.insert(record, -1)
    assert durable.drain() == DrainCounts(retry=2, stopped=1)
    durable.assert_failed(ref, match="violates check constraint")
    assert sql.value("select count(*) from ledger") == 0


def test_outcome_as_a_result_fails_the_job(durable: Harness) -> None:
    @job("local.outcome.v1", max_attempts=1)
    def outcome() -> Any:
        return Retry(timedelta(minutes=1))

    ref = durable.insert(outcome)
    durable.drain()
    durable.assert_failed(ref, match=r"job 'local.outcome.v1' returned Retry; return the result, or raise")


def test_plain_job_that_returns_a_coroutine_fails_with_advice(durable: Harness) -> None:
    async def inner() -> int:
        return 1

    @job("local.coroutine.v1", max_attempts=1)
    def outer() -> Any:
        return inner()

    ref = durable.insert(outer)
    durable.drain()
    durable.assert_failed(ref, match="returned a coroutine, .*; await it in an `async def`")


def test_insert_options_override_job_options(durable: Harness) -> None:
    ref = durable.insert(charge, Invoice(1), queue="urgent", priority=-3, correlation_key="invoice:1")
    found = durable.get("invoice:1")
    assert found is not None
    assert (found.id, found.queue, found.priority, found.status) == (ref.id, "urgent", -3, Status.RUNNABLE)


def test_job_can_be_called_as_a_function() -> None:
    assert charge_in_words(Invoice(7, 5)) == "5 cents for 7"
    assert asyncio.run(charge(Invoice(7), context(Invoice(7), id=9, step_seq=2))) == Charge("7/9:2")
    assert isinstance(charge, Job)
    assert (charge.name, charge.__doc__, repr(charge)) == (
        "billing.charge.v1",
        "Charges a card.",
        "<job billing.charge.v1>",
    )
