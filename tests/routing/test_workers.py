"""Workers that serve queues and workers that serve prefixes, on one database."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Spec,
    Status,
    Stop,
    Worker,
    job,
    step,
)
from gen_durable.telemetry import ConcurrencyContended, HandlerMissing, PickStop
from tests.support.rows import row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events, happens, holds


def maker(name: str, version: int = 1, **options: Any) -> Any:
    """Make a job that returns its name."""

    @job(name, version=version, **options)
    async def made(number: int) -> str:
        return f"{name} {number}"

    return made


BILLING, MEDIA, DEFAULT = maker("billing.charge.v1"), maker("media.scale.v1"), maker("default.tidy.v1")
# Names that are similar to the prefix `billing.` but do not begin with it.
TWIN = maker("billing_charge.v1")


async def waiting(db: Any) -> list[str]:
    """Return the types of instances that were never leased."""
    rows = await db.fetch(
        "select fsm from gen_durable.gen_durable where status = 'runnable' and execution = 0 order by fsm"
    )
    return [row["fsm"] for row in rows]


async def until_idle(events: Events, label: str) -> None:
    """Wait for a pick of this queue or prefix that starts now and finds nothing."""
    count = len(events.of(PickStop, lambda event: event.queue == label))
    for number in (1, 2):
        await events.wait(
            PickStop, lambda event: event.queue == label and not event.count, count=count + number
        )


# By queue


@pytest.mark.clause("ROUTE-9")
async def test_queue_worker_leaves_unknown_machines(durable_dsn: str, db: Any) -> None:
    newer = maker("billing.charge.v1", version=2)
    async with (
        AsyncClient(durable_dsn) as client,
        Worker([BILLING], dsn=durable_dsn, settings=CALM) as worker,
    ):
        events = Events(worker)
        for each in (MEDIA, newer, TWIN):
            await client.insert(each, 1, priority=-5)
        ref = await client.insert(BILLING, 2)
        assert (await client.wait(ref, timeout=PATIENCE)).result == "billing.charge.v1 2"
        await until_idle(events, "default")
        assert not events.of(HandlerMissing)
    assert await waiting(db) == ["billing.charge.v1", "billing_charge.v1", "media.scale.v1"]


@pytest.mark.parametrize(
    "source",
    [{"queues": {"default": 5}}, {"prefixes": {"m.": 5}, "on_unknown": "leave"}],
    ids=["queue", "prefix"],
)
async def test_blocked_key_does_not_delay_other_work(durable_dsn: str, db: Any, source: Any) -> None:
    """They wait for their key; other work continues. A worker that has the machine continues them."""
    new, old = maker("m.new"), maker("m.old")
    keys = [f"tenant:{number}" for number in range(20)]
    async with AsyncClient(durable_dsn) as client:
        ahead = await client.insert_all([Spec(new, 1, concurrency_key=key) for key in keys])
        behind = await client.insert_all([Spec(old, n, concurrency_key=key) for key in keys for n in (2, 3)])
        async with Worker([old], dsn=durable_dsn, settings=CALM, **source):
            free = await client.insert(old, 4)
            assert (await client.wait(free, timeout=PATIENCE)).status is Status.DONE
            assert await client.count(status=Status.DONE) == 1
            async with Worker([old, new], dsn=durable_dsn, settings=CALM, **source):
                for ref in (*ahead, *behind):
                    assert (await client.wait(ref.id, timeout=PATIENCE)).status is Status.DONE
    assert not await db.fetchval("select count(*) from gen_durable.gen_durable where gated")


# By prefix


@pytest.mark.clause("ROUTE-1")
async def test_prefix_applies_to_all_queues(durable_dsn: str, db: Any) -> None:
    elsewhere = maker("billing.refund.v1", queue="money")
    known = [BILLING, MEDIA, DEFAULT, TWIN, elsewhere]
    async with Worker(known, dsn=durable_dsn, prefixes=["billing."], settings=CALM) as worker:
        events = Events(worker)
        refs = [await worker.insert(each, 1) for each in known]
        await worker.insert(BILLING, 2, queue="odd")
        for ref in (refs[0], refs[-1]):
            assert (await worker.wait(ref, timeout=PATIENCE)).status is Status.DONE
        await until_idle(events, "billing.")
        assert await waiting(db) == ["billing_charge.v1", "default.tidy.v1", "media.scale.v1"]
        labels = {event.queue for event in events.of(PickStop)}
    assert labels == {"billing."}


@pytest.mark.clause("ROUTE-1")
async def test_worker_serves_several_prefixes_and_queues(durable_dsn: str, db: Any) -> None:
    known = [BILLING, MEDIA, DEFAULT, TWIN]
    async with Worker(
        known, dsn=durable_dsn, prefixes={"billing.": 1, "media.": 2}, queues={"special": 1}, settings=CALM
    ) as worker:
        refs = [await worker.insert(each, 1) for each in (BILLING, MEDIA)]
        refs.append(await worker.insert(TWIN, 1, queue="special"))
        for ref in refs:
            assert (await worker.wait(ref, timeout=PATIENCE)).status is Status.DONE
        await worker.insert(DEFAULT, 1)
        await worker.insert(TWIN, 1)
    assert await waiting(db) == ["billing_charge.v1", "default.tidy.v1"]


@pytest.mark.clause("ROUTE-3")
async def test_default_prefix(durable_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_TYPE_PREFIXES", "")
    async with Worker([BILLING, DEFAULT], dsn=durable_dsn, settings=CALM) as worker:
        refs = [await worker.insert(each, 1) for each in (BILLING, DEFAULT)]
        assert (await worker.wait(refs[1], timeout=PATIENCE)).result == "default.tidy.v1 1"
    assert await waiting(db) == ["billing.charge.v1"]


async def test_insert_in_the_same_process_wakes_the_prefix(durable_dsn: str) -> None:
    class Steps(Machine[int, int], name="m.steps"):
        @step
        async def count(self, ctx: Context[int]) -> Outcome[int]:
            return Next(self.count, ctx.state + 1, requeue=True) if ctx.state < 3 else Done(ctx.state)

    slow = timedelta(seconds=30)
    settings = msgspec.structs.replace(CALM, poll_interval=slow, min_poll_interval=slow)
    async with Worker([Steps], dsn=durable_dsn, prefixes=["m."], settings=settings) as worker:
        await asyncio.sleep(0.1)
        ref = await worker.insert(Steps, 0)
        assert (await worker.wait(ref, timeout=timedelta(seconds=10))).result == 3


@pytest.mark.clause("ROUTE-5")
async def test_order_is_priority_then_time_across_types(durable_dsn: str, db: Any) -> None:
    order: list[tuple[str, int]] = []

    def noting(name: str) -> Any:
        @job(name)
        async def note(number: int) -> None:
            order.append((name, number))

        return note

    first, second = noting("m.first"), noting("m.second")
    async with AsyncClient(durable_dsn) as client:
        refs = [
            await client.insert(first, 4),
            await client.insert(second, 5),
            await client.insert(first, 6, priority=1),
            await client.insert(second, 2, priority=-1),
            await client.insert(first, 3, priority=-1),
            await client.insert(second, 1, priority=-2),
        ]
    async with Worker([first, second], dsn=durable_dsn, prefixes={"m.": 1}, settings=CALM) as worker:
        for ref in refs:
            await worker.wait(ref.id, timeout=PATIENCE)
    assert [number for _, number in order] == [1, 2, 3, 4, 5, 6]


@pytest.mark.clause("ROUTE-10")
async def test_overlapping_prefixes_run_nothing_twice(durable_dsn: str, db: Any) -> None:
    runs: Counter[str] = Counter()

    def counting(number: int) -> Any:
        @job(f"m.{number}.v1")
        async def count(_: int, ctx: Context[int]) -> None:
            runs[ctx.idempotency_key] += 1
            await asyncio.sleep(0.001)

        return count

    jobs = [counting(number) for number in range(20)]
    async with AsyncClient(durable_dsn) as client:
        refs = await client.insert_all([Spec(jobs[n % 20], n, priority=n % 3) for n in range(400)])
        async with (
            Worker(jobs, dsn=durable_dsn, prefixes=["m."], settings=CALM),
            Worker(jobs, dsn=durable_dsn, prefixes=["m", "m.1"], queues={"default": 5}, settings=CALM),
        ):
            await holds(db, "select count(*) = 400 from gen_durable.gen_durable where status = 'done'")
    assert runs == {f"{ref.id}:1": 1 for ref in refs}
    assert await db.fetchval("select max(execution) from gen_durable.gen_durable") == 1
    assert await db.fetchval("select count(*) from gen_durable.executions") == 400
    names = await db.fetch("select distinct lease_owner from gen_durable.executions")
    assert len(names) == 2, "both of them worked"


async def test_locked_rows_do_not_block_a_prefix(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client:
        refs = await client.insert_all([Spec(BILLING, number) for number in range(80)])
        ids = [ref.id for ref in refs]
        async with db.transaction():
            await db.execute("select from gen_durable.gen_durable where id = any ($1) for update", ids[:60])
            async with Worker([BILLING], dsn=durable_dsn, prefixes={"billing.": 3}, settings=CALM):
                for ref in refs[60:]:
                    assert (await client.wait(ref, timeout=PATIENCE)).status is Status.DONE


# Keys under prefixes


async def test_concurrency_key_serializes_across_types(durable_dsn: str, db: Any) -> None:
    running: Counter[str] = Counter()
    order: dict[str, list[int]] = {"a": [], "b": []}

    def keyed(name: str) -> Any:
        @job(name)
        async def run(given: tuple[str, int]) -> int:
            key, number = given
            running[key] += 1
            order[key].append(number)
            await asyncio.sleep(0.005)
            together = running[key]
            running[key] -= 1
            return together

        return run

    jobs = [keyed("m.one"), keyed("m.two")]
    async with AsyncClient(durable_dsn) as client:
        refs = [
            await client.insert(jobs[number % 2], (key, number), concurrency_key=key)
            for number in range(15)
            for key in ("a", "b")
        ]
        async with (
            Worker(jobs, dsn=durable_dsn, prefixes=["m."], settings=CALM) as worker,
            Worker(jobs, dsn=durable_dsn, prefixes=["m."], settings=CALM),
        ):
            events = Events(worker)
            ended = [await client.wait(ref, timeout=PATIENCE) for ref in refs]
            contended = events.of(ConcurrencyContended)
    assert {each.result for each in ended} == {1}
    assert order == {"a": list(range(15)), "b": list(range(15))}
    assert {event.concurrency_key for event in contended} <= {"a", "b"}
    assert not await db.fetchval("select count(*) from gen_durable.gen_durable where gated")


async def test_busy_key_does_not_delay_other_work(durable_dsn: str, db: Any) -> None:
    may_end, is_there = asyncio.Event(), asyncio.Event()

    @job("m.slow")
    async def slow() -> None:
        is_there.set()
        await may_end.wait()

    quick = maker("m.quick")
    async with Worker([slow, quick], dsn=durable_dsn, prefixes={"m.": 3}, settings=CALM) as worker:
        held = await worker.insert(slow, concurrency_key="k")
        await happens(is_there)
        behind = await worker.insert_all([Spec(quick, n, concurrency_key="k") for n in range(50)])
        free = await worker.insert(quick, 99)
        assert (await worker.wait(free, timeout=PATIENCE)).status is Status.DONE
        assert await worker.count(status=Status.DONE) == 1
        may_end.set()
        for ref in (held, *behind):
            assert (await worker.wait(ref.id, timeout=PATIENCE)).status is Status.DONE


# Unknown types under a prefix


class Parent(Machine[str, list[str]], name="p.parent"):
    """Has a child of an unknown type."""

    @step
    async def split(self, ctx: Context[str]) -> Outcome[list[str]]:
        return ScheduleChildren([Spec(maker("billing.lost.v1"), 1), Spec(BILLING, 2)], then=self.join)

    @step
    async def join(self, ctx: Context[str]) -> Outcome[list[str]]:
        return Done([f"{child.status} {child.last_error}" for child in ctx.children])


@pytest.mark.clause("ROUTE-7", "TEL-11")
async def test_unknown_type_under_a_prefix_fails(
    durable_dsn: str, db: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lost, newer = maker("billing.lost.v1"), maker("billing.charge.v1", version=2)
    async with Worker(
        [BILLING, Parent], dsn=durable_dsn, prefixes=["billing.", "p."], settings=CALM
    ) as worker:
        events = Events(worker)
        refs = [await worker.insert(lost, 1, concurrency_key="k"), await worker.insert(newer, 1)]
        for ref in refs:
            ended = await worker.wait(ref.id, timeout=PATIENCE)
            assert (ended.status, ended.last_error) == (Status.FAILED, "no_handler_registered")
        await events.wait(HandlerMissing, count=2)
        missing = {event.id: (event.fsm, event.version, event.name) for event in events.of(HandlerMissing)}
        assert [missing[ref.id] for ref in refs] == [
            ("billing.lost.v1", 1, "handler.missing"),
            ("billing.charge.v1", 2, "handler.missing"),
        ]
        parent = await worker.insert(Parent, "")
        assert (await worker.wait(parent, timeout=PATIENCE)).result == [
            "failed no_handler_registered",
            "done None",
        ]
        free = await worker.insert(BILLING, 3, concurrency_key="k")
        assert (await worker.wait(free, timeout=PATIENCE)).status is Status.DONE
        records = await worker.executions(refs[0].id)
    assert [(each.status.value, each.outcome, each.error) for each in records] == [
        ("DONE", "stop", "no_handler_registered")
    ]
    row = await row_of(db, refs[0].id)
    assert (row["attempt"], row["execution"], row["step_seq"]) == (0, 1, 1)
    assert json.loads(row["error"]) == {
        "type": "no_handler_registered",
        "message": "no worker of this namespace has machine 'billing.lost.v1' version 1",
        "traceback": [],
        "attempt": 0,
        "step": "run",
    }
    assert (
        f"machine not registered: billing.lost.v1 {refs[0].id} failed; "
        "this worker serves billing. and has no version 1 of the machine" in caplog.messages
    )


async def test_failed_unknown_type_can_be_retried(durable_dsn: str) -> None:
    lost = maker("billing.lost.v1")
    async with Worker([BILLING], dsn=durable_dsn, prefixes=["billing."], settings=CALM) as worker:
        ref = await worker.insert(lost, 1)
        await worker.wait(ref, timeout=PATIENCE)
    async with Worker([BILLING, lost], dsn=durable_dsn, prefixes=["billing."], settings=CALM) as worker:
        assert await worker.retry_all(lost, status=Status.FAILED, reason="deployed") == 1
        assert (await worker.wait(ref, timeout=PATIENCE)).result == "billing.lost.v1 1"


async def test_stop_with_the_same_reason_is_not_handler_missing(durable_dsn: str) -> None:
    class Says(Machine[None, None], name="billing.says"):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            return Stop("no_handler_registered")

    async with Worker([Says], dsn=durable_dsn, prefixes=["billing."], settings=CALM) as worker:
        events = Events(worker)
        await worker.wait(await worker.insert(Says), timeout=PATIENCE)
        await until_idle(events, "billing.")
    assert not events.of(HandlerMissing)


@pytest.mark.clause("ROUTE-8")
async def test_on_unknown_leave(durable_dsn: str, db: Any) -> None:
    lost, newer = maker("billing.lost.v1"), maker("billing.charge.v1", version=2)
    async with AsyncClient(durable_dsn) as client:
        refs = [await client.insert(each, 1, priority=-1) for each in (lost, newer) * 20]
        async with Worker(
            [BILLING], dsn=durable_dsn, prefixes={"billing.": 2}, on_unknown="leave", settings=CALM
        ) as old:
            events = Events(old)
            known = await old.insert(BILLING, 1)
            assert (await old.wait(known, timeout=PATIENCE)).status is Status.DONE
            await until_idle(events, "billing.")
            assert len(await waiting(db)) == 40
            async with Worker(
                [BILLING, lost, newer],
                dsn=durable_dsn,
                prefixes=["billing."],
                on_unknown="leave",
                settings=CALM,
            ):
                for ref in refs:
                    assert (await client.wait(ref.id, timeout=PATIENCE)).status is Status.DONE
    assert not events.of(HandlerMissing)
