"""Pause and resume queues and change their concurrency while workers run."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Client,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    QueueControl,
    Spec,
    UsageError,
    Worker,
    step,
)
from gen_durable._db import pick, workers
from gen_durable._db.pool import Database
from gen_durable._runtime.capacity import Capacity
from gen_durable._runtime.in_flight import InFlight
from gen_durable.telemetry import PickStop, StepStop
from tests.operations.rows import put
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events, holds
from tests.support.worker_rows import WORKER_ROW

LEASES = pick.Leases(timedelta(seconds=60))
POLL = timedelta(milliseconds=800)
SETTINGS = msgspec.structs.replace(CALM, poll_interval=POLL)


async def by_queue(database: Database, queue: str = "default") -> list[int]:
    plan = pick.pick(queue, pick.PickRequest((["A"], [1]), 100, 7, "w", LEASES))
    return [execution.id for execution in (await database.run(plan)).executions]


async def by_prefix(database: Database, *, is_picky: bool) -> list[int]:
    known = (["A"], [1]) if is_picky else None
    plan = pick.pick_by_prefix("A", pick.PickRequest(known, 100, 7, "w", LEASES), 200)
    return sorted(execution.id for execution in (await database.run(plan)).executions)


@pytest.mark.clause("OPS-3")
async def test_pick_skips_a_paused_queue(db: Any, database: Database, client: Any) -> None:
    id = await put(db)
    paused = await client.pause_queue("default", actor="ann")
    assert (paused.name, paused.is_paused, paused.paused_by, paused.concurrency) == (
        "default",
        True,
        "ann",
        None,
    )
    assert await client.pause_queue("default") == paused  # idempotent
    assert await by_queue(database) == []
    assert await client.resume_queue("default") == QueueControl(name="default", is_paused=False)
    assert await by_queue(database) == [id]


async def test_pause_of_a_queue_without_workers_logs_a_warning(
    durable_dsn: str, client: Any, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await database.run(workers.announce(WORKER_ROW, timedelta(hours=1)))
    await client.pause_queue("default")
    assert caplog.messages == []
    await client.pause_queue("defualt")
    assert caplog.messages == ["no worker serves queue defualt; did you mean 'default'?"]
    with Client(durable_dsn) as blocking:
        blocking.pause_queue("unlike")
    assert caplog.messages[1:] == ["no worker serves queue unlike"]
    assert {record.name for record in caplog.records} == {"gen_durable.client"}


@pytest.mark.clause("OPS-3")
@pytest.mark.parametrize("is_picky", [False, True])
async def test_pick_by_prefix_skips_paused_queues(db: Any, database: Database, *, is_picky: bool) -> None:
    await put(db, queue="paused", priority=-5)
    ids = [await put(db, queue="open"), await put(db, queue="open", priority=5), await put(db, queue="other")]
    await database.run(workers.pause_queue("paused", None))
    assert await by_prefix(database, is_picky=is_picky) == ids


class Chain(Machine[int, None]):
    """Runs short steps forever."""

    began: list[float]

    def __init__(self) -> None:
        self.began = []

    @step
    async def go(self, ctx: Context[int]) -> Outcome[None]:
        self.began.append(time.monotonic())
        await asyncio.sleep(0.001)
        return Next(self.go)


@pytest.mark.clause("OPS-3")
@pytest.mark.parametrize(
    "sources", [{"queues": {"default": 2}}, {"prefixes": ["Ch"]}], ids=["queue", "prefix"]
)
async def test_pause_stops_starts_within_a_poll_and_resume_restarts(
    db: Any, durable_dsn: str, sources: Any
) -> None:
    chain = Chain()
    async with Worker([chain], dsn=durable_dsn, settings=SETTINGS, **sources) as worker:
        await worker.insert_all([Spec(chain, n) for n in range(6)])
        await _reaches(lambda: len(chain.began) > 20)
        async with AsyncClient(durable_dsn) as other:
            await other.pause_queue("default")
            paused = time.monotonic()
            await holds(db, "select count(*) = 0 from gen_durable.gen_durable where status = 'executing'")
            await asyncio.sleep(POLL.total_seconds() * 1.2)
            assert chain.began[-1] - paused <= POLL.total_seconds()
            begun = len(chain.began)
            statuses = await db.fetch(
                "select distinct status::text, crash_count, attempt from gen_durable.gen_durable"
            )
            assert [tuple(row) for row in statuses] == [("runnable", 0, 0)]
            await other.resume_queue("default")
        await _reaches(lambda: len(chain.began) > begun + 20)


async def test_pause_releases_executions_waiting_for_capacity(db: Any, durable_dsn: str) -> None:
    """The execution is leased but has not started."""
    is_there, may_go, ran = asyncio.Event(), asyncio.Event(), list[int]()

    class Slow(Machine[int, None]):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[None]:
            ran.append(ctx.state)
            is_there.set()
            await may_go.wait()
            return Done()

    async with Worker([Slow], dsn=durable_dsn, settings=SETTINGS, queues={"default": 2}) as worker:
        events = Events(worker)
        await worker.insert_all([Spec(Slow, 1), Spec(Slow, 2)])
        await _reaches(lambda: len(ran) == 2)
        (runner,) = worker._engine._runners  # type: ignore[union-attr]
        ref = await worker.insert(Slow, 3)
        # Start it as a pick does that returns while another execution commits.
        picked = await worker._database.run(
            pick.pick(
                "default",
                pick.PickRequest((["Slow"], [1]), 1, 99, worker.name, pick.Leases(timedelta(seconds=60))),
            )
        )
        runner.start([InFlight.of(picked.executions[0], timedelta(seconds=60))])
        await worker.pause_queue("default")
        await asyncio.sleep(POLL.total_seconds())
        may_go.set()
        await holds(db, "select status = 'runnable' from gen_durable.gen_durable where id = $1", ref.id)
        await _reaches(lambda: len(events.of(StepStop)) == 2)
        assert sorted(ran) == [1, 2]


@pytest.mark.clause("OPS-4")
async def test_concurrency_override_applies_to_running_workers(db: Any, durable_dsn: str) -> None:
    may_go, running = asyncio.Event(), 0

    class Slow(Machine[int, None]):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[None]:
            nonlocal running
            running += 1
            await may_go.wait()
            running -= 1
            return Done()

    async with Worker([Slow], dsn=durable_dsn, settings=CALM, queues={"default": 1}) as worker:
        refs = await worker.insert_all([Spec(Slow, n) for n in range(8)])
        await _reaches(lambda: running == 1)
        async with AsyncClient(durable_dsn) as other:
            queue = await other.set_queue("default", concurrency=4)
            assert queue == QueueControl(name="default", is_paused=False, concurrency=4)
            await _reaches(lambda: running == 4)
            await other.set_queue("default", concurrency=2)
        (runner,) = worker._engine._runners  # type: ignore[union-attr]
        await _reaches(lambda: runner.capacity.limit == 2)
        events = Events(worker)
        may_go.set()
        await worker.wait_all(refs, timeout=PATIENCE)
        assert max(event.demand for event in events.of(PickStop)) <= 2
        await worker.set_queue("default", concurrency=None)
        await events.wait(PickStop, lambda event: event.demand == 1)


@pytest.mark.clause("OPS-5")
async def test_queue_status_counts_rows(db: Any, client: Any) -> None:
    every: list[dict[str, Any]] = [
        {"eligible_at": "=now() - interval '1 h'"},
        {},
        {"eligible_at": "=now() + interval '1 h'"},
        {"concurrency_key": "k", "gated": True},
        {"status": "executing", "lease_token": 1},
        {"status": "done"},
        {"queue": "mail"},
    ]
    for columns in every:
        await put(db, **{"queue": "shop", **columns})
    await client.set_queue("shop", concurrency=3)
    await client.pause_queue("idle")
    idle, mail, shop = await client.queues()
    assert (idle.name, idle.is_paused, idle.due, idle.oldest) == ("idle", True, 0, None)
    assert (mail.name, mail.due, mail.future, mail.executing, mail.workers) == ("mail", 1, 0, 0, 0)
    assert (shop.due, shop.future, shop.gated, shop.executing, shop.concurrency) == (2, 1, 1, 1, 3)
    assert mail.oldest < timedelta(hours=1) <= shop.oldest < timedelta(hours=2)


@pytest.mark.clause("OPS-5")
async def test_registered_queues_are_listed_before_others(db: Any, client: Any) -> None:
    await db.execute(
        "insert into gen_durable.gen_durable (fsm, step, queue, priority) select 'A', 's', 'a' || n, 0"
        " from generate_series(1, 1500) n union all select 'A', 's', 'busy', n from generate_series(1, 1500) n"
        " union all select 'A', 's', 'shop', 7"
    )
    for name in ("busy", "shop"):
        await client.set_queue(name, concurrency=3)
    found = {queue.name: queue for queue in await client.queues()}
    assert (found["shop"].due, found["shop"].is_registered) == (1, True)
    assert found["busy"].due == 999
    unregistered = [queue for queue in found.values() if not queue.is_registered]
    assert len(unregistered) == 1000


@pytest.mark.clause("OPS-5")
async def test_queue_counts_are_bounded(db: Any, client: Any) -> None:
    await db.execute(
        "insert into gen_durable.gen_durable (fsm, step, queue, eligible_at)"
        " select 'A', 's', 'q', '-infinity' from generate_series(1, 12000)"
    )
    (queue,) = await client.queues()
    assert (queue.name, queue.due) == ("q", 10_000)
    assert queue.oldest > timedelta(days=365 * 2000)


async def test_pause_joins_the_callers_transaction(db: Any, database: Database, durable_dsn: str) -> None:
    id = await put(db)
    async with AsyncClient(durable_dsn) as client:
        transaction = db.transaction()
        await transaction.start()
        await client.pause_queue("default", conn=db)
        await transaction.rollback()
    assert await by_queue(database) == [id]


@pytest.mark.parametrize("wrong", ["", "x" * 256, 7])
async def test_invalid_queue_names_are_refused(client: Any, wrong: Any) -> None:
    for verb in (client.pause_queue, client.resume_queue):
        with pytest.raises(UsageError, match="queue"):
            await verb(wrong)
    with pytest.raises(UsageError, match="concurrency"):
        await client.set_queue("default", concurrency=0)


async def test_queue_functions_in_sql(db: Any, database: Database) -> None:
    id = await put(db)
    await db.execute("select gen_durable.pause_queue('default')")
    assert await by_queue(database) == []
    await db.execute("select gen_durable.resume_queue('default')")
    await db.execute("select gen_durable.set_queue('default', 7)")
    row = await db.fetchrow("select concurrency, updated_by = current_user from gen_durable.queues")
    assert tuple(row) == (7, True)
    assert await by_queue(database) == [id]
    with pytest.raises(asyncpg.CheckViolationError):
        await db.execute("select gen_durable.set_queue('default', 0)")


def test_capacity_follows_its_limit() -> None:
    capacity, granted = Capacity(1), list[object]()
    capacity.on_granted = granted.append
    assert [capacity.acquire(number) for number in range(4)] == [True, False, False, False]
    assert (capacity.available, capacity.waiting) == (0, 3)
    capacity.resize(3)
    assert granted == [1, 2]
    capacity.resize(1)
    for _ in range(2):
        capacity.release()
        assert granted == [1, 2]
    capacity.release()
    assert granted == [1, 2, 3]
    assert capacity.available == 0
    capacity.release()
    assert capacity.available == 1


async def _reaches(is_so: Any) -> None:
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while not is_so():
            await asyncio.sleep(0.005)
