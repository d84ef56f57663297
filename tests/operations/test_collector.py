"""The collector removes rows whose retention is over, except rows that are still needed."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Await,
    Cancel,
    Context,
    Done,
    Duplicate,
    ExecutionStatus,
    InstanceCollectedError,
    Machine,
    NotRetried,
    Outcome,
    Retried,
    Settings,
    Status,
    Stop,
    Worker,
    job,
    step,
)
from gen_durable._db import collect
from gen_durable._db.pool import Database
from gen_durable._runtime.database_status import DatabaseStatus
from gen_durable._runtime.maintenance.collector import Collector
from gen_durable.errors import OptionError
from gen_durable.telemetry import GcSwept, OutboxExpired, Telemetry
from gen_durable.testing import AsyncHarness, Crash
from tests.operations.rows import EVERY, count, ids, put
from tests.outbox.machines import Teller
from tests.support.machines import Plain
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE, Events

DAY = timedelta(days=1)
SETTINGS = Settings.load()


async def sweep(database: Database, settings: Settings = SETTINGS) -> int:
    """Run one whole sweep. Returns how many instances it reports as removed."""
    events: list[GcSwept] = []
    telemetry = Telemetry()
    telemetry.subscribe(events.append, GcSwept)
    collector = Collector(database, settings, telemetry, DatabaseStatus())
    while await collector.tick() == timedelta(0):
        pass
    return sum(event.count for event in events)


@pytest.mark.clause("GC-1")
@pytest.mark.parametrize(("status", "days"), [("done", 1), ("cancelled", 1), ("failed", 7)])
async def test_retention_per_status(db: Any, database: Database, status: str, days: int) -> None:
    await put(db, status, days=days + 0.01)
    kept = await put(db, status, days=days - 0.01)
    assert await sweep(database) == 1
    assert await ids(db) == [kept]


@pytest.mark.clause("STR-11")
async def test_stream_items_are_removed_with_their_instance(db: Any, database: Database) -> None:
    removed, kept = await put(db, "done", days=1.01), await put(db, "done", days=0.99)
    await db.execute(
        "insert into gen_durable.stream_items (instance_id, stream, position, step, step_seq, execution, attempt,"
        " number, value) select id, stream, position, 'a', 1, 1, 0, position, to_jsonb(position)"
        " from unnest($1::bigint[]) id, unnest(array['words', 'lines']) stream, generate_series(1, 1000) position",
        [removed, kept],
    )
    assert await sweep(database) == 1
    found = await db.fetch("select instance_id, count(*) from gen_durable.stream_items group by 1")
    assert [tuple(each) for each in found] == [(kept, 2000)]


@pytest.mark.clause("GC-1")
async def test_retention_of_deleted_instances(db: Any, database: Database) -> None:
    await put(db, "done", days=30, deleted_at="=now() - interval '7.1 days'")
    kept = await put(db, "done", days=30, deleted_at="=now() - interval '6.9 days'")
    dying = await put(db, "executing", deleted_at="=now() - interval '30 days'")
    assert await sweep(database) == 1
    assert await ids(db) == [kept, dying]


@pytest.mark.clause("GC-2")
@pytest.mark.parametrize("status", ["runnable", "executing", "awaiting_signal", "awaiting_children"])
async def test_live_instances_keep_their_inbox(db: Any, database: Database, status: str) -> None:
    id = await put(
        db, status, inserted_at="=now() - interval '1 year'", updated_at="=now() - interval '1 year'"
    )
    await db.execute(
        "insert into gen_durable.signals (target_id, name, dedup_key, consumed_seq, inserted_at) values"
        " ($1, 'a', null, null, now() - interval '1 year'), ($1, 'b', 'x', 1, now() - interval '1 year')",
        id,
    )
    assert await sweep(database) == 0
    assert (await ids(db), await count(db, "signals")) == ([id], 2)


@pytest.mark.clause("GC-3")
async def test_instance_is_collected_with_its_rows(db: Any, database: Database) -> None:
    gone, kept = await put(db, "done", days=2), await put(db, "done")
    for id in (gone, kept):
        await db.execute(
            "insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step,"
            " finished_at) values ($1, 1, 1, 0, 'ABORTED', 'retry', 's', now()), ($1, 1, 2, 1, 'DONE', 'done', 's', now())",
            id,
        )
        await db.execute("insert into gen_durable.audit_events (instance_id, event) values ($1, 'x')", id)
    await db.execute(
        "insert into gen_durable.signals (target_id, name, dedup_key, consumed_seq)"
        " values ($1, 'a', null, null), ($1, 'b', 'x', 1), ($1, 'c', 'y', null)",
        gone,
    )
    assert await sweep(database) == 1
    assert [await count(db, table) for table in ("executions", "audit_events", "signals")] == [2, 1, 0]


@pytest.mark.clause("GC-4")
async def test_occupied_key_keeps_a_stripped_row(db: Any, durable_dsn: str, database: Database) -> None:
    async with AsyncClient(durable_dsn) as client:
        ref = await client.insert(Plain, 7, idempotency_key="once")
        await db.execute(
            "update gen_durable.gen_durable set status = 'done', result = '42', finished_at = now() - interval '2 days'"
        )
        assert await sweep(database) == 0
        again = await client.insert(Plain, 8, idempotency_key="once")
        assert isinstance(again, Duplicate)
        assert again.id == ref.id
        found = await client.get(ref)
        assert found is not None
        stripped: Any = (found.status, found.state, found.stored_result)
        assert stripped == ("done", {}, None)
        assert found.collected_at is not None
        with pytest.raises(InstanceCollectedError, match="is done, but its result has been removed"):
            _ = found.result
    before = await db.fetchrow("select xmin, * from gen_durable.gen_durable")
    assert await sweep(database) == 0
    assert await db.fetchrow("select xmin, * from gen_durable.gen_durable") == before


@pytest.mark.clause("GC-4")
async def test_stripped_row_needs_a_new_state_to_retry(db: Any, client: Any) -> None:
    id = await put(
        db, "failed", unique_key="u", unique_scope=EVERY, collected_at="=now()", state="{}", fsm="Plain"
    )
    assert await client.retry(id) == NotRetried(id, Status.FAILED)
    assert await client.retry(id, state=5) == Retried(id)
    row = await db.fetchrow("select status::text, state, collected_at from gen_durable.gen_durable")
    assert tuple(row) == ("runnable", "5", None)


PARENTS: dict[str, dict[str, Any]] = {
    "waits for the others": {"status": "awaiting_children", "step_seq": 3, "children_pending": 1},
    "is about to look": {"status": "runnable", "step_seq": 3},
    "looks": {"status": "executing", "step_seq": 3},
    "was cancelled, and may be retried": {"status": "cancelled", "step_seq": 3},
    "stopped, and may be retried": {"status": "failed", "step_seq": 4},
    "was poison, and may be retried": {"status": "failed", "step_seq": 3, "crash_count": 20},
    "is deleted, and may be restored": {"status": "cancelled", "step_seq": 3, "deleted_at": "=now()"},
}
PAST: dict[str, dict[str, Any]] = {
    "is done": {"status": "done", "step_seq": 4},
    "has gone on": {"status": "awaiting_signal", "step_seq": 4},
    "has spawned others": {"status": "awaiting_children", "step_seq": 5, "spawn_round": 5},
    "failed later": {"status": "failed", "step_seq": 5},
}


@pytest.mark.clause("GC-5")
@pytest.mark.parametrize("parent", PARENTS.values(), ids=PARENTS)
async def test_child_stays_while_its_parent_may_read_it(
    db: Any, database: Database, parent: dict[str, Any]
) -> None:
    above = await put(db, **{"spawn_round": 3, **parent})
    child = await put(db, "done", days=30, parent_id=above, parent_round=3)
    older = await put(db, "done", days=30, parent_id=above, parent_round=1)
    assert await sweep(database) == 1
    assert await ids(db) == [above, child]
    assert older not in await ids(db)


@pytest.mark.clause("GC-5")
@pytest.mark.parametrize("parent", PAST.values(), ids=PAST)
async def test_child_is_collected_after_the_join(db: Any, database: Database, parent: dict[str, Any]) -> None:
    above = await put(db, **{"spawn_round": 3, **parent})
    await put(db, "done", days=30, parent_id=above, parent_round=3)
    assert await sweep(database) == 1
    assert await ids(db) == [above]


@pytest.mark.clause("GC-5")
async def test_child_without_parent_is_collected(db: Any, database: Database) -> None:
    await put(db, "done", days=2, parent_id=99, parent_round=1)
    assert await sweep(database) == 1


@pytest.mark.clause("GC-6")
async def test_sweep_passes_rows_that_must_stay(db: Any, database: Database) -> None:
    """Three pages of children that their parent needs, followed by rows that can go."""
    parent = await put(db, "awaiting_children", step_seq=3, spawn_round=3, children_pending=1)
    await db.execute(
        "insert into gen_durable.gen_durable (fsm, step, status, finished_at, parent_id, parent_round)"
        " select 'A', 's', 'done', now() - interval '1 year', $1, 3 from generate_series(1, 1500)",
        parent,
    )
    await db.execute(
        "insert into gen_durable.gen_durable (fsm, step, status, finished_at)"
        " select 'A', 's', 'done', now() - interval '2 days' from generate_series(1, 700)"
    )
    assert await sweep(database) == 700
    assert len(await ids(db)) == 1501


@pytest.mark.clause("GC-6")
async def test_locked_row_is_left_for_the_next_sweep(db: Any, database: Database) -> None:
    held = await put(db, "done", days=2)
    await put(db, "done", days=2)
    async with db.transaction():
        await db.execute("select from gen_durable.gen_durable where id = $1 for key share", held)
        assert await sweep(database) == 1
    assert await ids(db) == [held]
    assert await sweep(database) == 1


@pytest.mark.clause("GC-7")
async def test_retention_of_execution_records(db: Any, database: Database) -> None:
    id = await put(db)
    await db.execute(
        "insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step,"
        " finished_at) select $1, n, n, 0, case n when 2 then 'COMMITTED' when 3 then 'ABORTED' else 'DONE' end,"
        " 'next', 's', now() - (9 - n) * interval '1 day' from generate_series(1, 8) n",
        id,
    )
    await sweep(database)
    rows = await db.fetch("select step_seq from gen_durable.executions order by step_seq")
    # 1 is eight days old; 2 too, but it is not finished; 3 is six days old.
    assert [row["step_seq"] for row in rows] == [2, 3, 4, 5, 6, 7, 8]
    await sweep(database, Settings.load(retention_executions=timedelta(days=3)))
    rows = await db.fetch("select step_seq from gen_durable.executions order by step_seq")
    assert [row["step_seq"] for row in rows] == [2, 7, 8]


@pytest.mark.clause("GC-7")
async def test_walk_covers_the_whole_table(
    db: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "_BLOCKS", 4)
    await db.execute(
        "insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step,"
        " finished_at) select 1, n, n, 0, 'DONE', 'next', 's', now() - interval '8 days' from generate_series(1, 2000) n"
    )
    block, steps = await database.run(collect.walk_executions(7 * DAY, 0)), 1
    while block:
        block, steps = await database.run(collect.walk_executions(7 * DAY, block)), steps + 1
    assert steps > 3
    assert await count(db, "executions") == 0


@pytest.mark.clause("GC-8")
async def test_orphaned_signals_are_removed(db: Any, database: Database) -> None:
    ended, live = await put(db, "done"), await put(db, "awaiting_signal")
    await db.execute(
        "insert into gen_durable.signals (target_id, name) values ($1, 'a'), ($2, 'b'), (9999, 'c')",
        ended,
        live,
    )
    await sweep(database)
    assert await db.fetchval("select array_agg(target_id) from gen_durable.signals") == [live]


@pytest.mark.clause("GC-10")
async def test_retention_of_published_events(db: Any, database: Database) -> None:
    for published, dead in (("8 days", None), ("6 days", None), (None, "30 days")):
        await db.execute(
            "insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data, created_at,"
            " published_at, dead_at) values (1, 1, 1, 's', 't', 'u', '{}', now() - interval '1 year',"
            " now() - $1::text::interval, now() - $2::text::interval)",
            published,
            dead,
        )
    await db.execute(
        "insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data, published_at)"
        " select 1, 1, 1, 's', 't', 'u', '{}', now() - interval '9 days' from generate_series(1, 600)"
    )
    await sweep(database)
    assert await count(db, "outbox") == 2


@pytest.mark.clause("GC-13")
async def test_retention_of_received_messages(db: Any, database: Database) -> None:
    await db.execute(
        "insert into gen_durable.received_messages (message_id, correlation_key, signal, received_at)"
        " values ('old', 'k', 's', now() - interval '8 days'), ('young', 'k', 's', now() - interval '6 days')"
    )
    await sweep(database)
    assert await db.fetchval("select array_agg(message_id) from gen_durable.received_messages") == ["young"]


@pytest.mark.clause("GC-12")
async def test_pending_events_expire(db: Any, database: Database, caplog: pytest.LogCaptureFixture) -> None:
    await db.execute("""
        insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data, created_at, next_at,
                                        lease_token, dead_at, attempts)
        select n, 1, 1, sink, 't', 'u', '{}', now() - age, now() + due, token, dead, n
          from (values (1, 'web', interval '31 days', interval '5 min', null, null),
                       (2, 'web', interval '31 days', interval '-1 min', 7, null),
                       (3, 'ops', interval '31 days', interval '-31 days', null, null),
                       (4, 'web', interval '29 days', interval '5 min', null, null),
                       (5, 'web', interval '31 days', interval '1 min', 7, null),
                       (6, 'web', interval '31 days', interval '1 min', null, now())) as event (n, sink, age, due, token, dead)
    """)
    events: list[OutboxExpired] = []
    telemetry = Telemetry()
    telemetry.subscribe(events.append, OutboxExpired)
    await Collector(database, SETTINGS, telemetry, DatabaseStatus()).tick()
    left = await db.fetchval("select array_agg(instance_id order by 1) from gen_durable.outbox")
    assert left == [4, 5, 6], "young, leased, dead"
    assert sorted(events, key=lambda each: each.sink) == [
        OutboxExpired(count=1, sink="ops"),
        OutboxExpired(count=2, sink="web"),
    ]
    assert "pending events removed: 2 for sink 'web', not accepted within 30d" in caplog.text


@pytest.mark.clause("GC-12", "EVT-10")
async def test_execution_of_an_expired_event_is_done(db: Any, durable_dsn: str) -> None:
    settings = msgspec.structs.replace(
        FAST, gc_interval=timedelta(milliseconds=100), retention_pending=timedelta(seconds=1)
    )
    async with Worker([Teller], dsn=durable_dsn, settings=settings) as worker:
        events = Events(worker)
        ref = await worker.insert(Teller, {}, step="last")
        await events.wait(OutboxExpired)
        assert await worker.events(ref) == []
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while (await worker.executions(ref))[0].status is not ExecutionStatus.DONE:
                await asyncio.sleep(0.05)


@pytest.mark.clause("GC-11")
async def test_only_full_buckets_are_collected(db: Any, database: Database) -> None:
    await db.execute(
        "insert into gen_durable.buckets (key, full_at) values ('r:1', '-infinity'), ('r:2', now() - interval '2 min'),"
        " ('r:3', now() - interval '1 s'), ('r:4', now() + interval '1 h'), ('r:5', now() - interval '1 day')"
    )
    events: list[GcSwept] = []
    telemetry = Telemetry()
    telemetry.subscribe(events.append, GcSwept)
    async with db.transaction():  # a pick has locked this bucket
        await db.execute("select from gen_durable.buckets where key = 'r:5' for no key update")
        await Collector(database, SETTINGS, telemetry, DatabaseStatus()).tick()
    assert events == [GcSwept(count=0, buckets=2)]
    left = await db.fetchval("select array_agg(key order by key) from gen_durable.buckets")
    assert left == ["r:3", "r:4", "r:5"]


@pytest.mark.clause("GC-9")
async def test_worker_runs_the_collector(db: Any, durable_dsn: str) -> None:
    await put(db, "done", days=2)
    settings = msgspec.structs.replace(CALM, gc_interval=timedelta(milliseconds=100))
    worker = Worker([Plain], dsn=durable_dsn, settings=settings)
    events = Events(worker)
    async with worker:
        assert await events.wait(GcSwept) == GcSwept(count=1)
    assert await ids(db) == []


async def test_sweep_of_many_pages_is_logged_once(
    db: Any, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gen_durable")
    await db.execute(
        "insert into gen_durable.gen_durable (fsm, step, status, finished_at)"
        " select 'plain', 'run', 'done', now() - interval '2 days' from generate_series(1, $1)",
        2 * collect.PAGE + 1,
    )
    assert await sweep(database) == 2 * collect.PAGE + 1
    assert caplog.messages == [
        f"instances collected: {2 * collect.PAGE + 1} deleted, 0 reduced to their keys"
    ]


class Kept(
    Machine[str, None],
    retention_done=timedelta(hours=2),
    retention_failed=timedelta(days=30),
    retention_cancelled=timedelta(hours=1),
):
    """Declares how long it is kept; ends as its state says."""

    @step
    async def run(self, ctx: Context[str]) -> Outcome[None]:
        match ctx.state:
            case "stop":
                return Stop("no")
            case "cancel":
                raise Cancel("no")
            case "wait":
                return Await("go", then=self.run)
        return Done()


HOURS_KEPT = {"done": 2, "stop": 720, "cancel": 1, "wait": 1, "crash": 720}


@pytest.mark.clause("GC-15")
@pytest.mark.parametrize("durable_settings", [Settings(crash_limit=1)])
@pytest.mark.parametrize("how", HOURS_KEPT)
async def test_machine_declares_how_long_its_instances_are_kept(
    async_durable: AsyncHarness, database: Database, db: Any, how: str
) -> None:
    hours = HOURS_KEPT[how]
    ref = await async_durable.insert(Kept, how)
    if how == "crash":
        with async_durable.crash_at(Kept.run), pytest.raises(Crash):
            await async_durable.drain()
    await async_durable.drain()
    if how == "wait":
        await async_durable.cancel(ref)
    other = await put(db, "done", days=0)
    async_durable.advance(hours=hours - 0.1)
    assert await sweep(database, Settings.load(retention_done=3650 * DAY)) == 0
    async_durable.advance(hours=0.2)
    assert await sweep(database, Settings.load(retention_done=3650 * DAY)) == 1
    assert await ids(db) == [other]


@pytest.mark.clause("GC-15")
async def test_declared_retention_wins_over_the_settings(
    durable_dsn: str, db: Any, database: Database
) -> None:
    settings = Settings.load(retention_done=timedelta(0), poll_interval=CALM.poll_interval)
    async with Worker([Kept, Plain], dsn=durable_dsn, settings=settings) as worker:
        refs = [await worker.insert(Kept, "done"), await worker.insert(Kept, "stop")]
        await worker.wait_all(refs, timeout=PATIENCE)
    assert await ids(db) == [ref.id for ref in refs]
    assert (
        await sweep(database, Settings.load(retention_failed=timedelta(0), retention_done=timedelta(0))) == 0
    )


@pytest.mark.clause("GC-15")
async def test_retried_instance_does_not_expire(
    async_durable: AsyncHarness, database: Database, db: Any
) -> None:
    ref = await async_durable.insert(Kept, "stop")
    await async_durable.drain()
    await async_durable.retry(ref, state="wait")
    await async_durable.drain()
    async_durable.advance(days=31)
    assert await sweep(database) == 0
    assert await db.fetchval("select expires_at from gen_durable.gen_durable where id = $1", ref.id) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retention_done": timedelta(0)}, "retention_done of job 'j' is 0s; it must be positive"),
        ({"retention_failed": 7}, "retention_failed of job 'j' is a number without a unit"),
        (
            {"retention_done": DAY, "keep": False},
            "job 'j' has keep=False and retention_done; remove one of them",
        ),
    ],
)
def test_invalid_retention_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        job("j", **options)


@pytest.mark.clause("GC-16")
async def test_batches_that_have_ended_are_removed(client: Any, database: Database, db: Any) -> None:
    open_batch = await client.start_batch("cancel")
    for age in ("89 days", "91 days"):
        ended = await client.stop_batch(await client.start_batch("cancel"))
        await db.execute(
            "update gen_durable.batches set finished_at = now() - $1::text::interval, created_at = now() - interval '1 y'"
            " where id = $2",
            age,
            ended.id,
        )
    await db.execute("update gen_durable.batches set created_at = now() - interval '1 y'")
    await sweep(database)
    assert [batch.id for batch in await client.batches()] == [2, open_batch.id]


@pytest.mark.clause("GC-17")
async def test_answers_of_old_requests_are_removed(database: Database, db: Any) -> None:
    for age in ("23 hours", "25 hours"):
        await db.execute(
            "insert into gen_durable.answered_requests (actor, key, digest, answer, answered_at)"
            " values ('ada', $1::text, '', '{}', now() - $1::text::interval)",
            age,
        )
    await sweep(database)
    assert await db.fetchval("select array_agg(key) from gen_durable.answered_requests") == ["23 hours"]
