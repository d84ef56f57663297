"""Workers count what they execute; the counts are written once, folded, and read as rates."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    Backoff,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Settings,
    Stop,
    UsageError,
    Worker,
    _verbs,
    step,
)
from gen_durable._core.model import CommitEntry, Execution, Kind
from gen_durable._db import rollups
from gen_durable._db.failures import StatementError
from gen_durable._db.lease import Crash
from gen_durable._db.pool import Database
from gen_durable._runtime.clock import DatabaseClock
from gen_durable._runtime.database_status import DatabaseStatus
from gen_durable._runtime.in_flight import InFlight
from gen_durable._runtime.maintenance.collector import Collector
from gen_durable._runtime.step_counts import StepCounts
from gen_durable.telemetry import Telemetry
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, holds

STEPS = "select fsm, version, step, outcome, cause, to_step, n, started from gen_durable.step_stats order by step, outcome"
TOTALS = (
    "select sum(n)::int as n, sum(started)::int as started, sum(done)::int as done, sum(failed)::int as failed,"
    " sum(retried)::int as retried, sum(raised)::int as raised, sum(stopped)::int as stopped"
    " from gen_durable.machine_stats where fsm = $1"
)
AGE = "update gen_durable.{} set bucket = bucket - interval '3 hours'"
NOW = Backoff(base=timedelta(0), max_attempts=2)


class Work(Machine[str, None]):
    @step(retry=NOW)
    async def begin(self, ctx: Context[str]) -> Outcome[None]:
        if ctx.state == "raises" or (ctx.state == "retries" and ctx.attempt == 0):
            raise ValueError(ctx.state)
        return Stop("no") if ctx.state == "stops" else Next(self.end)

    @step
    async def end(self, ctx: Context[str]) -> Outcome[None]:
        return Done(None)


def counted(
    counts: StepCounts,
    kind: Kind,
    *,
    became: str = "runnable",
    number: int = 1,
    seconds: float = 0.003,
    is_stale: bool = False,
    version: int = 1,
    **fields: Any,
) -> None:
    execution = Execution(1, 1, "A", version, "s", 0, 0, "{}", "q", number=number, due_at=100.0)
    one = InFlight.of(execution, timedelta(minutes=1))
    one.steps, one.seconds = 1, seconds
    entry = CommitEntry(execution=execution, kind=kind, **{"started": 1.0, "started_at": 100.5, **fields})
    counts.count(one, entry, None if is_stale else became)


async def written(counts: StepCounts, database: Database, clock: DatabaseClock | None = None) -> None:
    await counts.write(database, "w", clock or DatabaseClock())


async def test_counts_are_written_by_step_outcome_and_next_step(db: Any, database: Database) -> None:
    counts = StepCounts()
    for number in (1, 2, 3):
        counted(counts, "continue", became="executing", step="t", number=number)
    counted(counts, "next", became="cancelled", step="t")
    counted(counts, "retry", cause="error")
    counted(counts, "stop", became="failed", cause="exhausted")
    counted(counts, "done", became="done")
    counted(counts, "done", is_stale=True)
    await written(counts, database)
    rows = [tuple(row) for row in await db.fetch(STEPS)]
    assert rows == [
        ("A", 1, "s", "cancelled", "", "", 1, 1),
        ("A", 1, "s", "done", "", "", 1, 1),
        ("A", 1, "s", "next", "", "t", 3, 1),
        ("A", 1, "s", "retry", "error", "", 1, 1),
        ("A", 1, "s", "stale", "", "", 1, 1),
        ("A", 1, "s", "stop", "exhausted", "", 1, 1),
    ]
    (run, wait) = await db.fetchrow("select run, wait from gen_durable.step_stats where outcome = 'next'")
    assert (run, wait) == ([0, 0, 3], [0] * 9 + [3]), "3 ms in the third bucket, 500 ms in the tenth"
    total = await db.fetchrow(TOTALS, "A")
    assert dict(total) == {
        "n": 8, "started": 6, "done": 1, "failed": 1, "retried": 1, "raised": 2, "stopped": 0
    }  # fmt: skip
    assert dict(await db.fetchrow(TOTALS, "")) == dict(total)


async def test_totals_are_kept_by_version(db: Any, database: Database) -> None:
    counts = StepCounts()
    # An undo step ends its instance with the outcome `undone`, so outcomes of steps do not tell how many failed.
    counted(counts, "done", became="failed")
    counted(counts, "done", became="done")
    counted(counts, "done", became="done", version=2, number=2)
    await written(counts, database)
    found = []
    for version in (1, 2, 3, None):
        total = (await database.run(_verbs.rates("24h", "A", version))).total
        found.append(
            (total.executions, total.started, total.done, total.failed, total.run.count, total.wait.count)
        )
    assert found == [(2, 2, 1, 1, 2, 2), (1, 0, 1, 0, 1, 1), (0,) * 6, (3, 2, 2, 1, 3, 3)]
    await db.execute(AGE.format("machine_stats"))
    while await database.run(rollups.fold()):
        pass
    rows = await db.fetch(
        "select fsm, version, n, done from gen_durable.machine_stats where worker = '' order by 1, 2"
    )
    assert [tuple(row) for row in rows] == [("", 0, 3, 2), ("A", 1, 2, 1), ("A", 2, 1, 1)]


async def test_long_and_negative_durations_are_in_the_outer_buckets(db: Any, database: Database) -> None:
    counts = StepCounts()
    for seconds in (0.0, 0.0009, 0.001, 1.0, 5000.0, 1e9):
        counted(counts, "done", became="done", seconds=seconds)
    counted(counts, "retry", started_at=0.0)
    await written(counts, database)
    run = await db.fetchval("select run from gen_durable.step_stats where outcome = 'done'")
    assert run == [2, 1, *[0] * 7, 0, 1, *[0] * 12, 2]
    assert await db.fetchval("select wait from gen_durable.step_stats where outcome = 'retry'") == [1]


async def test_statement_that_is_sent_twice_counts_once(db: Any, database: Database) -> None:
    """A lost reply: the counts stay unwritten, and are sent again with what was counted since."""
    counts = StepCounts()
    counted(counts, "done", became="done")

    class Deaf:
        """A database whose reply is lost."""

        async def run(self, plan: Any) -> Any:
            await database.run(plan)
            raise StatementError("", "connection lost")

    for _ in range(2):
        await counts.write(Deaf(), "w", _at(1e9))  # type: ignore[arg-type]
        counted(counts, "done", became="done")
    await written(counts, database, _at(1e9))
    await written(counts, database, _at(1e9))
    assert await db.fetchval("select sum(n)::int from gen_durable.step_stats") == 3
    assert (await db.fetchrow(TOTALS, "A"))["n"] == 3


def _at(moment: float) -> DatabaseClock:
    """A clock that shows about this time, whatever the process says."""

    class Fixed(DatabaseClock):
        def seconds_at(self, monotonic: float) -> float:
            return moment

    return Fixed()


async def test_intervals_and_restarts_have_rows_of_their_own(db: Any, database: Database) -> None:
    first, second = StepCounts(), StepCounts()
    for moment in (1000.0, 1009.0, 1010.0):
        counted(first, "done", became="done")
        await written(first, database, _at(moment))
    counted(second, "done", became="done")
    await written(second, database, _at(1011.0))
    rows = await db.fetch(
        "select extract(epoch from bucket)::int as at, n from gen_durable.step_stats order by 1, 2 desc, incarnation"
    )
    assert [tuple(row) for row in rows] == [(1000, 2), (1010, 1), (1010, 1)]


async def test_crashes_are_counted(db: Any, database: Database) -> None:
    counts = StepCounts()
    counts.crashed(
        [
            Crash("A", 1, "s", "lease", "crash", "", "runnable", 1),
            Crash("A", 1, "s", "poison", "poison", "t", "runnable", 2),
            Crash("A", 1, "s", "poison", "poison", "", "failed", 2),
        ]
    )
    await written(counts, database)
    assert [tuple(row)[3:] for row in await db.fetch(STEPS + ", to_step")] == [
        ("lease", "crash", "", 1, 1),
        ("poison", "poison", "", 1, 0),
        ("poison", "poison", "t", 1, 0),
    ]
    assert dict(await db.fetchrow(TOTALS, "A")) == {
        "n": 3, "started": 1, "done": 0, "failed": 1, "retried": 1, "raised": 3, "stopped": 0
    }  # fmt: skip


@pytest.mark.clause("OPS-16")
async def test_old_rows_are_folded_once_by_any_number_of_collectors(db: Any, durable_dsn: str) -> None:
    expected: Counter[str] = Counter()
    async with await Database.open(durable_dsn, "gen_durable", size=4) as database:
        for worker in range(3):
            counts = StepCounts()
            for moment in range(0, 1200, 70):
                for kind in ("continue", "done"):
                    counted(counts, kind, became={"done": "done"}.get(kind, "executing"), step="t")
                    expected[kind] += 1
                await counts.write(database, f"w{worker}", _at(999_999_900 + moment))
        await asyncio.gather(*[_folded(database) for _ in range(4)])
        assert await db.fetchval("select count(*) from gen_durable.step_stats where worker <> ''") == 0
        rows = await db.fetch(
            "select outcome, sum(n)::int as n, sum(run[3])::int as run, sum(wait[10])::int as wait, count(*) as rows"
            " from gen_durable.step_stats group by 1 order by 1"
        )
        number = expected["done"]
        assert [tuple(row) for row in rows] == [("done", *[number] * 3, 4), ("next", *[number] * 3, 4)]
        assert (await db.fetchrow(TOTALS, "A"))["n"] == 2 * number
        # Far older than the retention.
        assert await database.run(rollups.sweep()) is False
        assert await db.fetchval("select count(*) from gen_durable.step_stats") == 0
        assert await db.fetchval("select count(*) from gen_durable.machine_stats") == 0


async def _folded(database: Database) -> None:
    while await database.run(rollups.fold()):
        pass


async def test_collector_folds_and_thins_out(db: Any, database: Database) -> None:
    counts = StepCounts()
    counted(counts, "done", became="done")
    await written(counts, database)
    await database.run(rollups.write_backlog())
    await db.execute(
        "insert into gen_durable.backlog select 'A', date_bin('5 min', now(), 'epoch') - n * interval '15 s', 1, 1, 1, n % 20 = 0"
        " from generate_series(0, 1199) n"
    )
    for table in ("step_stats", "machine_stats"):
        await db.execute(AGE.format(table))
    await Collector(database, Settings(), Telemetry(), DatabaseStatus()).tick()
    assert await db.fetchval("select array_agg(distinct worker) from gen_durable.step_stats") == [""]
    kept = await db.fetch(
        "select bucket < now() - interval '2 hours' as is_old, count(*) from gen_durable.backlog group by 1"
    )
    assert {row[0]: row[1] for row in kept}[True] <= 37


async def test_backlog_is_written_once_per_interval(db: Any, durable_dsn: str) -> None:
    await db.execute(
        "insert into gen_durable.gen_durable (fsm, step, status, eligible_at, awaits) values ('A', 's', 'runnable', now(), null),"
        " ('A', 's', 'runnable', now() + interval '1 h', null), ('B', 's', 'awaiting_signal', now(), '{x}'),"
        " ('B', 's', 'done', now(), null)"
    )
    async with await Database.open(durable_dsn, "gen_durable", size=4) as database:
        await asyncio.gather(*[database.run(rollups.write_backlog()) for _ in range(4)])
    rows = await db.fetch(
        "select fsm, due, executing, waiting from gen_durable.backlog"
        " where bucket = (select min(bucket) from gen_durable.backlog) order by fsm"
    )
    assert [tuple(row) for row in rows] == [("", 1, 0, 1), ("A", 1, 0, 0), ("B", 0, 0, 1)]


async def test_nothing_to_do_writes_no_backlog(db: Any, database: Database) -> None:
    await database.run(rollups.write_backlog())
    assert await db.fetchval("select count(*) from gen_durable.backlog") == 0


@pytest.mark.clause("OPS-16")
async def test_rates_of_a_worker_that_was_closed(client: Any, durable_dsn: str) -> None:
    async with Worker([Work], dsn=durable_dsn, settings=CALM) as worker:
        refs = [await worker.insert(Work, state) for state in ("ok", "ok", "raises", "retries", "stops")]
        for ref in refs:
            await worker.wait(ref, timeout=PATIENCE)
    found = await client.rates("15m")
    total = found.total
    assert (total.executions, total.started) == (10, 5)
    assert (total.done, total.failed, total.cancelled) == (3, 2, 0)
    assert (total.retried, total.raised, total.stopped) == (2, 3, 1)
    assert total.run.count == 10
    assert total.wait.count == 7, "three steps were chained"
    assert total.run.p95 is not None
    ((name, of_work),) = found.machines
    assert (name, of_work.executions) == ("Work", 10)
    assert msgspec.structs.replace(found.total, at=of_work.at) == of_work
    assert (await client.rates("7d", Work)).total.executions == 10
    assert (await client.rates("1h", "Other")).points == ()
    rates = await client.step_rates(Work, "1h")
    assert [(each.step, each.outcome, each.cause, each.to_step, each.executions) for each in rates.edges] == [
        ("begin", "next", None, "end", 3),
        ("begin", "retry", "error", None, 2),
        ("begin", "stop", "exhausted", None, 1),
        ("begin", "stop", "stop", None, 1),
        ("end", "done", None, None, 3),
    ]
    begin, end = rates.steps
    assert (begin.step, begin.executions, begin.raised, begin.stopped) == ("begin", 7, 3, 1)
    assert begin.failure_share == 3 / 7
    assert (end.step, end.failure_share, end.wait.count) == ("end", 0.0, 0)


async def test_unknown_range_is_refused(client: Any) -> None:
    with pytest.raises(UsageError, match="15m"):
        await client.rates("2h")


async def test_worker_that_runs_nothing_writes_nothing(db: Any, durable_dsn: str) -> None:
    async with Worker([Work], dsn=durable_dsn, settings=CALM):
        await asyncio.sleep(2.5)
    assert await db.fetchval("select count(*) from gen_durable.machine_stats") == 0


PROGRAM = """
import asyncio, sys
from gen_durable import Worker
from tests.operations.test_rollups import Work, FAST
async def main():
    async with Worker([Work], dsn=sys.argv[1], settings=FAST) as worker:
        print("ready", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
FAST = Settings(lease=timedelta(seconds=6), heartbeat=timedelta(seconds=1))


@pytest.mark.clause("OPS-16")
async def test_killed_worker_loses_only_the_latest_counts(db: Any, client: Any, durable_dsn: str) -> None:
    program = [sys.executable, "-c", PROGRAM, durable_dsn]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as first:
        await asyncio.to_thread(first.stdout.readline)  # type: ignore[union-attr]
        refs = [await client.insert(Work, "ok") for _ in range(20)]
        for ref in refs:
            await client.wait(ref, timeout=PATIENCE)
        await holds(db, "select coalesce(sum(n), 0) = 40 from gen_durable.machine_stats where fsm = ''")
        late = [await client.insert(Work, "ok") for _ in range(20)]
        for ref in late:
            await client.wait(ref, timeout=PATIENCE)
        first.send_signal(signal.SIGKILL)
    total = (await client.rates("15m")).total
    assert 40 <= total.executions <= 80
    async with Worker([Work], dsn=durable_dsn, settings=CALM) as worker:
        await worker.wait(await worker.insert(Work, "ok"), timeout=PATIENCE)
    assert (await client.rates("15m")).total.executions == total.executions + 2
