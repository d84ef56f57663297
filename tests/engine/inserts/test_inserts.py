"""Inserts: options, batches, the caller's transaction, and SQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from gen_durable import (
    Await,
    Client,
    Context,
    Delivered,
    Done,
    Duplicate,
    DuplicateSignal,
    Inserted,
    Machine,
    Next,
    Outcome,
    Spec,
    UsageError,
    step,
)
from gen_durable.testing import Harness
from tests.support.machines import Say
from tests.support.rows import SqlConnection, is_near
from tests.support.settings import AN_HOUR


class Job(Machine[int, int], version=3, queue="jobs"):
    @step
    async def first(self, ctx: Context[int]) -> Outcome[int]:
        return Next(self.second)

    @step
    async def second(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


@pytest.mark.clause("INS-4", "INS-5")
def test_eligible_at_overrides_schedule_at_and_schedule_in(durable: Harness, sql: SqlConnection) -> None:
    at, other = datetime(2040, 1, 1, tzinfo=UTC), datetime(2041, 1, 1, tzinfo=UTC)
    all_three = durable.insert(Job, 1, eligible_at=at, schedule_at=other, schedule_in=AN_HOUR)
    two = durable.insert(Job, 1, schedule_at=other, schedule_in=AN_HOUR)
    one = durable.insert(Job, 1, schedule_in=AN_HOUR)
    assert sql.columns(all_three.id, "eligible_at") == (at,)
    assert sql.columns(two.id, "eligible_at") == (other,)
    row = sql.row(one.id)
    assert row["eligible_at"] - row["inserted_at"] == AN_HOUR
    assert is_near(row["inserted_at"], sql.value("select now()"))
    for option in ("eligible_at", "schedule_at"):
        naive: Any = {option: datetime(2040, 1, 1)}  # noqa: DTZ001 - the point of it
        with pytest.raises(UsageError, match="no time zone"):
            durable.insert(Job, 1, **naive)


@pytest.mark.clause("INS-6")
def test_insert_all_is_one_statement_with_ordered_answers(durable: Harness, sql: SqlConnection) -> None:
    held = durable.insert(Say, "held", unique_key="u")
    sql("create table statements (at timestamptz)")
    sql(
        "create function tally() returns trigger language plpgsql as"
        " $$ begin insert into public.statements values (now()); return null; end $$"
    )
    sql(
        "create trigger tally after insert on gen_durable.gen_durable for each statement execute function tally()"
    )
    first, taken, second, twin, last = durable.insert_all(
        [
            Spec(Say, "first"),
            Spec(Say, "taken", unique_key="u"),
            Spec(Say, "second", unique_key="v"),
            Spec(Say, "twin", unique_key="v"),
            Spec(Job, 7),
        ]
    )
    assert [type(one) for one in (first, second, last)] == [Inserted] * 3
    assert first.id < second.id < last.id
    assert (taken, twin) == (Duplicate(Say, held.id, "u"), Duplicate(Say, second.id, "v"))
    assert [one.state for one in durable.instances()] == ["held", "first", "second", 7]
    assert len(sql("select * from statements")) == 1


class Patient(Machine[dict[str, Any], int], version=2, queue="jobs"):
    @step
    async def start(self, ctx: Context[dict[str, Any]]) -> Outcome[int]:
        return Await("go", then=self.end)

    @step
    async def end(self, ctx: Context[dict[str, Any]]) -> Outcome[int]:
        return Done(ctx.awaited[0].payload)


@pytest.mark.clause("INS-9")
def test_sql_functions_insert_and_signal_like_clients(durable: Harness, sql: SqlConnection) -> None:
    durable.use(Patient)
    durable.drain()  # it registers its machines, as a worker does
    insert = """select id, inserted from gen_durable.insert('Patient', '{"n": 1}', correlation_key => 'c')"""
    (first,), (again,) = sql(insert), sql(insert)
    assert (first["inserted"], again["inserted"], again["id"]) == (True, False, first["id"])
    id = first["id"]
    assert sql.columns(id, "fsm_version step queue state") == (2, "start", "jobs", {"n": 1})
    signal = "select id, delivered from gen_durable.signal('c', 'go', '42', 'evt-7')"
    assert sql(signal) == [{"id": id, "delivered": True}]
    assert durable.signal(id, "go", dedup_key="evt-7") == DuplicateSignal(id)
    assert sql("select delivered from gen_durable.signal(%s::bigint, 'other')", id) == [{"delivered": True}]
    both = sql(
        """select ord, inserted from gen_durable.insert_all('[{"fsm": "Patient"}, {"fsm": "Patient"}]')"""
    )
    assert both == [{"ord": 1, "inserted": True}, {"ord": 2, "inserted": True}]
    durable.drain()
    durable.assert_done(id, 42)
    with pytest.raises(psycopg.Error, match="no live instance"):
        sql(signal)


@pytest.mark.clause("INS-10")
def test_insert_needs_no_worker(durable_dsn: str, sql: SqlConnection) -> None:
    with Client(durable_dsn) as client:
        ref = client.insert(Say, "hi")
        assert client.signal(ref, "early") == Delivered(ref.id, is_awaited=False)
    assert sql("select * from gen_durable.machines") == []
    with Harness(durable_dsn) as worker:
        worker.use(Say)
        worker.drain()
        worker.assert_done(ref, "hi")
