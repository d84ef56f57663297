"""Effects are exactly-once when the worker dies, the connection breaks, or the reply to COMMIT is lost."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta
from typing import Any

import pytest

from gen_durable import (
    AsyncClient,
    Context,
    Done,
    ExecutionStatus,
    Machine,
    Next,
    Outcome,
    Transaction,
    Worker,
    step,
)
from gen_durable._db import commit as commits
from gen_durable._db.pool import Database
from gen_durable.telemetry import OutcomeStale
from tests.engine.effects.crashing_payment import Payment
from tests.engine.effects.worker_processes import victim
from tests.support.ledger import BOOK, booked, booking, busy_with
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE, Events, holds

DONE, ABORTED = ExecutionStatus.DONE, ExecutionStatus.ABORTED
_SLOW_COMMIT = """
create function dawdle() returns trigger language plpgsql as $$ begin perform pg_sleep(0.6); return null; end $$;
create constraint trigger dawdle after insert on ledger deferrable initially deferred
  for each row execute function dawdle()"""


@pytest.mark.parametrize("point", ["in the step", "in the effect", "before COMMIT"])
async def test_worker_killed_before_commit_leaves_no_effect(durable_dsn: str, db: Any, point: str) -> None:
    """INV_002: an execution that died before its commit changed nothing, and runs again."""
    async with AsyncClient(durable_dsn, settings=FAST) as client:
        ref = await client.insert(Payment)
        async with victim(durable_dsn, FAST, point) as worker:
            await worker.wait_for(paying=f"{ref.id}:1")
            assert await worker.ends() == -signal.SIGKILL
        # The server may need a moment to notice that the client is gone.
        await holds(db, "select count(*) = 0 from pg_stat_activity where application_name = 'gen_durable' "
                        "and datname = current_database() and state <> 'idle'")  # fmt: skip
        assert await booked(db) == []
        async with Worker([Payment], dsn=durable_dsn, settings=FAST) as heir:
            ended = await heir.wait(ref, timeout=PATIENCE)
        first, second = await client.executions(ref)
    assert await booked(db) == [f"{ref.id}:1"]
    assert (ended.status, ended.step_seq, ended.attempt) == ("done", 1, 1)
    assert (first.status, first.outcome, first.attempt) == (ABORTED, "lease", 1)
    assert (second.status, second.outcome, second.attempt, second.lease_owner) == (DONE, "done", 2, heir.name)


async def test_reaper_leaves_recently_committed_executions_to_their_worker(
    database: Database, db: Any
) -> None:
    await db.execute("""
        insert into gen_durable.executions
               (instance_id, step_seq, execution, attempt, status, outcome, step, finished_at)
        select n, 1, 1, 0, 'COMMITTED', 'done', 's', now() - n * interval '10 s' from generate_series(1, 5) n""")
    assert (await database.run(commits.finish_abandoned(timedelta(seconds=25))))[0] == 3
    assert (await database.run(commits.finish_abandoned(timedelta(seconds=25))))[0] == 0
    rows = await db.fetch(
        "select instance_id from gen_durable.executions where status = 'COMMITTED' order by 1"
    )
    assert [row[0] for row in rows] == [1, 2]


async def test_abandoned_executions_are_finished_in_bounded_rounds(database: Database, db: Any) -> None:
    await db.execute("""
        insert into gen_durable.executions
               (instance_id, step_seq, execution, attempt, status, outcome, step, finished_at)
        select n, 1, 1, 0, 'COMMITTED', 'done', 's', now() - interval '1 h' from generate_series(1, 1200) n""")
    # The first 700 rows in page order still have a pending event.
    await db.execute("""
        insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data)
        select n, 1, 1, 's', 't', 'u', '1' from generate_series(1, 700) n""")
    rounds, after = [], commits.FIRST_PAGE
    for _ in range(4):
        count, after = await database.run(commits.finish_abandoned(timedelta(seconds=60), after))
        rounds.append(count)
    assert rounds == [0, 300, 200, 0]
    assert after != commits.FIRST_PAGE, "the fourth round begins anew, with those that still have an event"


class Booker(Machine[str, str]):
    """Books once, and then continues or ends, as its state says."""

    def __init__(self) -> None:
        self.connections: list[Any] = []

    @step
    async def book(self, ctx: Context[str]) -> Outcome[str]:
        async def effect(tx: Transaction) -> None:
            self.connections.append(tx._conn)  # type: ignore[attr-defined]
            await tx.execute(BOOK, ctx.idempotency_key, "")

        return Next(self.end, effect=effect) if ctx.state == "next" else Done("booked", effect=effect)

    @step
    async def end(self, ctx: Context[str]) -> Outcome[str]:
        return Done("the end")

    def handle(self, error: Exception, ctx: Context[str]) -> Outcome[str]:
        raise AssertionError("a broken connection is nothing to handle") from error


@pytest.mark.parametrize("kind", ["next", "done"])
async def test_effect_whose_commit_reply_was_lost_is_not_repeated(
    durable_dsn: str, db: Any, kind: str
) -> None:
    """The connection is cut during COMMIT; the server still commits."""
    await db.execute(_SLOW_COMMIT)
    machine = Booker()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(machine, kind)
        await busy_with(db, "%; commit")
        machine.connections[0]._transport.abort()
        ended = await worker.wait(ref, timeout=PATIENCE)
        await holds(db, "select bool_and(status = 'DONE') from gen_durable.executions")
        records = await worker.executions(ref)
    assert ended.result == {"next": "the end", "done": "booked"}[kind]
    assert await booked(db) == [f"{ref.id}:1"]
    assert events.of(OutcomeStale) == [], "it is known to be committed"
    assert [one.outcome for one in records] == (["next", "done"] if kind == "next" else ["done"])
    assert {one.status for one in records} == {DONE}, "no lease was lost"


@pytest.mark.parametrize("kind", ["next", "done"])
async def test_effect_whose_commit_failed_runs_again(durable_dsn: str, db: Any, kind: str) -> None:
    """The backend dies during COMMIT: nothing is committed, and the worker detects it."""
    await db.execute(_SLOW_COMMIT)
    machine = Booker()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(machine, kind)
        pid = await busy_with(db, "%; commit")
        await db.execute("select pg_terminate_backend($1)", pid)
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert ended.result == {"next": "the end", "done": "booked"}[kind]
    assert len(machine.connections) == 2
    assert await booked(db) == [f"{ref.id}:1"]
    assert events.of(OutcomeStale) == []


@pytest.mark.parametrize("swallows", [False, True])
async def test_effect_whose_connection_breaks_runs_again(
    durable_dsn: str, db: Any, *, swallows: bool
) -> None:
    runs: list[str] = []

    class Sleepy(Machine[None, str]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[str]:
            async def effect(tx: Transaction) -> None:
                runs.append(ctx.idempotency_key)
                await tx.execute(BOOK, ctx.idempotency_key, "")
                try:
                    await tx.execute("select pg_sleep($1)", 50 if len(runs) == 1 else 0)
                except Exception:
                    if not swallows:
                        raise

            return Done("done", effect=effect)

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[str]:
            return Done(f"{error}")

    async with Worker([Sleepy], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Sleepy)
        pid = await busy_with(db, "%pg_sleep%")
        await db.execute("select pg_terminate_backend($1)", pid)
        assert (await worker.wait(ref, timeout=PATIENCE)).result == "done"
    assert runs == [f"{ref.id}:1"] * 2
    assert await booked(db) == [f"{ref.id}:1"]


async def test_worker_survives_the_loss_of_all_connections(durable_dsn: str, db: Any) -> None:
    """During picks, group commits and effects."""

    class Busy(Machine[int, int]):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[int]:
            if ctx.state == 3:
                return Done(ctx.state, effect=booking(ctx))
            return Next(self.run, ctx.state + 1, requeue=ctx.state == 1, effect=booking(ctx))

    cut = """
        select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and application_name = 'gen_durable'"""
    async with Worker([Busy], dsn=durable_dsn, queues={"default": 20}, settings=CALM) as worker:
        refs = [await worker.insert(Busy, 0, concurrency_key=f"k{n % 7}") for n in range(40)]
        for _ in range(4):
            await asyncio.sleep(0.1)
            await db.execute(cut)
        async with AsyncClient(durable_dsn, settings=CALM) as client:
            ended = await client.wait_all(refs, timeout=PATIENCE)
    assert {(one.status, one.step_seq) for one in ended} == {("done", 4)}
    assert sorted(await booked(db)) == sorted(f"{ref.id}:{n}" for ref in refs for n in (1, 2, 3, 4))
