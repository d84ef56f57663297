"""Rate limits: tokens, counted from the database."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Await,
    Context,
    Done,
    LimitError,
    Machine,
    Next,
    Outcome,
    Queue,
    RateLimit,
    ScheduleChildren,
    Spec,
    Status,
    UsageError,
    Worker,
    step,
)
from gen_durable._db import admission, pick
from gen_durable._db.pool import Database
from gen_durable.limits import parse_limit
from gen_durable.reasons import UnknownLimit
from gen_durable.telemetry import Event, RateLimitThrottled, RateLimitUnknown
from gen_durable.testing import Harness
from tests.limits.conservation import check_tokens
from tests.limits.machines import Caller, Careless, Flaky, Job
from tests.limits.test_slots import finished, worker_process
from tests.support.settings import CALM
from tests.support.waiting import happens, holds

SECOND = timedelta(seconds=1)


@pytest.fixture
async def client(durable_dsn: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(durable_dsn) as opened:
        yield opened


@pytest.mark.clause("FLOW-6", "FLOW-12")
async def test_starts_keep_to_the_limit_of_each_bucket(durable_dsn: str, db: Any) -> None:
    events: list[Event] = []
    async with Worker([Job], dsn=durable_dsn, limits=[RateLimit("crm", 40, SECOND, burst=5)]) as worker:
        worker.telemetry.subscribe(events.append, RateLimitThrottled)
        for part in (1, 2):
            await worker.insert_all([Spec(Job, 0.0, rate_limit=("crm", part)) for _ in range(40)])
        await worker.insert_all([Spec(Job, 0.0) for _ in range(5)])
        await finished(worker, 85)
    for part in (1, 2):
        assert await check_tokens(db, f"crm:{part}", allowed=40, per=SECOND, burst=5) == 40
    throttled = [event for event in events if isinstance(event, RateLimitThrottled)]
    assert throttled
    assert {event.queue for event in throttled} == {"default"}
    assert all(event.granted < event.wanted for event in throttled)


class Held(Machine[str, None]):
    """Notes when it really begins, and the first of all stays until it may go."""

    def __init__(self) -> None:
        self.began: list[tuple[str, float]] = []
        self.is_there, self.may_go = asyncio.Event(), asyncio.Event()

    @step
    async def run(self, ctx: Context[str]) -> Outcome[None]:
        self.began.append((ctx.state, time.monotonic()))
        if ctx.state == "first":
            self.is_there.set()
            await self.may_go.wait()
        return Done()


@pytest.mark.clause("FLOW-17")
async def test_no_token_is_paid_ahead_of_a_slot(durable_dsn: str, db: Any) -> None:
    """Leased ahead, two would have paid, then an hour and two tokens later two more: four would begin at one moment."""
    held = Held()
    limit = RateLimit("crm", 2, timedelta(hours=1))
    queues = {"default": Queue(concurrency=1, prefetch=10)}
    async with Worker([held], dsn=durable_dsn, settings=CALM, limits=[limit], queues=queues) as worker:
        await worker.insert(Held, "first")
        await happens(held.is_there)
        states = ("plain", "limited", "limited", "behind")
        limited = Spec(Held, "limited", rate_limit="crm")
        specs = [limited if one == "limited" else Spec(Held, one) for one in states]
        await worker.insert_all(specs)
        await holds(db, "select count(*) = 2 from gen_durable.gen_durable where status = 'executing'")
        leased = await db.fetch("select state from gen_durable.gen_durable where status = 'executing'")
        assert [row["state"] for row in leased] == ['"first"', '"plain"']
        assert await db.fetchval("select count(*) from gen_durable.buckets") == 0
        await db.execute("update gen_durable.buckets set full_at = full_at - interval '1 h'")
        await worker.insert_all([limited, limited])
        held.may_go.set()
        await holds(db, "select count(*) = 2 from gen_durable.gen_durable where rate_turn_at is not null")
        await finished(worker, 5)
    began = [at for state, at in held.began if state == "limited"]
    assert len(began) <= limit.burst + limit.allowed * (began[-1] - began[0]) / 3600
    assert [state for state, _ in held.began] == ["first", *states]


@pytest.mark.clause("FLOW-7")
async def test_a_heavy_start_takes_as_many_tokens_as_it_weighs(durable_dsn: str, db: Any) -> None:
    async with Worker([Job], dsn=durable_dsn, limits=[RateLimit("crm", 60, SECOND, burst=6)]) as worker:
        await worker.insert_all(
            [Spec(Job, 0.0, rate_limit="crm", weight=1 + number % 6) for number in range(24)]
        )
        await finished(worker, 24)
    assert await check_tokens(db, "crm", allowed=60, per=SECOND, burst=6) == 24


@pytest.mark.clause("FLOW-8")
async def test_every_start_costs_also_one_that_is_tried_again(durable_dsn: str, db: Any) -> None:
    async with Worker([Flaky], dsn=durable_dsn, limits=[RateLimit("crm", 20, SECOND, burst=2)]) as worker:
        await worker.insert_all([Spec(Flaky, 3, rate_limit="crm") for _ in range(3)])
        await finished(worker, 3)
    assert await check_tokens(db, "crm", allowed=20, per=SECOND, burst=2) == 12


@pytest.mark.clause("FLOW-8", "FLOW-9")
async def test_a_limit_belongs_to_the_step_that_it_is_given_for(durable_dsn: str, db: Any) -> None:
    async with Worker([Caller], dsn=durable_dsn, limits=[RateLimit("crm", 25, SECOND, burst=1)]) as worker:
        caller = await worker.insert(Caller, 4)
        assert (await worker.wait(caller)).result == "all"
    calls = await db.fetch(
        "select leased_at from gen_durable.executions where step = 'call' order by leased_at"
    )
    gaps = [
        (late["leased_at"] - early["leased_at"]).total_seconds() for early, late in itertools.pairwise(calls)
    ]
    assert len(calls) == 4
    assert min(gaps) >= 0.04 - 1e-6
    assert await db.fetchrow("select rate_limit, weight from gen_durable.gen_durable") == (None, None)


@pytest.mark.clause("FLOW-6")
async def test_the_limit_holds_over_processes_that_are_killed_and_after_a_pause_of_all(
    direct_dsn: str, client: AsyncClient, db: Any
) -> None:
    await client.set_limit(RateLimit("crm", 50, SECOND, burst=4))
    await client.insert_all([Spec(Job, 0.0, rate_limit="crm") for _ in range(140)])
    async with worker_process(direct_dsn, 0.6) as first, worker_process(direct_dsn, 0.6) as second:
        while await client.count(status=Status.DONE) < 20:
            await asyncio.sleep(0.02)
        for process in (first, second):
            process.send(signal.SIGSTOP)
        await asyncio.sleep(0.8)  # forty starts are due when they wake
        for process in (first, second):
            process.send(signal.SIGCONT)
        while await client.count(status=Status.DONE) < 60:
            await asyncio.sleep(0.02)
        first.send(signal.SIGKILL)
        await first.ends()
        await finished(client, 140)
    assert await check_tokens(db, "crm", allowed=50, per=SECOND, burst=4) >= 140


@pytest.mark.clause("FLOW-6")
async def test_the_limit_holds_after_an_outage(durable_dsn: str, direct_dsn: str, db: Any) -> None:
    outage = """select pg_terminate_backend(pid) from pg_stat_activity
                 where datname = current_database() and application_name = 'gen_durable'"""
    done = "select count(*) >= $1 from gen_durable.gen_durable where status = 'done'"
    async with AsyncClient(durable_dsn) as client:
        await client.set_limit(RateLimit("crm", 50, SECOND, burst=4))
        await client.insert_all([Spec(Job, 0.0, rate_limit="crm") for _ in range(80)])
    async with worker_process(direct_dsn, 2):
        for count in (10, 30, 50):
            await holds(db, done, count)
            await db.execute(outage)
        await holds(db, done, 80)
    assert await check_tokens(db, "crm", allowed=50, per=SECOND, burst=4) >= 80


@pytest.mark.clause("FLOW-10")
async def test_what_could_never_start_is_refused(client: AsyncClient, db: Any) -> None:
    with pytest.raises(LimitError, match="there is no rate limit 'crm'"):
        await client.insert(Job, 0.0, rate_limit="crm")
    await client.set_limit(RateLimit("crm", 2, SECOND))
    with pytest.raises(LimitError, match="weight of 3 is more than the burst of rate limit 'crm', 2"):
        await client.insert(Job, 0.0, rate_limit=("crm", 7), weight=3)
    with pytest.raises(Exception, match="there is no rate limit 'nope'"):
        await db.execute("select gen_durable.insert('Job', '1', step => 'run', rate_limit => 'nope')")
    assert await client.count() == 0
    await db.execute("select gen_durable.insert('Job', '1', step => 'run', rate_limit => 'crm', weight => 2)")
    assert await client.count() == 1


@pytest.mark.clause("FLOW-10")
async def test_an_outcome_that_weighs_more_than_the_burst_fails(durable_dsn: str) -> None:
    async with Worker([Careless], dsn=durable_dsn, limits=[RateLimit("crm", 2)]) as worker:
        ended = await worker.wait(await worker.insert(Careless, "crm"))
    assert ended.status is Status.FAILED
    assert "weight of 3" in (ended.last_error or "")


class Early(Machine[str, str]):
    """Names the limit `late` in one of the outcomes that can."""

    @step
    async def first(self, ctx: Context[str]) -> Outcome[str]:
        match ctx.state:
            case "next":
                return Next(self.last, rate_limit=("late", 1), weight=3)
            case "await":
                return Await("go", then=self.last, timeout=timedelta(0), rate_limit=("late", 1))
            case "join":
                return ScheduleChildren([Spec(Job, 0.0)], then=self.last, rate_limit=("late", 1))
            case _:
                return ScheduleChildren([Spec(Job, 0.0, rate_limit=("late", 1))], then=self.last)

    @step
    async def last(self, ctx: Context[str]) -> Outcome[str]:
        return Done(ctx.state)


@pytest.mark.clause("FLOW-11")
@pytest.mark.parametrize("how", ["next", "await", "join", "child"])
async def test_a_step_that_names_a_limit_to_come_stalls_until_it_is_set(
    durable_dsn: str, client: AsyncClient, db: Any, how: str
) -> None:
    unknown: asyncio.Queue[RateLimitUnknown] = asyncio.Queue()
    worker = Worker([Early, Job], dsn=durable_dsn)
    worker.telemetry.subscribe(unknown.put_nowait, RateLimitUnknown)
    async with worker:
        ref = await worker.insert(Early, how)
        async with asyncio.timeout(20):
            event = await unknown.get()
        assert (event.key, event.limit, event.count) == ("late:1", "late", 1)
        await holds(db, "select exists (select from gen_durable.gen_durable where rate_turn_at is not null)")
        stalled = await db.fetchval("select id from gen_durable.gen_durable where rate_turn_at is not null")
        assert (await client.explain(stalled)).reasons == (UnknownLimit(key="late:1", limit="late"),)
        (finding,) = [each for each in await client.doctor() if each.code == "limit.missing"]
        assert (finding.facts["limit"], finding.facts["ids"]) == ("late", [stalled])
        # The weight was above this burst: it counts as a full bucket.
        await client.set_limit(RateLimit("late", 2))
        assert (await worker.wait(ref, timeout=timedelta(seconds=10))).result == how


@pytest.mark.clause("FLOW-11")
async def test_an_outcome_that_names_a_limit_to_come_does_not_hold_up_its_batch(durable_dsn: str) -> None:
    async with Worker([Early, Job], dsn=durable_dsn) as worker:
        await worker.insert_all([Spec(Early, "next") for _ in range(20)])
        refs = await worker.insert_all([Spec(Job, 0.0) for _ in range(20)])
        for ref in refs:
            assert (await worker.wait(ref, timeout=timedelta(seconds=10))).status is Status.DONE
        await worker.set_limit(RateLimit("late", 100))
        await finished(worker, 40)


@pytest.mark.clause("FLOW-11")
async def test_most_stalled_rows_are_not_looked_at_again(direct_dsn: str, db: Any) -> None:
    """One row of a chunk stays near, for telemetry. A limit that is set makes all of them due."""
    await db.execute(
        "insert into gen_durable.gen_durable (fsm, step, rate_limit, eligible_at)"
        " select 'Job', 'run', 'late', statement_timestamp() from generate_series(1, 2500)"
    )
    near = "select count(*) from gen_durable.gen_durable where eligible_at <= statement_timestamp() + $1"
    async with await Database.open(direct_dsn, "gen_durable") as database:
        stalled = [pick.Throttled("late", "default", 1, 0, "Job", "run", is_known=False)]
        for _ in range(3):
            await database.run_in_transaction(admission.defer_throttled(stalled, None))
    assert await db.fetchval(near, timedelta(0)) == 0
    assert await db.fetchval(near, timedelta(minutes=1)) == 3
    await db.execute("select gen_durable.set_rate_limit('late', 1, '1 s')")
    assert await db.fetchval(near, timedelta(0)) == 2500


@pytest.mark.clause("FLOW-14")
def test_a_drain_leaves_stalled_steps_until_their_limit_is_set(durable: Harness) -> None:
    durable.insert(Early, "next")
    assert durable.drain().next == 1
    assert durable.drain().done == 0
    durable.set_limit(RateLimit("late", 3))
    assert durable.drain().done == 1


@pytest.mark.clause("FLOW-11")
async def test_a_limit_that_goes_away_is_reported_and_its_return_helps(
    durable_dsn: str, client: AsyncClient
) -> None:
    await client.set_limit(RateLimit("crm", 1))
    waiting = await client.insert(Job, 0.0, rate_limit=("crm", 7))
    assert await client.remove_limit("crm")
    told: asyncio.Queue[RateLimitUnknown] = asyncio.Queue()
    worker = Worker([Job], dsn=durable_dsn)
    worker.telemetry.subscribe(told.put_nowait, RateLimitUnknown)
    async with worker:
        async with asyncio.timeout(20):
            event = await told.get()
        assert (event.key, event.limit, event.fsm, event.step, event.count) == (
            "crm:7",
            "crm",
            "Job",
            "run",
            1,
        )
        other = await worker.insert(Job, 0.0)  # it is not in anybody's way
        await worker.wait(other)
        await client.set_limit(RateLimit("crm", 1))
        await worker.wait(waiting, timeout=timedelta(seconds=20))


@pytest.mark.clause("FLOW-13")
async def test_another_rate_counts_at_once(durable_dsn: str, client: AsyncClient) -> None:
    await client.set_limit(RateLimit("crm", 1, timedelta(hours=1)))
    async with Worker([Job], dsn=durable_dsn):
        await client.insert_all([Spec(Job, 0.0, rate_limit="crm") for _ in range(10)])
        await finished(client, 1)
        await client.set_limit(RateLimit("crm", 1000, SECOND))
        await finished(client, 10)


@pytest.mark.clause("FLOW-14")
def test_a_drain_keeps_to_limits_and_time_that_passes_fills_buckets(durable: Harness) -> None:
    durable.set_limit(RateLimit("crm", 2, timedelta(hours=1)))
    for _ in range(5):
        durable.insert(Job, 0.0, rate_limit="crm")
    assert durable.drain(collapse=False).done == 2
    durable.advance(minutes=30)
    assert durable.drain(collapse=False).done == 1
    durable.advance(hours=1)
    assert durable.drain(collapse=False).done == 2


@pytest.mark.clause("FLOW-14")
def test_a_drain_skips_the_time_until_the_tokens_are_there(durable: Harness) -> None:
    durable.set_limit(RateLimit("crm", 1, timedelta(hours=1)))
    for _ in range(4):
        durable.insert(Job, 0.0, rate_limit="crm")
    assert durable.drain().done == 4


@pytest.mark.clause("FLOW-6")
async def test_a_bucket_does_not_stay_full_because_those_before_were_cancelled(
    durable_dsn: str, client: AsyncClient, db: Any
) -> None:
    await client.set_limit(RateLimit("crm", 1, timedelta(hours=1), burst=3))
    settings = msgspec.structs.replace(CALM, reap_interval=timedelta(milliseconds=100))
    async with Worker([Job], dsn=durable_dsn, settings=settings):
        refs = await client.insert_all([Spec(Job, 0.0, rate_limit="crm") for _ in range(30)])
        await finished(client, 3)
        await client.wait(await client.insert(Job, 0.0))  # taken when all others have their turns
        waiting = [found.id for found in await client.list(status=Status.RUNNABLE)]
        for id in waiting[:23]:
            await client.cancel(id)
        await db.execute("update gen_durable.buckets set full_at = now()")  # three hours later
        await finished(client, 7)
    assert len(refs) - 3 - 23 - 3 == await client.count(status=Status.RUNNABLE)


async def test_a_bucket_that_would_never_fill_is_refused(client: AsyncClient, db: Any) -> None:
    with pytest.raises(UsageError, match="more than a century"):
        RateLimit("huge", 1, timedelta(days=1), 2**31 - 1)
    with pytest.raises(asyncpg.CheckViolationError, match="fills_within_a_century"):
        await db.execute("select gen_durable.set_rate_limit('huge', 1, '10 years', 100000)")
    # The largest that there is; a weight that it has to wait for until long after leads nowhere, but in the calendar.
    await client.set_limit(RateLimit("vast", 1, timedelta(days=3650), 10))
    assert await db.fetchval("select now() + gen_durable.refill(1e9, 1, '3650 days')") is not None


@pytest.mark.parametrize("text", ["a=1/1m/0", "a=1_0", "a=\u0661", "a=0", "a=+1", "a=1/1m/1/1", "=1", "a"])
def test_what_is_written_oddly_is_no_limit(text: str) -> None:
    with pytest.raises(ValueError, match="is no limit"):
        parse_limit(text)


async def test_the_keys_of_a_limit_are_one_range_in_every_database(db: Any) -> None:
    """By bytes, whatever the collation of the database: between `tenant` and `tenant:1` there is no `TENANT:0`."""
    collation = await db.fetchval(
        """select c.collname from pg_attribute a join pg_collation c on c.oid = a.attcollation
            where a.attrelid = 'gen_durable.gen_durable'::regclass and a.attname = 'concurrency_key'"""
    )
    assert collation == "C"
