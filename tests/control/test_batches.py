"""Batches: selection, pages, stop, takeover, and instances that cannot be changed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from gen_durable import (
    AsyncClient,
    Batch,
    BatchCountError,
    Context,
    Done,
    Machine,
    NoBatchError,
    Outcome,
    ScheduleChildren,
    Spec,
    Status,
    UsageError,
    step,
)
from gen_durable import _verbs as verbs
from gen_durable._db import batches as stored
from gen_durable._db import search
from gen_durable._db.pool import Database
from gen_durable.testing import AsyncHarness
from tests.support.machines import Order, Plain

_MANY = 1_200


async def steps(database: Database, run: verbs.BatchRun, most: int = 1000) -> Batch:
    """Run pages of a batch without pauses."""
    (batch, pause), _ = await database.run(run.plan())
    while pause is not None and (most := most - 1):
        (batch, pause), _ = await database.run(run.plan())
    return batch


async def batch_events(db: Any, batch: Batch) -> list[tuple[Any, ...]]:
    rows = await db.fetch(
        "select event, actor, reason from gen_durable.audit_events where subject = $1 order by id",
        f"batch:{batch.id}",
    )
    return [tuple(row) for row in rows]


@pytest.mark.clause("BAT-1", "BAT-5")
async def test_batch_cancels_page_by_page_with_audit(client: Any, db: Any) -> None:
    refs = await client.insert_all([Spec(Plain, n, queue="a" if n % 4 else "b") for n in range(_MANY)])
    shown = await client.preview_batch("cancel", Plain, queue="a")
    assert (shown.count, shown.total, dict(shown.skipped)) == (900, 900, {})
    batch = await client.start_batch(
        "cancel", Plain, queue="a", expected=shown.count, reason="the sale is over", actor="ann"
    )
    assert (batch.status, batch.total, batch.done, batch.started_at) == ("pending", 900, 0, None)
    assert batch.filter == {
        "fsms": ["Plain"],
        "queues": ["a"],
        "statuses": ["runnable", "executing", "awaiting_signal", "awaiting_children"],
    }
    late = await client.insert(Plain, 1, queue="a")
    seen: list[int] = []
    batch = await client.run_batch(batch, on_page=lambda now: seen.append(now.visited))
    assert (batch.status, batch.done, dict(batch.outcomes)) == ("finished", 900, {"cancelled": 900})
    assert seen == [500, 900]
    assert await client.count(status=Status.CANCELLED) == 900
    assert (await client.get(late)).status is Status.RUNNABLE, "inserted after the start"
    (event,) = await client.audit(refs[1])
    assert (event.event, event.actor, event.reason) == ("cancelled", "ann", "the sale is over")
    assert event.data["batch"] == batch.id
    assert await batch_events(db, batch) == [
        ("started", "ann", "the sale is over"),
        ("finished", "ann", "the sale is over"),
    ]
    assert await client.batches() == [batch]
    assert await client.run_batch(batch.id) == batch, "it is over"


@pytest.mark.clause("BAT-1")
async def test_all_verbs_run_as_batches(client: Any) -> None:
    await client.insert_all([Spec(Plain, n) for n in range(30)])
    for verb, outcome in (("cancel", "cancelled"), ("retry", "retried"), ("delete", "deleted")):
        batch = await client.run_batch(await client.start_batch(verb))
        assert dict(batch.outcomes) == {outcome: 30}, verb
    assert await client.count() == 0
    batch = await client.run_batch(await client.start_batch("restore"))
    assert dict(batch.outcomes) == {"restored": 30}
    assert await client.count(status=Status.CANCELLED) == 30


@pytest.mark.clause("BAT-1")
async def test_batch_of_ids_counts_what_it_cannot_change(client: Any) -> None:
    refs = await client.insert_all([Spec(Plain, n) for n in range(3)])
    await client.cancel(refs[0])
    batch = await client.start_batch("cancel", ids=[*(ref.id for ref in refs), 99, 99])
    assert (batch.total, batch.filter) == (4, None)
    batch = await client.run_batch(batch)
    assert dict(batch.outcomes) == {"cancelled": 2, "finished": 1, "missing": 1}
    assert (batch.done, dict(batch.skipped)) == (2, {"finished": 1, "missing": 1})


async def test_batch_that_selects_nothing_finishes(client: Any) -> None:
    batch = await client.run_batch(await client.start_batch("delete", "Plain"))
    assert (batch.status, batch.total, dict(batch.outcomes)) == ("finished", 0, {})


@pytest.mark.clause("BAT-6")
async def test_moved_count_is_refused(client: Any) -> None:
    await client.insert_all([Spec(Plain, n) for n in range(110)])
    batch = await client.start_batch("cancel", expected=100)
    assert (batch.expected, batch.total) == (100, 110)
    with pytest.raises(BatchCountError, match="cancel would change 110 instances now, and 98 at the preview"):
        await client.start_batch("cancel", expected=98)
    assert len(await client.batches()) == 1
    assert (await client.start_batch("cancel", queue="none", expected=10)).total == 0, "a few rows may move"


async def test_arguments_of_batches_are_checked(client: Any) -> None:
    with pytest.raises(UsageError, match="there is no batch verb 'kill'"):
        await client.start_batch("kill")
    with pytest.raises(UsageError, match="do not apply to retry"):
        await client.start_batch("retry", force=True)
    with pytest.raises(UsageError, match="both ids= and filters"):
        await client.start_batch("cancel", "Plain", ids=[1])
    with pytest.raises(UsageError, match="there is no filter 'sttus'"):
        await client.preview_batch("cancel", sttus="done")
    for call in (client.get_batch, client.run_batch, client.stop_batch):
        with pytest.raises(NoBatchError, match="there is no batch 7"):
            await call(7)


@pytest.mark.clause("BAT-3", "BAT-5")
async def test_stop_takes_effect_before_the_next_page(client: Any, database: Database, db: Any) -> None:
    await client.insert_all([Spec(Plain, n) for n in range(_MANY)])
    batch = await client.start_batch("cancel", actor="ann")
    run = verbs.BatchRun(batch.id)
    assert (await steps(database, run, 1)).visited == 500
    stopped = await client.stop_batch(batch, actor="ben", reason="wrong filter")
    assert (stopped.status, stopped.stopped_by, stopped.is_over) == ("stopped", "ben", True)
    after = await steps(database, run)
    assert (after.status, after.visited) == ("stopped", 500)
    assert await client.count(status=Status.CANCELLED) == 500
    assert await client.stop_batch(batch, actor="eve") == after, "stopped once"
    assert await batch_events(db, batch) == [
        ("started", "ann", None),
        ("stopped", "ben", "wrong filter"),
    ]


@pytest.mark.clause("BAT-2")
async def test_another_process_continues_after_the_lease(database: Database, db: Any, client: Any) -> None:
    await client.insert_all([Spec(Plain, n) for n in range(_MANY)])
    batch = await client.start_batch("cancel")
    first, second = verbs.BatchRun(batch.id), verbs.BatchRun(batch.id)
    assert (await steps(database, first, 1)).status == "running"
    assert (await steps(database, second, 2)).visited == 500, "the first one has the lease"
    await db.execute("update gen_durable.batches set lease_expires_at = now() - interval '1 s'")
    assert (await client.get_batch(batch.id)).status == "pending"
    assert (await steps(database, second, 1)).visited == 1000
    assert (await steps(database, first, 2)).visited == 1000, "it has lost the lease"
    ended = await steps(database, second)
    assert (ended.status, dict(ended.outcomes)) == ("finished", {"cancelled": _MANY})
    assert (
        await db.fetchval("select count(*) from gen_durable.audit_events where event = 'cancelled'") == _MANY
    )


@pytest.mark.clause("BAT-4")
async def test_locked_rows_are_skipped_and_changed_later(
    durable_dsn: str, database: Database, db: Any
) -> None:
    async with AsyncClient(durable_dsn) as client:
        refs = await client.insert_all([Spec(Plain, n) for n in range(40)])
        batch = await client.start_batch("cancel")
        transaction = db.transaction()
        await transaction.start()
        await db.execute("select from gen_durable.gen_durable where id = $1 for no key update", refs[20].id)
        run = verbs.BatchRun(batch.id)
        (now, pause), _ = await database.run(run.plan())
        assert (now.visited, now.status, pause is None) == (39, "running", False)
        assert await database.run(stored.position(batch.id)) == stored.Position(
            lease_token=1,
            pages=1,
            newest=refs[-1].id,
            after_id=refs[-1].id,
            pending=[refs[20].id],
            levels=[],
            is_over=False,
        )
        await transaction.rollback()
        now = await steps(database, run)
        assert (now.status, dict(now.outcomes)) == ("finished", {"cancelled": 40})


@pytest.mark.clause("BAT-4")
async def test_row_that_stays_locked_is_left_out(
    client: Any, database: Database, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen_durable._verbs.batches._PATIENCE", 0.2)
    refs = await client.insert_all([Spec(Plain, n) for n in range(3)])
    batch = await client.start_batch("delete")
    async with db.transaction():
        await db.execute("select from gen_durable.gen_durable where id = $1 for no key update", refs[1].id)
        batch = await client.run_batch(batch)
    assert (batch.status, dict(batch.outcomes)) == ("finished", {"deleted": 2, "locked": 1})
    assert [one.id for one in await client.list()] == [refs[1].id]


async def test_locked_parent_delays_its_child_only(
    async_durable: AsyncHarness, database: Database, db: Any, durable_dsn: str
) -> None:
    """A cancel of a child locks its parent; the page is halved until only the child waits."""

    class Parent(Machine[int, int]):
        @step
        async def start(self, ctx: Context[int]) -> Outcome[int]:
            return ScheduleChildren([Spec(Order, n) for n in range(ctx.state)], then=self.join)

        @step
        async def join(self, ctx: Context[int]) -> Outcome[int]:
            return Done(len(ctx.children))

    parent = await async_durable.insert(Parent, 2)
    await async_durable.drain()
    others = await async_durable.insert_all([Spec(Plain, n) for n in range(6)])
    children = [child.id for child in await async_durable.children(parent)]
    async with AsyncClient(durable_dsn) as client:
        batch = await client.start_batch("cancel", ids=[children[0], *(ref.id for ref in others)])
        async with db.transaction():
            await db.execute("select from gen_durable.gen_durable where id = $1 for no key update", parent.id)
            run = verbs.BatchRun(batch.id)
            await steps(database, run, 3)
        batch = await steps(database, run)
    assert dict(batch.outcomes) == {"cancelled": 7}


@pytest.mark.clause("BAT-4")
async def test_taken_key_leaves_out_only_its_instance(client: Any) -> None:
    refs = await client.insert_all([Spec(Plain, n, correlation_key=f"order:{n}") for n in range(20)])
    await client.cancel_all()
    for n in (0, 7, 19):
        await client.insert(Plain, 0, correlation_key=f"order:{n}")
    batch = await client.run_batch(await client.start_batch("retry"))
    assert dict(batch.outcomes) == {"retried": 17, "refused": 3}
    assert batch.last_error is not None
    assert "its correlation_key belongs to Plain" in batch.last_error
    taken = {refs[n].id for n in (0, 7, 19)}
    assert {one.id for one in await client.list(status=Status.CANCELLED)} == taken


@pytest.mark.clause("BAT-1")
async def test_cascade_cancels_descendants_once(
    async_durable: AsyncHarness, durable_dsn: str, db: Any
) -> None:
    class Leafed(Machine[int, int]):
        @step
        async def start(self, ctx: Context[int]) -> Outcome[int]:
            if not ctx.state:
                return ScheduleChildren([Spec(Order, n) for n in range(3)], then=self.join)
            return ScheduleChildren([Spec(Leafed, ctx.state - 1) for _ in range(2)], then=self.join)

        @step
        async def join(self, ctx: Context[int]) -> Outcome[int]:
            return Done(len(ctx.children))

    root = await async_durable.insert(Leafed, 2)
    other = await async_durable.insert(Order, 1)
    await async_durable.drain()
    async with AsyncClient(durable_dsn) as client:
        batch = await client.start_batch("cancel", ids=[root.id], cascade=True)
        assert batch.options == {"force": False, "undo": True, "cascade": True}
        batch = await client.run_batch(batch)
        # 1 + 2 + 4 + 12.
        assert (batch.total, dict(batch.outcomes)) == (1, {"cancelled": 19})
        found = await client.get(other)
        assert found is not None
        assert not found.is_finished
    rows = await db.fetch(
        "select instance_id, count(*) from gen_durable.audit_events where event = 'cancelled' group by 1"
    )
    assert {row["count"] for row in rows} == {1}


async def test_parents_are_cancelled_before_their_children(
    async_durable: AsyncHarness, durable_dsn: str
) -> None:
    """Otherwise cancelled children would release a parent, and it would run before it is cancelled."""

    class Parent(Machine[int, int]):
        @step
        async def start(self, ctx: Context[int]) -> Outcome[int]:
            return ScheduleChildren([Spec(Plain, n) for n in range(ctx.state)], then=self.join)

        @step
        async def join(self, ctx: Context[int]) -> Outcome[int]:
            return Done(len(ctx.children))

    parent = await async_durable.insert(Parent, 600)
    with pytest.raises(AssertionError, match="still runs"):
        await async_durable.drain(max_steps=1)
    async with AsyncClient(durable_dsn) as client:
        batch = await client.start_batch("cancel")
        seen: list[Status] = []

        async def look() -> None:
            found = await client.get(parent)
            assert found is not None
            seen.append(found.status)

        await client.run_batch(batch)
        await look()
        assert seen == [Status.CANCELLED]
        retried = await client.run_batch(await client.start_batch("retry"))
        assert dict(retried.outcomes) == {"retried": 601}
        await look()
    assert seen[-1] is Status.AWAITING_CHILDREN, "children were retried first"


async def test_failed_run_releases_the_lease_and_tells_why(client: Any, database: Database, db: Any) -> None:
    await client.insert(Plain, 1)
    batch = await client.start_batch("cancel")
    await db.execute("alter function gen_durable.cancel_rows rename to cancel_rows_gone")
    with pytest.raises(Exception, match="cancel_rows"):
        await client.run_batch(batch)
    now = await client.get_batch(batch.id)
    assert (now.status, now.runner) == ("pending", None)
    assert "cancel_rows" in now.last_error
    await db.execute("alter function gen_durable.cancel_rows_gone rename to cancel_rows")
    assert dict((await client.run_batch(batch)).outcomes) == {"cancelled": 1}


@pytest.mark.clause("BAT-7")
async def test_batch_of_a_newer_version_is_not_run(client: Any, db: Any) -> None:
    await client.insert(Plain, 1)
    for change in ('{"version": 2}', '{"filter": {"planet": "mars"}}', '{"text": "x"}'):
        batch = await client.start_batch("cancel")
        await db.execute(
            "update gen_durable.batches set selection = selection || $1::jsonb where id = $2",
            change,
            batch.id,
        )
        with pytest.raises(UsageError, match=f"batch {batch.id} was started by a newer gen_durable"):
            await client.run_batch(batch)
        assert (await client.stop_batch(batch)).status == "stopped"
    assert await client.count(status=Status.RUNNABLE) == 1


async def test_filters_survive_storage(client: Any) -> None:
    now = (await client.get(await client.insert(Plain, 1, unique_key=b"\xff\x00", queue="q"))).inserted_at
    batch = await client.start_batch(
        "cancel",
        unique_key=b"\xff\x00",
        inserted_after=now - timedelta(hours=1),
        inserted_before=now + timedelta(hours=1),
        queue="q",
    )
    assert (await client.run_batch(batch)).done == 1


@pytest.mark.clause("BAT-2")
async def test_two_runners_share_no_page(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as one, AsyncClient(durable_dsn) as two:
        await one.insert_all([Spec(Plain, n) for n in range(_MANY)])
        batch = await one.start_batch("delete")
        ended = await asyncio.gather(one.run_batch(batch), two.run_batch(batch))
        assert [dict(each.outcomes) for each in ended] == [{"deleted": _MANY}] * 2
    assert await db.fetchval("select count(*) from gen_durable.audit_events where event = 'deleted'") == _MANY


async def test_batch_of_a_search_checks_every_page_of_rows(
    client: Any, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "BOUND", 100)
    refs = await client.insert_all([Spec(Plain, n) for n in range(_MANY)])
    await db.execute('update gen_durable.gen_durable set state = \'{"a": "x y"}\' where id % 300 = 1')
    await db.execute(
        "update gen_durable.gen_durable set updated_at = now() - interval '1 h' where id % 2 = 1"
    )
    where = 'machine:Plain state.a:"x y" stuck:>10m -priority:>5'
    shown = await client.preview_batch("cancel", where=where)
    assert shown.count == _MANY // 300
    batch = await client.start_batch("cancel", where=where, expected=shown.count)
    assert {one["part"] for one in batch.filter["conditions"]} == {"if_state", "if_stuck", "if_priority"}
    batch = await client.run_batch(batch)
    assert (batch.status, batch.outcomes) == ("finished", {"cancelled": shown.count})
    assert await client.count(where="cancelled") == shown.count
    retried = await client.run_batch(await client.start_batch("retry", where='state.a:"x y"'))
    assert retried.outcomes == {"retried": shown.count}
    assert refs


async def test_batch_of_an_unknown_condition_is_refused(client: Any, db: Any) -> None:
    await client.insert(Plain, 1)
    batch = await client.start_batch("cancel", where="priority:<5")
    await db.execute(
        "update gen_durable.batches set selection = replace(selection::text, 'if_priority', 'if_newer')::jsonb"
    )
    with pytest.raises(UsageError, match="knows filters that this one does not"):
        await client.run_batch(batch)
    with pytest.raises(UsageError, match="the search is empty"):
        await client.start_batch("cancel", where=" ")


DEAD = """
insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data, attempts, last_error, published_at, dead_at)
select n, 1, 1, case when n % 2 = 0 then 'crm' else 'mail' end, 'paid', 'order', '{}', 2, 'no',
       case when n % 10 = 1 then now() end, case when n % 10 > 1 then now() end
  from generate_series(1, $1::int) n"""


@pytest.mark.clause("BAT-1", "BAT-5")
async def test_replay_publishes_the_dead_letters_of_a_sink_again(client: Any, db: Any) -> None:
    await db.execute(DEAD, 2000)
    batch = await client.start_replay(sink="crm", reason="crm is back", actor="ann")
    assert (batch.verb, batch.total, batch.filter, batch.options) == ("replay", 800, None, {"sink": "crm"})
    # One is replayed by another caller, and one dies later.
    await client.replay([2])
    await db.execute("update gen_durable.outbox set dead_at = now() where id = 10")
    await db.execute(DEAD, 10)
    seen: list[int] = []
    batch = await client.run_batch(batch, on_page=lambda now: seen.append(now.visited))
    assert (batch.status, dict(batch.outcomes)) == ("finished", {"replayed": 800})
    assert seen == [500, 800]
    dead = await db.fetch(
        "select sink, count(*) from gen_durable.outbox where dead_at is not null group by 1 order by 1"
    )
    assert [tuple(row) for row in dead] == [("crm", 4), ("mail", 804)]
    (event,) = await client.audit(998)
    assert (event.event, event.actor, event.reason) == ("replayed", "ann", "crm is back")
    assert event.data == {"number": 998, "sink": "crm", "batch": batch.id}
    assert await batch_events(db, batch) == [
        ("started", "ann", "crm is back"),
        ("finished", "ann", "crm is back"),
    ]


async def test_replay_of_all_sinks_waits_for_locked_events(
    database: Database, db: Any, durable_dsn: str
) -> None:
    await db.execute(DEAD, 10)
    batch = await database.run(verbs.start_replay(None, None, None))
    run = verbs.BatchRun(batch.id)
    async with AsyncClient(durable_dsn) as client:
        async with db.transaction():
            await db.execute("select from gen_durable.outbox where id = 3 for update")
            batch = await steps(database, run, 3)
            assert (batch.visited, batch.status) == (7, "running")
        await client.replay([])
        batch = await steps(database, run)
    assert (batch.status, batch.total, dict(batch.outcomes)) == ("finished", 8, {"replayed": 8})


async def test_event_that_is_not_dead_any_more_is_left(database: Database, client: Any, db: Any) -> None:
    await db.execute(DEAD, 10)
    batch = await database.run(verbs.start_replay(None, None, None))
    run = verbs.BatchRun(batch.id)
    # The ids are read ahead.
    at = await database.run(stored.position(batch.id))
    token = await database.run(stored.lease(batch.id, "other", timedelta(seconds=15)))
    assert token is not None
    await client.replay([2])
    at = await database.run(stored.position(batch.id))
    await database.run(
        stored.page(batch.id, at, [2, 3], visited=3, is_exhausted=False, alive_for=timedelta(0))
    )
    batch = await steps(database, run)
    assert dict(batch.outcomes) == {"replayed": 7, "left": 1}
