"""EXEC, JOB, INV: executions as records, and the state of a job as a function of them."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from gen_durable import (
    Await,
    Context,
    Done,
    ExecutionRecord,
    ExecutionStatus,
    JobState,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Settings,
    Spec,
    Status,
    Stop,
    Worker,
    job_state,
    step,
)
from gen_durable.testing import Crash, Harness
from tests.support.machines import Fail, Say, one_step, probe
from tests.support.rows import SqlConnection, is_near
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE

_JOB = "select * from gen_durable.gen_durable_job_state where job_id = %s"


class Life(Machine[int, int]):
    """Each kind of outcome once: retry, next, await, children, done."""

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
    """An instance with a whole life behind it, a crash in its last step included."""
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
def test_an_execution_has_the_fields_of_the_model(durable: Harness, sql: SqlConnection) -> None:
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


class Long(Machine[None, None]):
    def __init__(self) -> None:
        self.may_go = asyncio.Event()

    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        await self.may_go.wait()
        return Done()


@pytest.mark.clause("EXEC-3", "EXEC-4", "EXEC-7")
async def test_an_execution_is_leased_and_then_in_progress(durable_dsn: str, sql: SqlConnection) -> None:
    machine = Long()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine)
        seen: dict[str, dict[str, Any]] = {}
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while "IN_PROGRESS" not in seen:
                for row in sql.executions(ref.id):
                    seen.setdefault(row["status"], row)
                await asyncio.sleep(0.02)
        noted_at = sql.value("select now()")
        machine.may_go.set()
        await worker.wait(ref, timeout=PATIENCE)
    assert list(seen) == ["LEASED", "IN_PROGRESS"]
    leased, running = seen.values()
    assert (leased["lease_owner"], leased["started_at"], leased["finished_at"]) == (worker.name, None, None)
    assert leased["lease_expires_at"] - leased["leased_at"] == CALM.lease
    assert running["leased_at"] <= running["started_at"] <= noted_at
    # A second, and what a busy machine may need.
    assert noted_at - running["started_at"] < timedelta(seconds=3)
    (done,) = sql.executions(ref.id)
    assert done["status"] == "DONE"
    assert (done["leased_at"], done["lease_owner"]) == (leased["leased_at"], worker.name)
    assert done["lease_expires_at"] >= leased["lease_expires_at"]
    assert is_near(done["started_at"], running["started_at"])
    assert done["started_at"] <= done["finished_at"]


@pytest.mark.clause("EXEC-5", "EXEC-6", "EXEC-7", "INV-3")
def test_each_record_says_how_its_execution_ended(durable: Harness, sql: SqlConnection) -> None:
    """INV_003: numbers without gap, transitions one after another."""
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


@pytest.mark.clause("EXEC-6")
def test_what_ends_without_a_transition_is_aborted_and_tells_why(
    durable_dsn: str, sql: SqlConnection
) -> None:
    with Harness(durable_dsn, settings=Settings.load(crash_limit=2)) as durable:
        ref = durable.insert(Say, "hi")
        for _ in range(2):
            sql.abandon(ref.id, "the dead")
            durable.drain(collapse=False)
        again = durable.insert(probe(lambda ctx: Retry()), 7)
        one_step(durable)
    assert summary(sql.executions(ref.id)) == [
        (1, 1, "say", "ABORTED", "lease"),
        (2, 1, "say", "ABORTED", "poison"),
    ]
    assert {row["lease_owner"] for row in sql.executions(ref.id)} == {"the dead"}
    assert [row["outcome"] for row in sql.executions(again.id)] == ["retry", "shutdown"]


@pytest.mark.clause("EXEC-10")
def test_cancelling_what_does_not_execute_leaves_an_execution_without_lease(
    durable: Harness, sql: SqlConnection
) -> None:
    ref = durable.insert(Say, "hi")
    durable.cancel(ref)
    (record,) = sql.executions(ref.id)
    assert summary([record]) == [(1, 1, "say", "ABORTED", "cancelled")]
    assert (record["lease_owner"], record["leased_at"], record["started_at"]) == (None, None, None)
    assert record["finished_at"] is not None
    state = "select state from gen_durable.gen_durable_job_state where job_id = %s"
    assert sql.value(state, ref.id) == "CANCELLED"


@pytest.mark.clause("EXEC-8")
@pytest.mark.parametrize(
    ("level", "expected"),
    [("all", 7), ("failures", 3), ("off", 0)],
)
def test_the_level_says_what_is_recorded(
    durable_dsn: str, sql: SqlConnection, level: Any, expected: int
) -> None:
    with Harness(durable_dsn, settings=Settings.load(executions=level)) as durable:
        id = lived(durable)
        failed = durable.insert(Fail, "no")
        durable.drain()
    outcomes = [row["outcome"] for row in sql.executions(id) + sql.executions(failed.id)]
    assert len(outcomes) == expected
    if level == "failures":
        assert outcomes == ["retry", "lease", "stop"]


@pytest.mark.clause("INV-1")
def test_a_transition_cannot_have_two_commits(durable: Harness, sql: SqlConnection) -> None:
    """INV_001, as a law of the database."""
    id = lived(durable)
    copy = (
        "insert into gen_durable.executions select instance_id, step_seq, execution + 100, attempt, 'COMMITTED',"
        " outcome, step, lease_owner, leased_at, lease_expires_at, started_at, finished_at, error"
        " from gen_durable.executions where instance_id = %s and status = 'DONE' and step_seq = 2"
    )
    with pytest.raises(psycopg.errors.UniqueViolation, match="executions_commit"):
        sql(copy, id)


@pytest.mark.clause("JOB-1")
def test_a_job_has_the_fields_of_the_model(durable: Harness, sql: SqlConnection) -> None:
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


def expected_state(row: dict[str, Any]) -> JobState:
    """What the status of an instance means for the job."""
    match row["status"]:
        case "done":
            return JobState.SUCCEEDED
        case "failed":
            return JobState.FAILED
        case "executing":
            return JobState.RUNNING
        case _:
            return JobState.RUNNING if row["step_seq"] else JobState.PENDING


@pytest.mark.clause("JOB-2", "JOB-3", "JOB-5", "INV-3")
@pytest.mark.parametrize(("level", "seeds"), [("all", (0, 1, 2, 3)), ("failures", (4,)), ("off", (5,))])
def test_view_function_and_status_agree_all_along_random_lives(
    durable_dsn: str, sql: SqlConnection, level: Any, seeds: tuple[int, ...], subtests: pytest.Subtests
) -> None:
    """INV_003: whatever happens to an instance, its executions are a history without gap or repetition."""
    chance = random.Random()
    outcomes: list[Outcome[Any]] = [
        *(Next("one"), Next("two"), Retry(), Await("go", then="two")),
        *(ScheduleChildren([Spec(Say, "a")], then="one"), Done(0), Stop("no")),
    ]

    def choose(ctx: Context[int]) -> Outcome[Any]:
        return chance.choice(outcomes)

    machine = probe(choose, choose)
    with Harness(durable_dsn, settings=Settings.load(crash_limit=3, executions=level)) as durable:
        for seed in seeds:
            with subtests.test(seed=seed):
                chance.seed(seed)
                sql("delete from gen_durable.gen_durable")
                live(durable, sql, durable.insert(machine, 7).id, chance, level)


def live(durable: Harness, sql: SqlConnection, id: int, chance: random.Random, level: str) -> None:
    """Lead a random life, and look at everything at each of its turns."""
    for _ in range(25):
        row = sql.row(id)
        records = durable.executions(id)
        assert sql(_JOB, id)[0]["state"] == expected_state(row)
        if level == "all":
            assert job_state(records) == expected_state(row)
            assert [record.attempt for record in records] == list(range(1, row["execution"] + 1))
            committed = [r.step_seq for r in records if r.status is ExecutionStatus.DONE]
            assert committed == list(range(1, row["step_seq"] + 1))
        if Status(row["status"]).is_terminal:
            break
        match row["status"], chance.random():
            case "awaiting_signal", _:
                durable.signal(id, "go")
            case "runnable", luck if luck < 0.3:
                sql.abandon(id)
            case _:
                durable.advance(hours=1)
                one_step(durable)


@pytest.mark.clause("JOB-4", "JOB-2")
def test_a_job_whose_first_lease_ran_out_is_pending_again(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(Say, "hi")
    states = [sql(_JOB, ref.id)[0]["state"]]
    sql.abandon(ref.id)
    states.append(sql(_JOB, ref.id)[0]["state"])
    durable.drain(collapse=False)
    states.append(sql(_JOB, ref.id)[0]["state"])
    assert job_state(durable.executions(ref)) is JobState.PENDING
    durable.drain()
    states.append(sql(_JOB, ref.id)[0]["state"])
    assert states == ["PENDING", "RUNNING", "PENDING", "SUCCEEDED"]
