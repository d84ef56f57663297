"""`keep=False`: an instance is deleted when it is done; failed and cancelled ones stay."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Cancel,
    CloudEvent,
    Context,
    Discard,
    Done,
    Duplicate,
    Event,
    Machine,
    Next,
    NoTargetError,
    Outcome,
    ScheduleChildren,
    Settings,
    Spec,
    Sql,
    Status,
    Worker,
    job,
    step,
)
from gen_durable._db.collect import collect_done
from gen_durable._db.failures import StatementError
from gen_durable._db.runner import run_asyncpg
from gen_durable._db.sqlstates import DISK_FULL
from gen_durable.errors import OptionError
from gen_durable.telemetry import OutcomeStale, StepStop
from tests.support.settings import FAST
from tests.support.tcp_proxy import COMMIT, FLUSH, Match, Proxy, Verdict, saying
from tests.support.waiting import PATIENCE, Events, holds

LEFT = """select (select count(*) from gen_durable.gen_durable) + (select count(*) from gen_durable.signals)
               + (select count(*) from gen_durable.executions) + (select count(*) from gen_durable.audit_events)"""
NOTHING_IS_LEFT = f"{LEFT} = 0"
AUDITED = """select array_agg(distinct instance_id order by instance_id) from gen_durable.audit_events
              where instance_id is not null"""
SIGNAL = """select gen_durable.signal($1::bigint, 'go'), gen_durable.audit_reason($1, 'signalled', 'why', 'ann', null)"""
COUNT = "select count(*) from gen_durable.gen_durable"
runs: list[int] = []


@job("keep.add", keep=False)
async def add(number: int, ctx: Context[int]) -> int:
    if number < 0 and ctx.attempt == 0:
        raise ConnectionError("no answer")
    if number == 0:
        raise Discard("zero")
    if number == 1:
        raise Cancel("one")
    runs.append(number)
    return number + 1


@job("keep.book", keep=False)
async def book(number: int, ctx: Context[int]) -> Done[int]:
    return Done(
        number,
        effect=Sql("insert into ledger (job) values ($1)", ctx.idempotency_key) if number else None,
        emit=[] if number else [Event("booked", {"number": number})],
    )


class Steps(Machine[int, int], keep=False):
    @step
    async def first(self, ctx: Context[int]) -> Outcome[int]:
        return Next(self.last, ctx.state + 1)

    @step
    async def last(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


class Inherited(Steps):
    pass


class Family(Machine[None, list[int]]):
    @step
    async def spawn(self, ctx: Context[None]) -> Outcome[list[int]]:
        return ScheduleChildren([Spec(add, number) for number in (2, 3)], then=self.join)

    @step
    async def join(self, ctx: Context[None]) -> Outcome[list[int]]:
        return Done([child.result or 0 for child in ctx.children])


@pytest.fixture
async def ledger(db: Any) -> None:
    await db.execute("create table public.ledger (job text primary key)")


@pytest.mark.clause("GC-14")
async def test_nothing_is_left_of_a_done_instance(durable_dsn: str, db: Any) -> None:
    async with Worker([add, Steps], dsn=durable_dsn, settings=FAST) as worker:
        await worker.insert_all([Spec(add, number) for number in (2, 3, -1)])
        await worker.insert(Steps, 1)
        await holds(db, NOTHING_IS_LEFT)


@pytest.mark.clause("GC-14")
@pytest.mark.parametrize("level", ["failures", "all"])
async def test_audit_events_are_deleted_with_the_instance(durable_dsn: str, db: Any, level: str) -> None:
    """The execution is the first: the events are of the insert, an edit and signals."""
    await db.fetchval("select gen_durable.set_audit($1)", level)

    @job("keep.audited", keep=False)
    async def audited(number: int, ctx: Context[int]) -> None:
        # a connection of its own: the steps run concurrently, beside the queries of the test
        connection = await asyncpg.connect(durable_dsn)
        await connection.execute(SIGNAL, ctx.id)
        await connection.close()

    async with AsyncClient(durable_dsn) as client:
        inserted = await client.insert(audited, 1)
        # as `gen-durable insert` does
        await db.execute("select gen_durable.audit_reason($1, 'created', 'why', 'ann', null)", inserted.id)
        edited = await client.insert(audited, 2)
        await client.edit(edited, state=3, reason="why", actor="ann")
        signalled = await client.insert(audited, 4)
        await db.execute(SIGNAL, signalled.id)
    assert await db.fetchval(AUDITED) == [inserted.id, edited.id, signalled.id]
    async with Worker([audited], dsn=durable_dsn, settings=FAST):
        await holds(db, f"select ({AUDITED}) is null and not exists (select from gen_durable.gen_durable)")


async def test_failed_and_cancelled_instances_stay(durable_dsn: str, db: Any) -> None:
    async with Worker([add], dsn=durable_dsn, settings=FAST) as worker:
        failed, cancelled = await worker.insert(add, 0), await worker.insert(add, 1)
        assert (await worker.wait(failed)).status is Status.FAILED
        assert (await worker.wait(cancelled)).status is Status.CANCELLED
        late = await worker.insert(add, 5, schedule_in=timedelta(hours=1))
        await worker.cancel(late)
        assert (await worker.wait(late)).status is Status.CANCELLED
    assert await db.fetchval(COUNT) == 3


@pytest.mark.parametrize("number", [2, 3])
async def test_client_of_the_worker_gets_the_result(durable_dsn: str, db: Any, number: int) -> None:
    async with Worker([add], dsn=durable_dsn, settings=FAST) as worker:
        ref = await worker.insert(add, number, schedule_in=timedelta(seconds=0.2))
        instance = await worker.wait(ref)
        assert (instance.status, instance.result) == (Status.DONE, number + 1)
        await holds(db, NOTHING_IS_LEFT)
        assert await worker.get(ref) is None


async def test_client_of_another_process_learns_that_it_is_gone(durable_dsn: str) -> None:
    async with Worker([add], dsn=durable_dsn, settings=FAST), AsyncClient(durable_dsn) as other:
        ref = await other.insert(add, 2, schedule_in=timedelta(seconds=0.2))
        with pytest.raises(NoTargetError, match="keep=False may have removed it"):
            await other.wait(ref)


@pytest.mark.clause("GC-14")
async def test_zero_retention_deletes_like_keep_false(durable_dsn: str, db: Any) -> None:
    @job("keep.kept")
    async def kept() -> None:
        pass

    settings = msgspec.structs.replace(FAST, retention_done=timedelta(0), gc=False)
    async with Worker([kept], dsn=durable_dsn, settings=settings) as worker:
        await worker.insert(kept)
        await holds(db, NOTHING_IS_LEFT)


async def test_parent_reads_the_results_of_its_children(durable_dsn: str, db: Any) -> None:
    settings = msgspec.structs.replace(FAST, gc=False)
    async with Worker([add, Family], dsn=durable_dsn, settings=settings) as worker:
        assert (await worker.wait(await worker.insert(Family))).result == [3, 4]
    assert await db.fetchval(COUNT) == 3, "children are kept as long as retention_done"


async def test_effect_and_event_are_committed_with_the_end(durable_dsn: str, db: Any, ledger: None) -> None:
    received: list[CloudEvent] = []

    async def sink(event: CloudEvent) -> None:
        received.append(event)

    async with Worker([book], dsn=durable_dsn, settings=FAST, sinks={"default": sink}) as worker:
        ref = await worker.insert(book, 1)
        await worker.insert(book, 0)
        await holds(db, NOTHING_IS_LEFT)
        await holds(db, "select bool_and(published_at is not null) from gen_durable.outbox")
    assert [row["job"] for row in await db.fetch("select job from public.ledger")] == [f"{ref.id}:1"]
    assert [event.type for event in received] == ["booked"]


async def test_end_frees_the_concurrency_key(durable_dsn: str, db: Any) -> None:
    async with Worker([add], dsn=durable_dsn, settings=FAST) as worker:
        await worker.insert_all([Spec(add, number, concurrency_key="k") for number in range(2, 12)])
        await holds(db, NOTHING_IS_LEFT)


async def test_idempotency_key_outlives_the_result(durable_dsn: str, db: Any) -> None:
    async with Worker([add], dsn=durable_dsn, settings=FAST) as worker:
        ref = await worker.insert(add, 2, idempotency_key="once")
        await holds(db, "select collected_at is not null from gen_durable.gen_durable where id = $1", ref.id)
        assert isinstance(await worker.insert(add, 2, idempotency_key="once"), Duplicate)


@pytest.mark.parametrize("verdict", [Verdict.CUT, Verdict.LATE], ids=["answer lost", "request late"])
@pytest.mark.parametrize(
    ("match", "options"),
    [(saying("delete_done"), {}), (saying(COMMIT, after=FLUSH), {"concurrency_key": "k"})],
    ids=["one statement", "transaction"],
)
async def test_lost_reply_to_the_delete_is_not_a_lost_lease(
    durable_dsn: str, db: Any, match: Match, options: dict[str, Any], verdict: Verdict
) -> None:
    """The row is gone, by this commit: the step does not run again, and its outcome is not stale."""
    runs.clear()
    seen: list[Any] = []
    async with Proxy.open(durable_dsn) as proxy:
        proxy.on(match, "answered" if verdict is Verdict.CUT else "asked", lambda: verdict, times=1)
        async with Worker([add], dsn=proxy.dsn, settings=FAST) as worker:
            worker.telemetry.subscribe(seen.append)
            await worker.insert(add, 7, **options)
            await holds(db, NOTHING_IS_LEFT)
    assert proxy.cuts == 1
    assert runs == [7]
    assert [one.kind for one in seen if isinstance(one, StepStop)] == ["done"]
    assert not [one for one in seen if isinstance(one, OutcomeStale)]


DEADLOCK_ONCE = """
create sequence public.deletions;
create function public.deadlock_once() returns trigger language plpgsql as $$
begin
  if nextval('public.deletions') = 1 then
    raise exception 'deadlock' using errcode = '40P01';
  end if;
  return old;
end $$;
create trigger deadlock_once before delete on gen_durable.signals for each row execute function public.deadlock_once()"""


@pytest.mark.parametrize("problem", ["lock", "deadlock"])
@pytest.mark.parametrize("keep", [True, False])
async def test_inbox_that_is_not_deleted_does_not_make_the_end_stale(
    durable_dsn: str, db: Any, *, keep: bool, problem: str
) -> None:
    """The end is committed before its inbox is deleted."""
    locker = await asyncpg.connect(durable_dsn)
    if problem == "deadlock":
        await db.execute(DEADLOCK_ONCE)

    @job("keep.signalled", keep=keep)
    async def signalled(number: int, ctx: Context[int]) -> None:
        await db.execute("select gen_durable.signal($1::bigint, 'late')", ctx.id)
        if problem == "lock":
            await locker.execute("begin; select from gen_durable.signals for update")

    async with Worker([signalled], dsn=durable_dsn, settings=FAST) as worker:
        events = Events(worker)
        await worker.insert(signalled, 1)
        await events.wait(StepStop)
        await locker.close(timeout=5)
    assert not events.of(OutcomeStale)


async def test_delete_of_a_read_instance_skips_a_locked_row(durable_dsn: str, db: Any) -> None:
    """The poller of all waits runs it: it must not wait for the transaction of a caller."""
    locker = await asyncpg.connect(durable_dsn)
    await db.execute(
        """insert into gen_durable.gen_durable (id, fsm, step, rest_step, status, finished_at) overriding system value
           select n, 'M', 's', 's', 'done', now() from generate_series(1, 2) as n"""
    )
    await locker.execute("begin; select from gen_durable.gen_durable where id = 1 for no key update")
    await db.execute("set lock_timeout = '100ms'")
    await run_asyncpg(db, collect_done([1, 2]), "gen_durable")
    await locker.close(timeout=5)
    assert await db.fetch("select id from gen_durable.gen_durable") == [(1,)]


async def test_worker_is_ready_again_after_a_delete(durable_dsn: str) -> None:
    """The commits of a worker that runs nothing else are deletes: they show that the database accepts commits."""
    async with Worker([add], dsn=durable_dsn, settings=FAST) as worker:
        engine = worker._engine
        assert engine is not None
        engine._flusher._batch_retry.pause(StatementError(DISK_FULL, "could not extend file"))
        assert engine.unready() is not None
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while engine.unready() is not None:
                await worker.insert(add, 7)
                await asyncio.sleep(0.1)


async def test_instance_that_is_awaited_no_more_is_forgotten(
    durable_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client stops waiting between the decision to keep the instance for it and the commit."""
    async with Worker([add], dsn=durable_dsn, settings=FAST) as worker:
        engine = worker._engine
        assert engine is not None
        send = engine._flusher._send

        async def send_late(entries: Any) -> Any:
            waiting.cancel()
            await asyncio.wait([waiting])
            return await send(entries)

        monkeypatch.setattr(engine._flusher, "_send", send_late)
        ref = await worker.insert(add, 7, schedule_in=timedelta(seconds=0.2))
        waiting = asyncio.ensure_future(worker.wait(ref))
        await holds(db, NOTHING_IS_LEFT)
        assert worker._waiting is not None
        assert not worker._waiting._kept


def test_subclasses_inherit_the_option() -> None:
    assert Inherited.__definition__.keep is False
    assert Family.__definition__.keep is True


@pytest.mark.parametrize("keep", ["no", 0])
def test_other_values_are_refused(keep: Any) -> None:
    with pytest.raises(OptionError, match="give True or False"):

        @job("keep.wrong", keep=keep)
        async def wrong() -> None:
            pass


def test_zero_retention_needs_no_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_RETENTION_DONE", "0")
    assert Settings.load().retention_done == timedelta(0)
