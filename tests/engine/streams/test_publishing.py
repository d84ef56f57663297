"""What steps publish, and what is left of it when they fail, crash or lose their lease."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Context,
    Done,
    Machine,
    Outcome,
    Spec,
    Stop,
    Stream,
    StreamItem,
    Worker,
    step,
)
from gen_durable.errors import UsageError
from tests.engine.streams.publishers import MACHINES, NUMBERS, Count, OnLoop, Story
from tests.support.rows import SqlConnection
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE, happens, holds, until_true
from tests.support.wire_proxy import Wire
from tests.support.worker_process import program


@pytest.fixture
async def worker(durable_dsn: str) -> AsyncIterator[Worker]:
    async with Worker([*MACHINES, Story], dsn=durable_dsn, settings=CALM) as opened:
        yield opened


async def read(
    client: AsyncClient, target: Any, stream: Any = NUMBERS, after: int = 0
) -> list[StreamItem[Any]]:
    async with asyncio.timeout(PATIENCE.total_seconds()):
        return [item async for item in client.stream(target, stream, after=after)]


async def status(client: AsyncClient, target: Any) -> str:
    found = await client.get(target)
    assert found is not None
    return found.status


def values(items: Iterable[StreamItem[Any]]) -> list[Any]:
    return [item.value for item in items]


@pytest.mark.clause("STR-1", "STR-2")
@pytest.mark.parametrize("machine", MACHINES)
async def test_items_arrive_in_order_from_every_kind_of_step(worker: Worker, machine: Any) -> None:
    ref = await worker.insert(machine, Count(5000))
    items = await read(worker, ref)
    assert values(items) == list(range(1, 5001))
    assert [item.position for item in items] == list(range(1, 5001))
    assert {(item.step, item.step_seq, item.attempt, item.execution) for item in items} == {
        ("count", 1, 0, 1)
    }
    assert (await worker.wait(ref)).result == 5000


@pytest.mark.clause("STR-1")
async def test_items_are_visible_while_the_step_runs(worker: Worker) -> None:
    ref = await worker.insert(OnLoop, Count(2, waits_at=2))
    reader = worker.stream(ref, OnLoop.numbers)
    async with asyncio.timeout(PATIENCE.total_seconds()):
        assert [(await anext(reader)).value, (await anext(reader)).value] == [1, 2]
    assert await status(worker, ref) == "executing"
    await worker.cancel(ref, force=True)
    assert values(await read(worker, ref)) == [1, 2]


@pytest.mark.clause("STR-4", "STR-5")
@pytest.mark.parametrize(
    ("story", "lines"),
    [
        ("retry", [("first 0", 0, 1), ("first 1", 1, 2)]),
        ("raise", [("first 0", 0, 1), ("handle RuntimeError", 0, 1), ("first 1", 1, 2)]),
        ("stop", [("first 0", 0, 1)]),
        ("next", [("first 0", 0, 1), ("second", 0, 2)]),
        ("effect", [("first 0", 0, 1), ("handle DataError", 0, 1)]),
    ],
)
async def test_items_do_not_depend_on_the_outcome(
    worker: Worker, story: str, lines: list[tuple[str, int, int]]
) -> None:
    ref = await worker.insert(Story, story)
    items = await read(worker, ref, Story.lines)
    found = [(item.value, item.attempt, item.execution) for item in items]
    assert [(text.replace("DivisionByZeroError", "DataError"), *rest) for text, *rest in found] == lines
    await worker.wait(ref, timeout=PATIENCE)


@pytest.mark.clause("STR-4")
async def test_step_that_publishes_sends_one_statement_more(durable_dsn: str) -> None:
    with Wire(durable_dsn) as wire:
        async with Worker([Story, OnLoop], dsn=wire.dsn, settings=CALM) as worker:
            await worker.wait(await worker.insert(OnLoop, Count(100)), timeout=PATIENCE)
            with wire.counted() as sent:
                ref = await worker.insert(Story, "done")
                await worker.wait(ref, timeout=PATIENCE)
    assert sent.count("append_items") == 1
    assert sent.index("append_items") < sent.index("commit_plain")


@pytest.mark.clause("STR-2", "STR-3")
async def test_fifty_thousand_items_are_written_and_read_in_batches(durable_dsn: str) -> None:
    count = 50_000
    with Wire(durable_dsn) as wire:
        async with Worker([OnLoop], dsn=wire.dsn, settings=CALM) as worker:
            with wire.counted() as sent:
                began = time.monotonic()
                ref = await worker.insert(OnLoop, Count(count))
                await worker.wait(ref, timeout=PATIENCE)
                seconds = time.monotonic() - began
            # A batch has at least half a buffer (1,000 items), or is the first one after 50 ms.
            assert sent.count("append_items") <= count / 1000 + seconds / 0.05 + 2
            with wire.counted() as sent:
                assert values(await read(worker, ref)) == list(range(1, count + 1))
    # A page has 2,000 items.
    assert sent.count("read_items") <= count / 2000 + 2


class Busy(Machine[None, None]):
    @step
    async def work(self, ctx: Context[None]) -> Outcome[None]:
        return Done()


@pytest.mark.clause("STR-10")
async def test_step_that_does_not_publish_sends_no_statement_for_streams(durable_dsn: str) -> None:
    with Wire(durable_dsn) as wire:
        async with Worker([Busy], dsn=wire.dsn, settings=CALM) as worker:
            await worker.wait_all(await worker.insert_all([Spec(Busy) for _ in range(50)]), timeout=PATIENCE)
    assert "append_items" not in wire.sent


@pytest.mark.clause("STR-2", "STR-5")
@pytest.mark.parametrize("machine", MACHINES)
async def test_killed_worker_leaves_the_items_of_its_attempt(
    durable_dsn: str, machine: type[Machine[Count, int]]
) -> None:
    arguments = ("tests.engine.streams.publishers", durable_dsn, msgspec.json.encode(FAST).decode())
    async with AsyncClient(durable_dsn, settings=FAST) as client:
        ref = await client.insert(machine, Count(300, waits_at=120))
        reading = asyncio.create_task(read(client, ref))
        reader = client.stream(ref, NUMBERS, after=119)
        async with program(*arguments) as first:
            async with asyncio.timeout(PATIENCE.total_seconds()):
                assert (await anext(reader)).value == 120
            await first.kill()
        async with program(*arguments):
            items = await reading
    assert [item.position for item in items] == list(range(1, 421))
    assert values(items) == [*range(1, 121), *range(1, 301)]
    assert [item.execution for item in items] == [1] * 120 + [2] * 300
    assert [item.attempt for item in items] == [0] * 120 + [1] * 300


@pytest.mark.clause("STR-2", "STR-5")
async def test_worker_killed_in_the_middle_leaves_a_prefix(durable_dsn: str) -> None:
    arguments = ("tests.engine.streams.publishers", durable_dsn, msgspec.json.encode(FAST).decode())
    async with AsyncClient(durable_dsn, settings=FAST) as client:
        ref = await client.insert(OnLoop, Count(400, pause=0.001))
        reading = asyncio.create_task(read(client, ref))
        reader = client.stream(ref, NUMBERS)
        async with asyncio.timeout(PATIENCE.total_seconds()):
            for count in (1, 60, 150):
                async with program(*arguments) as process:
                    for _ in range(count):
                        await anext(reader)
                    await process.kill()
        async with program(*arguments):
            items = await reading
    assert [item.position for item in items] == list(range(1, len(items) + 1))
    by_execution: dict[int, list[int]] = {}
    for item in items:
        by_execution.setdefault(item.execution, []).append(item.value)
    assert list(by_execution) == sorted(by_execution)
    assert len(by_execution) >= 2
    assert by_execution.popitem()[1] == list(range(1, 401))
    for stored in by_execution.values():
        assert stored == list(range(1, len(stored) + 1))


async def test_killed_step_process_leaves_its_items(worker: Worker) -> None:
    ref = await worker.insert(MACHINES[2], Count(50, waits_at=40))
    async with asyncio.timeout(PATIENCE.total_seconds()):
        async for item in worker.stream(ref, NUMBERS):
            if item.value == 40:
                break
    for process in worker._engine._processes._all:  # type: ignore[union-attr]
        process._process.kill()
    items = await read(worker, ref)
    assert [(item.value, item.execution) for item in items] == [
        *((n, 1) for n in range(1, 41)),
        *((n, 2) for n in range(1, 51)),
    ]


@pytest.mark.clause("STR-3", "STR-7")
async def test_items_survive_lost_connections(worker: Worker, db: Any) -> None:
    refs = [await worker.insert(machine, Count(600, pause=0.002)) for machine in MACHINES]
    reading = [asyncio.create_task(read(worker, ref)) for ref in refs]
    for _ in range(8):
        await asyncio.sleep(0.15)
        await db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
    for task in reading:
        assert values(await task) == list(range(1, 601))


@pytest.mark.clause("STR-9")
async def test_locked_row_does_not_delay_the_items_of_others(worker: Worker, sql: SqlConnection) -> None:
    locked = await worker.insert(OnLoop, Count(5000, waits_at=1))
    async with asyncio.timeout(PATIENCE.total_seconds()):
        await anext(worker.stream(locked, NUMBERS))
    held = await worker.insert(OnLoop, Count(2000, pause=0.0001))
    await holds_items(sql, held.id)
    with sql.another() as caller:
        caller.execute("select from gen_durable.gen_durable where id = %s for update", [held.id])
        other = await worker.insert(OnLoop, Count(5000))
        assert values(await read(worker, other)) == list(range(1, 5001))
        assert await status(worker, held) == "executing"
        caller.rollback()
    assert values(await read(worker, held)) == list(range(1, 2001))
    await worker.cancel(locked, force=True)


async def holds_items(sql: SqlConnection, id: int) -> None:
    await until_true(
        lambda: sql.value("select count(*) from gen_durable.stream_items where instance_id = %s", id) > 0
    )


@pytest.mark.clause("STR-9")
async def test_full_buffer_makes_the_step_wait(worker: Worker, sql: SqlConnection) -> None:
    ref = await worker.insert(OnLoop, Count(6000, pause=0.0001))
    await holds_items(sql, ref.id)
    writer = worker._engine._stream_writer  # type: ignore[union-attr]
    (buffer,) = writer.buffers.values()
    with sql.another() as caller:
        caller.execute("select from gen_durable.gen_durable where id = %s for update", [ref.id])
        await until_true(lambda: buffer.is_full)
        await asyncio.sleep(0.2)
        assert buffer.items == 2000
        caller.rollback()
    assert values(await read(worker, ref)) == list(range(1, 6001))
    await worker.wait(ref, timeout=PATIENCE)
    assert not writer.buffers


class Zombie(Machine[None, None]):
    """Publishes once before its lease is lost, and again and again after it."""

    lines = Stream("lines", str)

    def __init__(self) -> None:
        self.published = asyncio.Event()
        self.resumed = asyncio.Event()
        self.ended = asyncio.Event()

    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        if ctx.attempt:
            await ctx.publish(self.lines, "second")
            return Done()
        await ctx.publish(self.lines, "first")
        self.published.set()
        while not self.resumed.is_set():
            try:
                await self.resumed.wait()
            except asyncio.CancelledError:
                continue
        try:
            await ctx.publish(self.lines, "zombie")
            await asyncio.sleep(0.2)
        finally:
            # Also if the heartbeat finds only now that the lease is lost, and cancels the step.
            self.ended.set()
        return Done()


@pytest.mark.clause("STR-6")
async def test_zombie_appends_nothing(durable_dsn: str, sql: SqlConnection) -> None:
    zombie = Zombie()
    async with Worker([zombie], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Zombie)
        await happens(zombie.published)
        await holds_items(sql, ref.id)
        sql(
            "update gen_durable.gen_durable set status = 'runnable', lease_token = null, attempt = 1 where id = %s",
            ref.id,
        )
        async with Worker([Zombie()], dsn=durable_dsn, settings=CALM) as other:
            await other.wait(ref, timeout=PATIENCE)
        zombie.resumed.set()
        await happens(zombie.ended)
        assert values(await read(worker, ref, Zombie.lines)) == ["first", "second"]


class Late(Machine[None, None]):
    """Keeps the contexts of its step and of `handle`."""

    lines = Stream("lines", str)

    def __init__(self) -> None:
        self.kept: list[Context[None]] = []

    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        self.kept.append(ctx)
        raise RuntimeError("once")

    async def handle(self, error: Exception, ctx: Context[None]) -> Outcome[None]:
        self.kept.append(ctx)
        return Done()


@pytest.mark.clause("STR-6")
async def test_publishing_after_the_step_has_ended_raises(durable_dsn: str) -> None:
    late = Late()
    async with Worker([late], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Late)
        await worker.wait(ref, timeout=PATIENCE)
        assert len(late.kept) == 2
        for ctx in late.kept:
            error = f"was called after step 'run' of Late {ref.id} had ended"
            with pytest.raises(UsageError, match=f"ctx.publish {error}"):
                await ctx.publish(Late.lines, "a")
            with pytest.raises(UsageError, match=f"close_stream {error}"):
                await ctx.close_stream(Late.lines)
            with pytest.raises(UsageError, match=f"publish_sync {error}"):
                await asyncio.to_thread(ctx.publish_sync, Late.lines, "a")
            with pytest.raises(UsageError, match=f"close_stream_sync {error}"):
                await asyncio.to_thread(ctx.close_stream_sync, Late.lines)
            ctx.progress(1)
        assert await read(worker, ref, Late.lines) == []


class Checkpointed(Machine[None, None]):
    lines = Stream("lines", int)

    @step(checkpoint=int)
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        await ctx.publish(self.lines, 1)
        await ctx.checkpoint(1)
        await ctx.publish(self.lines, 2)
        return Done()


@pytest.mark.clause("STR-4")
async def test_items_before_a_checkpoint_are_stored_before_it(durable_dsn: str) -> None:
    with Wire(durable_dsn) as wire:
        async with Worker([Checkpointed], dsn=wire.dsn, settings=CALM) as worker:
            ref = await worker.insert(Checkpointed)
            await worker.wait(ref, timeout=PATIENCE)
    statements = [name for name in wire.sent if name in ("append_items", "checkpoint")]
    assert statements.index("append_items") < statements.index("checkpoint")


class Unkept(Machine[int, None], keep=False):
    numbers = NUMBERS

    @step
    async def count(self, ctx: Context[int]) -> Outcome[None]:
        for number in range(ctx.state):
            await ctx.publish(self.numbers, number)
        return Done()


async def test_reader_of_an_unkept_instance_reads_it_to_the_end(durable_dsn: str, db: Any) -> None:
    async with Worker([Unkept], dsn=durable_dsn, settings=CALM) as worker:
        async with asyncio.TaskGroup() as group:
            refs = [await worker.insert(Unkept, 3000) for _ in range(3)]
            tasks = [group.create_task(read(worker, ref)) for ref in refs]
        assert [values(task.result()) for task in tasks] == [list(range(3000))] * 3
    assert await db.fetchval("select count(*) from gen_durable.gen_durable") == 0
    assert await db.fetchval("select count(*) from gen_durable.stream_items") == 0


@pytest.mark.clause("STR-11")
async def test_unkept_instance_without_a_reader_leaves_no_items(durable_dsn: str, db: Any) -> None:
    async with Worker([Unkept], dsn=durable_dsn, settings=CALM) as worker:
        await worker.insert(Unkept, 10)
        await holds(db, "select count(*) = 0 from gen_durable.gen_durable")
        await holds(db, "select count(*) = 0 from gen_durable.stream_items")


class Wrong(Machine[str | int, None]):
    numbers = NUMBERS

    @step
    async def publish(self, ctx: Context[str | int]) -> Outcome[None]:
        match ctx.state:
            case "sync":
                ctx.publish_sync(self.numbers, 1)
            case "close":
                ctx.close_stream_sync(self.numbers)
            case "name":
                await ctx.publish("numbers", ctx.state)
            case "other type":
                await ctx.publish(Stream("numbers", str), ctx.state)
        stream: Any = self.numbers if ctx.state == "x" else ctx.state
        await ctx.publish(stream, ctx.state)
        return Done()


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("x", "an item of stream 'numbers' cannot be stored as int: it is of type str"),
        ("name", "an item of stream 'numbers' cannot be stored as int: it is of type str"),
        ("other type", "an item of stream 'numbers' cannot be stored as int: it is of type str"),
        (7, "a value of type int is not a stream; give a declared Stream or its name"),
        ("", "the name of a stream"),
        ("sync", "ctx.publish_sync would block the event loop; in an `async def` step, use ctx.publish"),
        (
            "close",
            "ctx.close_stream_sync would block the event loop; in an `async def` step, use ctx.close_stream",
        ),
    ],
)
async def test_wrong_publishes_fail_the_step(durable_dsn: str, state: Any, error: str) -> None:
    async with Worker([Wrong], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Wrong, state, max_attempts=1)
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert error in str(ended.last_error), ended.last_error


async def test_drain_stores_the_items_of_steps_that_finish(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn) as client:
        patient = msgspec.structs.replace(CALM, drain_timeout=PATIENCE)
        async with Worker([OnLoop], dsn=durable_dsn, settings=patient) as worker:
            ref = await worker.insert(OnLoop, Count(200, pause=0.002))
            async for _ in worker.stream(ref, NUMBERS):
                break
        assert await status(client, ref) == "done"
        assert values(await read(client, ref)) == list(range(1, 201))


class Restless(Machine[None, None]):
    """Leaves a thread behind that never stops publishing."""

    numbers = NUMBERS
    stopped = threading.Event()

    @step(timeout=timedelta(milliseconds=200))
    def run(self, ctx: Context[None]) -> Outcome[None]:
        while not self.stopped.is_set():
            ctx.publish_sync(self.numbers, 1)
        return Done()

    def handle(self, error: Exception, ctx: Context[None]) -> Outcome[None]:
        return Stop(type(error).__name__)


@pytest.mark.clause("STR-4")
async def test_thread_left_behind_that_publishes_does_not_delay_the_outcome(durable_dsn: str) -> None:
    Restless.stopped.clear()
    async with Worker([Restless], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Restless)
        try:
            ended = await worker.wait(ref, timeout=PATIENCE)
        finally:
            Restless.stopped.set()
    assert ended.last_error == "StepTimeoutError"


async def test_interrupted_step_keeps_its_items(durable_dsn: str) -> None:
    class Long(Machine[None, None]):
        lines = Stream("lines", str)

        @step(interrupt=True)
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            await ctx.publish(self.lines, "a")
            await asyncio.sleep(3600)
            return Done()

    async with Worker([Long], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Long)
        async for item in worker.stream(ref, Long.lines):
            assert item.value == "a"
            break
        await worker.cancel(ref)
        assert (await worker.wait(ref, timeout=PATIENCE)).status == "cancelled"
        assert values(await read(worker, ref, Long.lines)) == ["a"]
