"""Fields of execution records and of jobs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gen_durable import (
    Await,
    Context,
    Done,
    ExecutionRecord,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Spec,
    step,
)
from gen_durable.testing import Crash, Harness
from tests.support.machines import Say
from tests.support.rows import SqlConnection

_JOB = "select * from gen_durable.gen_durable_job_state where job_id = %s"


class Life(Machine[int, int]):
    """Returns each kind of outcome once: retry, next, await, children, done."""

    @step
    async def one(self, ctx: Context[int]) -> Outcome[int]:
        return Retry() if ctx.attempt == 0 else Next(self.two)

    @step
    async def two(self, ctx: Context[int]) -> Outcome[int]:
        return Await("go", then=self.three)

    @step
    async def three(self, ctx: Context[int]) -> Outcome[int]:
        return ScheduleChildren([Spec(Say, "a")], then=self.four)

    @step
    async def four(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


def lived(durable: Harness) -> int:
    """An instance that returned every outcome, with a crash in its last step."""
    ref = durable.insert(Life, 7)
    durable.signal(ref, "go")
    with durable.crash_at(Life.four), pytest.raises(Crash):
        durable.drain()
    durable.drain()
    durable.assert_done(ref)
    return ref.id


def summary(records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["attempt"], row["step_seq"], row["step"], row["status"], row["outcome"]) for row in records]


@pytest.mark.clause("EXEC-1", "EXEC-2")
def test_execution_has_the_fields_of_the_state_model(durable: Harness, sql: SqlConnection) -> None:
    id = lived(durable)
    rows = sql.executions(id)
    assert rows[0].keys() >= {
        *("exec_id", "job_id", "attempt", "lease_owner"),
        *("lease_expires_at", "status", "started_at", "finished_at"),
    }
    assert [(row["exec_id"], row["job_id"], row["attempt"]) for row in rows] == [
        (f"{id}:{n}", id, n) for n in range(1, len(rows) + 1)
    ]
    records = durable.executions(id)
    assert [msgspec.structs.asdict(record) for record in records] == [
        {name: row[name] for name in ExecutionRecord.__struct_fields__} for row in rows
    ]


@pytest.mark.clause("EXEC-5", "EXEC-6", "EXEC-7", "INV-3")
def test_each_record_has_the_outcome_of_its_execution(durable: Harness, sql: SqlConnection) -> None:
    """INV_003: numbers have no gaps, transitions are in order."""
    rows = sql.executions(lived(durable))
    assert summary(rows) == [
        (1, 1, "one", "ABORTED", "retry"),
        (2, 1, "one", "DONE", "next"),
        (3, 2, "two", "DONE", "await"),
        (4, 3, "three", "DONE", "schedule_children"),
        (5, 4, "four", "ABORTED", "lease"),
        (6, 4, "four", "DONE", "done"),
    ]
    assert all(row["leased_at"] <= row["finished_at"] for row in rows)
    assert all(row["lease_expires_at"] > row["finished_at"] for row in rows if row["outcome"] != "lease")
    assert all(row["lease_expires_at"] < row["finished_at"] for row in rows if row["outcome"] == "lease")
    assert [row["step_attempt"] for row in rows] == [0, 1, 0, 0, 0, 1]


@pytest.mark.clause("EXEC-10")
def test_cancelling_a_waiting_instance_records_an_execution(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(Say, "hi")
    durable.cancel(ref)
    (record,) = sql.executions(ref.id)
    assert summary([record]) == [(1, 1, "say", "ABORTED", "cancelled")]
    assert (record["lease_owner"], record["leased_at"], record["started_at"]) == (None, None, None)
    assert record["finished_at"] is not None
    state = "select state from gen_durable.gen_durable_job_state where job_id = %s"
    assert sql.value(state, ref.id) == "CANCELLED"


@pytest.mark.clause("JOB-1")
def test_job_has_the_fields_of_the_state_model(durable: Harness, sql: SqlConnection) -> None:
    id = lived(durable)
    row = sql.row(id)
    assert sql(_JOB, id) == [
        {
            "job_id": id,
            "payload": row["state"],
            "state": "SUCCEEDED",
            "attempt": 6,
            "created_at": row["inserted_at"],
            "updated_at": row["updated_at"],
        }
    ]
