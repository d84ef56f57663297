"""The setting `executions` decides what is recorded; instances behave the same at every level."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import msgspec
import psycopg
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
    Settings,
    Spec,
    Stop,
    Worker,
    step,
)
from gen_durable._core.model import Committed, Stale
from gen_durable._db import commit as commits
from gen_durable._db import lease as leases
from gen_durable._db.pool import Database
from gen_durable.config import RecordLevel
from gen_durable.outcome import Sql
from gen_durable.testing import Crash, Harness
from tests.support.engine_plans import entry, inserted, new, picked
from tests.support.ledger import BOOK, LEDGER, booked, booking, commit_with_effect
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE

LEVELS: Final[list[RecordLevel]] = ["all", "failures", "off"]
_EXPIRE = "update gen_durable.gen_durable set lease_expires_at = now() - interval '1 s' where id = $1"


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> RecordLevel:
    chosen: RecordLevel = request.param
    return chosen


@pytest.fixture
def durable_settings(level: RecordLevel) -> Settings:
    return Settings(executions=level)


class Leaf(Machine[None, None]):
    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        return Done()


class Everything(Machine[None, None]):
    """Returns every outcome but Stop."""

    @step
    async def once_more(self, ctx: Context[None]) -> Outcome[None]:
        return Next(self.sleep) if ctx.attempt else Retry()

    @step
    async def sleep(self, ctx: Context[None]) -> Outcome[None]:
        return Await(then=self.split, timeout=timedelta(hours=1))

    @step
    async def split(self, ctx: Context[None]) -> Outcome[None]:
        return ScheduleChildren([Spec(Leaf)], then=self.book)

    @step
    async def book(self, ctx: Context[None]) -> Outcome[None]:
        return Next(self.end, effect=booking(ctx))

    @step
    async def end(self, ctx: Context[None]) -> Outcome[None]:
        return Done()


class Failing(Machine[None, None]):
    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        return Stop("as expected", effect=booking(ctx))


def _told(records: Any) -> list[tuple[str, str | None]]:
    return [(one.status.value, one.outcome) for one in records]


@pytest.mark.clause("EXEC-8")
def test_recorded_outcomes_by_level(durable: Harness, durable_dsn: str, level: RecordLevel) -> None:
    with psycopg.connect(durable_dsn, autocommit=True) as conn:
        conn.execute(LEDGER)
    done, failed = durable.insert(Everything), durable.insert(Failing)
    durable.drain()
    durable.fire_timeouts()
    durable.drain()
    durable.assert_done(done)
    durable.assert_failed(failed)
    everything = [
        ("ABORTED", "retry"),
        ("DONE", "next"),
        ("DONE", "await"),
        ("DONE", "schedule_children"),
        ("DONE", "next"),
        ("DONE", "done"),
    ]
    expected = {"all": everything, "failures": everything[:1], "off": []}
    assert _told(durable.executions(done)) == expected[level]
    assert _told(durable.executions(failed)) == ([] if level == "off" else [("DONE", "stop")])
    with psycopg.connect(durable_dsn) as conn:
        assert conn.execute("select count(*) from ledger").fetchone() == (2,)


def test_recorded_lost_leases_by_level(durable: Harness, level: RecordLevel) -> None:
    leaf = durable.insert(Leaf)
    with durable.crash_at(Leaf.run), pytest.raises(Crash):
        durable.drain()
    live: list[ExecutionRecord] = list(durable.executions(leaf))
    assert _told(live) == [("LEASED", None)], "what is live can be seen at every level"
    durable.drain()
    assert (
        _told(durable.executions(leaf))
        == {
            "all": [("ABORTED", "lease"), ("DONE", "done")],
            "failures": [("ABORTED", "lease")],
            "off": [],
        }[level]
    )
    assert durable.assert_done(leaf) is None


async def test_recorded_releases_cancels_and_poison_by_level(
    database: Database, db: Any, level: RecordLevel
) -> None:
    recorder = commits.Recorder("worker", level)
    ids = await inserted(database, new(), new(), new(concurrency_key="k"), new())
    first, second, third, fourth = await picked(database)
    await db.execute(
        "update gen_durable.gen_durable set cancel_requested_at = now() where id = any ($1)", ids[1:3]
    )
    await database.run_in_transaction(commits.commit([entry(first, "release")], recorder))
    await database.run(commits.commit_plain([entry(second, "next")], recorder))
    await database.run_in_transaction(commits.commit([entry(third, "done", payload="1")], recorder))
    await db.execute(_EXPIRE, fourth.id)
    await database.run_in_transaction(leases.reap(timedelta(milliseconds=1), leases.CrashPolicy(1, level)))
    rows = await db.fetch("select status, outcome from gen_durable.gen_durable_executions order by job_id")
    reasons = ["shutdown", "cancelled", "cancelled", "poison"]
    assert [tuple(row) for row in rows] == ([] if level == "off" else [("ABORTED", why) for why in reasons])
    statuses = await db.fetch("select status::text from gen_durable.gen_durable order by id")
    assert [row["status"] for row in statuses] == ["runnable", "cancelled", "cancelled", "failed"]


@pytest.mark.clause("EXEC-9", "INV-1")
async def test_transition_is_committed_once_at_every_level(
    database: Database, db: Any, level: RecordLevel, subtests: pytest.Subtests
) -> None:
    """INV_001 is enforced by the lease token, not by the record."""
    recorder = commits.Recorder("worker", level)

    def outcome(execution: Any, kind: str) -> Any:
        payload = None if kind == "stop" else f'"{execution.lease_token}"'
        awaits = {"awaits": ("go",)} if kind == "await" else {}
        return entry(execution, kind, payload=payload, effect=Sql(BOOK, kind, ""), **awaits)

    for kind in ("continue", "next", "done", "stop", "await"):
        with subtests.test(kind=kind):
            await db.execute("delete from gen_durable.gen_durable; delete from ledger")
            (id,) = await inserted(database, new())
            (zombie,) = await picked(database)
            await db.execute(_EXPIRE, zombie.id)
            await database.run_in_transaction(
                leases.reap(timedelta(milliseconds=1), leases.CrashPolicy(20, level))
            )
            await db.execute("update gen_durable.gen_durable set eligible_at = now()")
            (heir,) = await picked(database)
            for execution, expected in ((zombie, Stale), (heir, Committed), (zombie, Stale), (heir, Stale)):
                result = await commit_with_effect(database, outcome(execution, kind), recorder)
                assert isinstance(result, expected)
            assert await db.fetchval("select step_seq from gen_durable.gen_durable") == 1
            assert await booked(db) == [kind]
            committed = (
                "select count(*) from gen_durable.executions where instance_id = $1 and status = 'COMMITTED'"
            )
            is_recorded = level == "all" or (level == "failures" and kind == "stop")
            assert await db.fetchval(committed, id) == int(is_recorded)


@pytest.mark.clause("EXEC-8")
async def test_worker_records_at_the_level_of_its_settings(
    durable_dsn: str, db: Any, level: RecordLevel
) -> None:
    settings = msgspec.structs.replace(CALM, executions=level)
    async with Worker([Everything, Failing, Leaf], dsn=durable_dsn, settings=settings) as worker:
        failed, leaf = await worker.insert(Failing), await worker.insert(Leaf)
        await worker.wait_all([failed, leaf], timeout=PATIENCE)
    rows = await db.fetch("select outcome, status from gen_durable.gen_durable_executions order by job_id")
    records = [("stop", "DONE"), ("done", "DONE")]
    assert [tuple(row) for row in rows] == {"all": records, "failures": records[:1], "off": []}[level]
    assert await booked(db) == [f"{failed.id}:1"]
