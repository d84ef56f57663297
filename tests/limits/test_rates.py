"""Rate limits: tokens, counted from the database."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
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
from tests.limits.workers import finished, worker_process
from tests.support.settings import CALM
from tests.support.waiting import happens, holds

SECOND = timedelta(seconds=1)


@pytest.mark.clause("FLOW-6", "FLOW-12")
async def test_starts_obey_the_limit_of_each_bucket(durable_dsn: str, db: Any) -> None:
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


class HeldJob(Machine[str, None]):
    """Records its start; the first instance waits for the test."""

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
async def test_no_token_is_spent_without_capacity(durable_dsn: str, db: Any) -> None:
    """If prefetched rows spent tokens, four would start at the same time after an hour."""
    held = HeldJob()
    limit = RateLimit("crm", 2, timedelta(hours=1))
    queues = {"default": Queue(concurrency=1, prefetch=10)}
    async with Worker([held], dsn=durable_dsn, settings=CALM, limits=[limit], queues=queues) as worker:
        await worker.insert(HeldJob, "first")
        await happens(held.is_there)
        states = ("plain", "limited", "limited", "behind")
        limited = Spec(HeldJob, "limited", rate_limit="crm")
        specs = [limited if one == "limited" else Spec(HeldJob, one) for one in states]
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
async def test_start_takes_as_many_tokens_as_its_weight(durable_dsn: str, db: Any) -> None:
    async with Worker([Job], dsn=durable_dsn, limits=[RateLimit("crm", 60, SECOND, burst=6)]) as worker:
        await worker.insert_all(
            [Spec(Job, 0.0, rate_limit="crm", weight=1 + number % 6) for number in range(24)]
        )
        await finished(worker, 24)
    assert await check_tokens(db, "crm", allowed=60, per=SECOND, burst=6) == 24


@pytest.mark.clause("FLOW-8")
async def test_retried_start_costs_tokens_again(durable_dsn: str, db: Any) -> None:
    async with Worker([Flaky], dsn=durable_dsn, limits=[RateLimit("crm", 20, SECOND, burst=2)]) as worker:
        await worker.insert_all([Spec(Flaky, 3, rate_limit="crm") for _ in range(3)])
        await finished(worker, 3)
    assert await check_tokens(db, "crm", allowed=20, per=SECOND, burst=2) == 12


@pytest.mark.clause("FLOW-8", "FLOW-9")
async def test_rate_limit_applies_to_its_step_only(durable_dsn: str, db: Any) -> None:
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
async def test_rate_limit_holds_over_killed_and_stopped_processes(
    direct_dsn: str, client: AsyncClient, db: Any
) -> None:
    await client.set_limit(RateLimit("crm", 50, SECOND, burst=4))
    await client.insert_all([Spec(Job, 0.0, rate_limit="crm") for _ in range(140)])
    async with worker_process(direct_dsn, 0.6) as first, worker_process(direct_dsn, 0.6) as second:
        while await client.count(status=Status.DONE) < 20:
            await asyncio.sleep(0.02)
        for process in (first, second):
            process.send(signal.SIGSTOP)
        await asyncio.sleep(0.8)  # forty starts are due when they resume
        for process in (first, second):
            process.send(signal.SIGCONT)
        while await client.count(status=Status.DONE) < 60:
            await asyncio.sleep(0.02)
        first.send(signal.SIGKILL)
        await first.ends()
        await finished(client, 140)
    assert await check_tokens(db, "crm", allowed=50, per=SECOND, burst=4) >= 140


@pytest.mark.clause("FLOW-6")
async def test_rate_limit_holds_after_an_outage(durable_dsn: str, direct_dsn: str, db: Any) -> None:
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
async def test_weight_above_the_burst_is_rejected(client: AsyncClient, db: Any) -> None:
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
async def test_outcome_with_a_weight_above_the_burst_fails(durable_dsn: str) -> None:
    async with Worker([Careless], dsn=durable_dsn, limits=[RateLimit("crm", 2)]) as worker:
        ended = await worker.wait(await worker.insert(Careless, "crm"))
    assert ended.status is Status.FAILED
    assert "weight of 3" in (ended.last_error or "")


class Early(Machine[str, str]):
    """Names the limit `late` in each outcome that takes one."""

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
async def test_step_with_an_unknown_limit_stalls_until_it_is_set(
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
        # The weight exceeds this burst, so it counts as a full bucket.
        await client.set_limit(RateLimit("late", 2))
        assert (await worker.wait(ref, timeout=timedelta(seconds=10))).result == how


@pytest.mark.clause("FLOW-11")
async def test_outcome_with_an_unknown_limit_does_not_fail_its_batch(durable_dsn: str) -> None:
    async with Worker([Early, Job], dsn=durable_dsn) as worker:
        await worker.insert_all([Spec(Early, "next") for _ in range(20)])
        refs = await worker.insert_all([Spec(Job, 0.0) for _ in range(20)])
        for ref in refs:
            assert (await worker.wait(ref, timeout=timedelta(seconds=10))).status is Status.DONE
        await worker.set_limit(RateLimit("late", 100))
        await finished(worker, 40)


@pytest.mark.clause("FLOW-11")
async def test_most_stalled_rows_are_not_picked_again(direct_dsn: str, db: Any) -> None:
    """One row per chunk is tried again soon, for telemetry. Setting the limit makes all of them due."""
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
def test_harness_leaves_stalled_steps_until_their_limit_is_set(durable: Harness) -> None:
    durable.insert(Early, "next")
    assert durable.drain().next == 1
    assert durable.drain().done == 0
    durable.set_limit(RateLimit("late", 3))
    assert durable.drain().done == 1


@pytest.mark.clause("FLOW-11")
async def test_removed_limit_is_reported_and_can_be_set_again(durable_dsn: str, client: AsyncClient) -> None:
    await client.set_limit(RateLimit("crm", 1))
    waiting = await client.insert(Job, 0.0, rate_limit=("crm", 7))
    assert await client.remove_limit("crm")
    events: asyncio.Queue[RateLimitUnknown] = asyncio.Queue()
    worker = Worker([Job], dsn=durable_dsn)
    worker.telemetry.subscribe(events.put_nowait, RateLimitUnknown)
    async with worker:
        async with asyncio.timeout(20):
            event = await events.get()
        assert (event.key, event.limit, event.fsm, event.step, event.count) == (
            "crm:7",
            "crm",
            "Job",
            "run",
            1,
        )
        other = await worker.insert(Job, 0.0)  # rows without a limit are not delayed
        await worker.wait(other)
        await client.set_limit(RateLimit("crm", 1))
        await worker.wait(waiting, timeout=timedelta(seconds=20))


@pytest.mark.clause("FLOW-13")
async def test_changed_rate_applies_at_once(durable_dsn: str, client: AsyncClient) -> None:
    await client.set_limit(RateLimit("crm", 1, timedelta(hours=1)))
    async with Worker([Job], dsn=durable_dsn):
        await client.insert_all([Spec(Job, 0.0, rate_limit="crm") for _ in range(10)])
        await finished(client, 1)
        await client.set_limit(RateLimit("crm", 1000, SECOND))
        await finished(client, 10)


@pytest.mark.clause("FLOW-14")
def test_harness_obeys_limits_and_advance_refills_buckets(durable: Harness) -> None:
    durable.set_limit(RateLimit("crm", 2, timedelta(hours=1)))
    for _ in range(5):
        durable.insert(Job, 0.0, rate_limit="crm")
    assert durable.drain(collapse=False).done == 2
    durable.advance(minutes=30)
    assert durable.drain(collapse=False).done == 1
    durable.advance(hours=1)
    assert durable.drain(collapse=False).done == 2


@pytest.mark.clause("FLOW-14")
def test_harness_skips_the_time_until_tokens_are_available(durable: Harness) -> None:
    durable.set_limit(RateLimit("crm", 1, timedelta(hours=1)))
    for _ in range(4):
        durable.insert(Job, 0.0, rate_limit="crm")
    assert durable.drain().done == 4


@pytest.mark.clause("FLOW-6")
async def test_cancelled_rows_do_not_delay_later_rows_of_a_bucket(
    durable_dsn: str, client: AsyncClient, db: Any
) -> None:
    await client.set_limit(RateLimit("crm", 1, timedelta(hours=1), burst=3))
    settings = msgspec.structs.replace(CALM, reap_interval=timedelta(milliseconds=100))
    async with Worker([Job], dsn=durable_dsn, settings=settings):
        refs = await client.insert_all([Spec(Job, 0.0, rate_limit="crm") for _ in range(30)])
        await finished(client, 3)
        await client.wait(await client.insert(Job, 0.0))  # spent after all others have a timetable
        waiting = [found.id for found in await client.list(status=Status.RUNNABLE)]
        for id in waiting[:23]:
            await client.cancel(id)
        await db.execute("update gen_durable.buckets set full_at = now()")  # three hours later
        await finished(client, 7)
    assert len(refs) - 3 - 23 - 3 == await client.count(status=Status.RUNNABLE)


async def test_bucket_that_would_never_refill_is_rejected(client: AsyncClient, db: Any) -> None:
    with pytest.raises(UsageError, match="more than 100 years"):
        RateLimit("huge", 1, timedelta(days=1), 2**31 - 1)
    with pytest.raises(asyncpg.CheckViolationError, match="fills_within_a_century"):
        await db.execute("select gen_durable.set_rate_limit('huge', 1, '10 years', 100000)")
    # The largest bucket; a heavy weight would wait for years.
    await client.set_limit(RateLimit("vast", 1, timedelta(days=3650), 10))
    assert await db.fetchval("select now() + gen_durable.refill(1e9, 1, '3650 days')") is not None


@pytest.mark.parametrize("text", ["a=1/1m/0", "a=1_0", "a=\u0661", "a=0", "a=+1", "a=1/1m/1/1", "=1", "a"])
def test_malformed_limit_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a limit"):
        parse_limit(text)


async def test_bucket_names_compare_by_bytes_in_any_collation(db: Any) -> None:
    """`TENANT:0` must not sort between `tenant` and `tenant:1`, whatever the collation of the database."""
    collation = await db.fetchval(
        """select c.collname from pg_attribute a join pg_collation c on c.oid = a.attcollation
            where a.attrelid = 'gen_durable.gen_durable'::regclass and a.attname = 'concurrency_key'"""
    )
    assert collation == "C"
