"""Checkpoints: what a step has stored, the next attempt at the same step finds."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Await,
    Backoff,
    Client,
    Context,
    Done,
    LeaseLostError,
    Machine,
    Next,
    Outcome,
    Retry,
    Settings,
    Spec,
    Stop,
    Worker,
    step,
)
from gen_durable._db.failures import StatementError
from gen_durable._runtime.step_channel import WorkerChannel
from gen_durable.errors import DecodeError, EncodeError, PayloadTooLargeError, UsageError
from gen_durable.refs import Target
from gen_durable.testing import AsyncHarness, Crash, Harness
from tests.engine.step_data.crawler import (
    MACHINES,
    PAGES,
    Crawl,
    InProcess,
    InThread,
    OnLoop,
    Position,
    count_up,
    crawled,
)
from tests.support.rows import SqlConnection
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE, happens, until_true, wait_ignoring_cancel
from tests.support.worker_process import program

CRAWLS = [OnLoop, InThread, InProcess]


def _stored(durable: Harness, target: Target) -> Any:
    found = durable.get(target)
    assert found is not None
    return found.checkpoint


@pytest.mark.clause("CKPT-1", "CKPT-2")
@pytest.mark.parametrize("machine", CRAWLS)
async def test_crawl_killed_at_page_12_continues_at_page_12(
    durable_dsn: str, tmp_path: Path, machine: type[Machine[Crawl, int]]
) -> None:
    pages = tmp_path / "pages"
    arguments = ("tests.engine.step_data.crawl_worker", durable_dsn, msgspec.json.encode(FAST).decode())
    async with AsyncClient(durable_dsn, settings=FAST) as client:
        ref = await client.insert(machine, Crawl(str(pages), waits_at=12))
        async with program(*arguments) as first:
            await until_true(lambda: (0, 12) in crawled(pages))
            await first.kill()
        async with program(*arguments):
            ended = await client.wait(ref, timeout=PATIENCE)
    assert ended.result == PAGES
    assert crawled(pages) == [(0, page) for page in range(1, 13)] + [(1, page) for page in range(12, 21)]


@pytest.mark.clause("CKPT-1")
async def test_dead_step_process_leaves_its_checkpoint(durable_dsn: str, db: Any, tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    async with Worker(MACHINES, dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(InProcess, Crawl(str(pages), waits_at=3))
        await until_true(lambda: (0, 3) in crawled(pages))
        for process in worker._engine._processes._all:  # type: ignore[union-attr]
            process._process.kill()
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert ended.result == PAGES
    assert [page for attempt, page in crawled(pages) if attempt] == list(range(3, 21))


@pytest.mark.clause("CKPT-2")
def test_retry_keeps_the_checkpoint_and_done_clears_it(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(count_up, 3)
    durable.drain()
    assert durable.assert_done(ref) == 3
    assert sql.columns(ref.id, "checkpoint progress") == (None, None)


class Stages(Machine[str, Any]):
    """Stores a checkpoint in its first step, then does what its state says."""

    @step(checkpoint=int)
    async def first(self, ctx: Context[str]) -> Outcome[Any]:
        seen = ctx.last_checkpoint
        await ctx.checkpoint(ctx.attempt + 7)
        match ctx.state:
            case "next":
                return Next(self.second)
            case "await":
                return Await(then=self.second, timeout=timedelta(hours=1))
            case "retry" if seen is None:
                return Retry()
            case "stop" if seen is None:
                return Stop("once")
            case "raise" if seen is None:
                raise RuntimeError("once")
            case _:
                return Done(seen)

    @step
    async def second(self, ctx: Context[str]) -> Outcome[Any]:
        return Done(ctx.last_checkpoint)

    def handle(self, error: Exception, ctx: Context[str]) -> Outcome[Any]:
        return Stop(f"handled at {ctx.last_checkpoint}")


@pytest.mark.clause("CKPT-2")
@pytest.mark.parametrize("way", ["next", "await"])
def test_next_step_starts_without_a_checkpoint(durable: Harness, way: str) -> None:
    ref = durable.insert(Stages, way)
    durable.drain()
    durable.fire_timeouts()
    durable.drain()
    durable.assert_done(ref, None)


@pytest.mark.clause("CKPT-2")
async def test_chained_step_starts_without_a_checkpoint(durable_dsn: str) -> None:
    async with Worker([Stages], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(Stages, "next"), timeout=PATIENCE)
    assert (ended.result, ended.checkpoint) == (None, None)


@pytest.mark.clause("CKPT-2")
def test_failed_instance_keeps_its_checkpoint_for_a_retry(durable: Harness) -> None:
    ref = durable.insert(Stages, "stop")
    durable.drain()
    assert durable.assert_failed(ref).checkpoint == 7
    durable.retry(ref)
    durable.drain()
    durable.assert_done(ref, 7)


@pytest.mark.clause("CKPT-2")
def test_cancelled_instance_keeps_its_checkpoint_for_a_retry(durable: Harness) -> None:
    ref = durable.load(Stages, state="stop", checkpoint=5)
    durable.cancel(ref)
    durable.retry(ref)
    durable.drain()
    durable.assert_done(ref, 5)


@pytest.mark.clause("CKPT-2")
def test_retry_at_a_step_clears_the_checkpoint(durable: Harness) -> None:
    ref = durable.insert(Stages, "stop")
    durable.drain()
    durable.retry(ref, step=Stages.second)
    assert _stored(durable, ref) is None


@pytest.mark.clause("CKPT-2")
def test_edit_clears_the_checkpoint_only_with_a_step(durable: Harness) -> None:
    ref = durable.load(Stages, state="stop", checkpoint=5)
    durable.edit(ref, state="retry")
    assert _stored(durable, ref) == 5
    durable.edit(ref, step=Stages.second)
    assert _stored(durable, ref) is None


def test_fork_starts_without_the_checkpoint(durable: Harness) -> None:
    ref = durable.load(Stages, state="stop", checkpoint=5)
    assert _stored(durable, durable.fork(ref).id) is None


def test_undo_step_starts_without_the_checkpoint(durable: Harness) -> None:
    class Undone(Machine[None, Any]):
        @step(undo="release")
        async def reserve(self, ctx: Context[None]) -> Outcome[Any]:
            return Next(self.charge)

        @step
        async def charge(self, ctx: Context[None]) -> Outcome[Any]:
            await ctx.checkpoint("charged")
            return Stop("declined")

        @step
        async def release(self, ctx: Context[None]) -> Outcome[Any]:
            seen.append(ctx.last_checkpoint)
            return Done()

    seen: list[Any] = []
    durable.use(Undone)
    ref = durable.insert(Undone, None)
    durable.drain()
    durable.assert_failed(ref)
    assert seen == [None]


@pytest.mark.clause("CKPT-3")
def test_handler_sees_the_checkpoint_of_the_failed_attempt(durable: Harness) -> None:
    ref = durable.insert(Stages, "raise")
    durable.drain()
    durable.assert_failed(ref, match="handled at 7")


def test_crash_before_the_commit_leaves_the_checkpoint(durable: Harness) -> None:
    ref = durable.insert(Stages, "done")
    with durable.crash_at(Stages.first), pytest.raises(Crash):
        durable.drain()
    assert _stored(durable, ref) == 7
    durable.drain()
    durable.assert_done(ref, 7)


def test_last_checkpoint_is_a_copy(durable: Harness) -> None:
    class Copies(Machine[None, Any]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[Any]:
            value = {"pages": [1]}
            await ctx.checkpoint(value)
            value["pages"].append(2)
            ctx.last_checkpoint["pages"].append(3)
            return Done(ctx.last_checkpoint)

    durable.use(Copies)
    ref = durable.insert(Copies, None)
    durable.drain()
    durable.assert_done(ref, {"pages": [1]})


def test_checkpoint_of_another_type_is_refused(durable: Harness) -> None:
    class Stores(Machine[None, Any]):
        @step(checkpoint=int)
        async def run(self, ctx: Context[None]) -> Outcome[Any]:
            await ctx.checkpoint("12")
            return Done()

    durable.use(Stores)
    ref = durable.insert(Stores, None)
    durable.drain()
    failed = durable.assert_failed(ref, match="the checkpoint of Stores 1, step run cannot be stored as int")
    assert failed.checkpoint is None


def test_checkpoint_above_max_payload_is_refused(durable_dsn: str) -> None:
    class Stores(Machine[None, Any]):
        @step(retry=Backoff(on=EncodeError, max_attempts=1))
        async def run(self, ctx: Context[None]) -> Outcome[Any]:
            with pytest.raises(PayloadTooLargeError, match="the checkpoint of Stores"):
                await ctx.checkpoint("x" * 1000)
            return Done("refused")

    with Harness(durable_dsn, settings=Settings(max_payload=500)) as durable:
        durable.use(Stores)
        ref = durable.insert(Stores, None)
        durable.drain()
        durable.assert_done(ref, "refused")


def test_unreadable_checkpoint_fails_only_a_step_that_reads_it(durable: Harness) -> None:
    class Reads(Machine[bool, Any]):
        @step(checkpoint=Position)
        async def run(self, ctx: Context[bool]) -> Outcome[Any]:
            return Done(ctx.last_checkpoint if ctx.state else "not read")

        def handle(self, error: Exception, ctx: Context[bool]) -> Outcome[Any]:
            assert isinstance(error, DecodeError)
            return super().handle(error, ctx)

    reads, ignores = (durable.load(Reads, state=state, checkpoint={"page": "x"}) for state in (True, False))
    durable.drain()
    durable.assert_failed(reads, match="the checkpoint of Reads 1, step run does not match Position")
    durable.assert_done(ignores, "not read")
    assert _stored(durable, reads) == {"page": "x"}


def test_none_is_a_checkpoint_without_a_value(durable: Harness) -> None:
    class Forgets(Machine[None, Any]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[Any]:
            await ctx.checkpoint(1)
            await ctx.checkpoint(None)
            return Done(ctx.last_checkpoint)

    durable.use(Forgets)
    ref = durable.insert(Forgets, None)
    durable.drain()
    durable.assert_done(ref, None)


def test_checkpoint_sync_on_the_event_loop_is_refused(durable: Harness) -> None:
    class Blocks(Machine[None, Any]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[Any]:
            with pytest.raises(
                UsageError, match=r"ctx.checkpoint_sync would block the event loop; in an `async def`"
            ):
                ctx.checkpoint_sync(1)
            return Done()

    durable.use(Blocks)
    ref = durable.insert(Blocks, None)
    durable.drain()
    durable.assert_done(ref)


class Zombie(Machine[None, str]):
    """Stores a checkpoint after its lease was lost."""

    started: asyncio.Event
    may_go_on: asyncio.Event
    handled: list[Exception]
    raised: list[Exception]

    @step
    async def run(self, ctx: Context[None]) -> Outcome[str]:
        if ctx.attempt:
            await ctx.checkpoint("new")
            return Stop("kept")
        self.started.set()
        await wait_ignoring_cancel(self.may_go_on)
        try:
            await ctx.checkpoint("old")
        except LeaseLostError as error:
            self.raised.append(error)
            raise
        return Done("old")

    def handle(self, error: Exception, ctx: Context[None]) -> Outcome[str]:
        self.handled.append(error)
        return Stop(error)


_REAP = """
update gen_durable.gen_durable set status = 'runnable', attempt = attempt + 1, crash_count = crash_count + 1,
       lease_token = null, lease_expires_at = null, locked_by = null, eligible_at = now() where id = $1"""


@pytest.mark.clause("CKPT-4")
async def test_checkpoint_of_a_lost_lease_raises_and_writes_nothing(durable_dsn: str, db: Any) -> None:
    machine = Zombie()
    machine.started, machine.may_go_on = asyncio.Event(), asyncio.Event()
    machine.handled, machine.raised = [], []
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Zombie, None)
        await happens(machine.started)
        await db.execute(_REAP, ref.id)
        assert (await worker.wait(ref, timeout=PATIENCE)).last_error == "kept"
        machine.may_go_on.set()
        await until_true(lambda: bool(machine.raised))
    (raised,) = machine.raised
    assert str(raised).startswith(f"lease lost: Zombie {ref.id}, step run, transition 1; nothing was written")
    assert machine.handled == []
    assert await db.fetchval("select checkpoint #>> '{}' from gen_durable.gen_durable") == "new"


@pytest.mark.clause("CKPT-4")
async def test_checkpoint_after_a_forced_cancel_raises(durable_dsn: str, db: Any) -> None:
    machine = Zombie()
    machine.started, machine.may_go_on = asyncio.Event(), asyncio.Event()
    machine.handled, machine.raised = [], []
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Zombie, None)
        await happens(machine.started)
        await worker.cancel(ref, force=True)
        machine.may_go_on.set()
        await until_true(lambda: bool(machine.raised))
        assert await db.fetchval("select checkpoint from gen_durable.gen_durable") is None


async def test_checkpoint_after_a_cancel_request_is_stored(durable_dsn: str) -> None:
    machine = Zombie()
    machine.started, machine.may_go_on = asyncio.Event(), asyncio.Event()
    machine.handled, machine.raised = [], []
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Zombie, None)
        await happens(machine.started)
        await worker.cancel(ref)
        machine.may_go_on.set()
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert (ended.status, ended.checkpoint) == ("cancelled", "old")


@pytest.mark.clause("CKPT-5")
async def test_checkpoint_waits_for_an_unreachable_database(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outages = 2
    run = WorkerChannel.__init__

    def broken(self: WorkerChannel, registry: Any, bounds: Any, run_plan: Any, *rest: Any) -> None:
        async def fail_first(plan: Any) -> Any:
            nonlocal outages
            if outages:
                outages -= 1
                raise StatementError("57P01", "terminating connection due to administrator command")
            return await run_plan(plan)

        run(self, registry, bounds, fail_first, *rest)

    monkeypatch.setattr(WorkerChannel, "__init__", broken)
    async with Worker([Stages], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(Stages, "done"), timeout=PATIENCE)
    assert (ended.status, outages) == ("done", 0)


@pytest.mark.clause("CKPT-5")
async def test_checkpoints_that_wait_for_locked_rows_delay_no_calls_of_the_worker(
    durable_dsn: str, db: Any
) -> None:
    """They would use up the connections of the worker if each waited on one of them."""

    class Waits(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            started.append(ctx.id)
            await may_go_on.wait()
            await ctx.checkpoint("stored")
            return Stop("look")

    started, may_go_on = list[int](), asyncio.Event()
    async with Worker([Waits], dsn=durable_dsn, settings=CALM) as worker:
        refs = await worker.insert_all([Spec(Waits, None) for _ in range(8)])
        await until_true(lambda: len(started) == len(refs))
        async with db.transaction():
            await db.execute("select from gen_durable.gen_durable for update")
            may_go_on.set()
            await asyncio.sleep(0.3)
            async with asyncio.timeout(5):
                for ref in refs:
                    assert await worker.get(ref) is not None
        ended = await worker.wait_all(refs, timeout=PATIENCE)
    assert {each.checkpoint for each in ended} == {"stored"}


@pytest.mark.clause("CKPT-1")
async def test_last_one_of_concurrent_checkpoints_is_stored(durable_dsn: str, db: Any) -> None:
    class Parts(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            started.set()
            await may_go_on.wait()
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(ctx.checkpoint(number))
                    await asyncio.sleep(0.02)
            seen.append(ctx.last_checkpoint)
            return Stop("look")

    started, may_go_on, seen = asyncio.Event(), asyncio.Event(), list[int]()
    async with Worker([Parts], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Parts, None)
        await happens(started)
        async with db.transaction():
            await db.execute("select from gen_durable.gen_durable where id = $1 for update", ref.id)
            may_go_on.set()
            await asyncio.sleep(0.45)
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert (seen, ended.checkpoint) == ([19], 19)


async def test_closed_worker_ends_the_checkpoints_and_items_of_steps_left_behind(
    durable_dsn: str, db: Any
) -> None:
    class Left(Machine[str, None]):
        @step
        def run(self, ctx: Context[str]) -> Outcome[None]:
            started.append(ctx.id)
            may_go_on.wait(PATIENCE.total_seconds())
            try:
                for number in range(5000):
                    ctx.publish_sync("numbers", number)
                ctx.checkpoint_sync("stored")
            except (LeaseLostError, UsageError) as error:
                raised.append(error)
                raise
            return Done()

    started, raised, may_go_on = list[int](), list[Exception](), threading.Event()
    settings = msgspec.structs.replace(CALM, drain_timeout=timedelta(milliseconds=300))
    before = asyncio.all_tasks()
    async with db.transaction():
        async with Worker([Left], dsn=durable_dsn, settings=settings) as worker:
            await worker.insert(Left, "")
            await until_true(lambda: bool(started))
            await db.execute("select from gen_durable.gen_durable for update")
            may_go_on.set()
            await asyncio.sleep(0.3)
        await until_true(lambda: bool(raised))
        await until_true(lambda: asyncio.all_tasks() == before)


class Background(Machine[None, None]):
    """Leaves its context behind."""

    kept: ClassVar[list[Context[None]]] = []

    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        self.kept.append(ctx)
        return Done()


@pytest.mark.clause("CKPT-6")
async def test_checkpoint_after_the_step_has_ended_raises_a_usage_error(durable_dsn: str) -> None:
    async with Worker([Background], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Background, None)
        found = await worker.wait(ref, timeout=PATIENCE)
        ctx = Background.kept.pop()
        error = f"was called after step 'run' of Background {ref.id} had ended"
        with pytest.raises(UsageError, match=f"ctx.checkpoint {error}"):
            await ctx.checkpoint(1)
        with pytest.raises(UsageError, match=f"ctx.checkpoint_sync {error}"):
            await asyncio.to_thread(ctx.checkpoint_sync, 1)
        assert found.checkpoint is None


async def test_checkpoint_waits_for_a_locked_row(durable_dsn: str, db: Any) -> None:
    class Waits(Machine[None, str]):
        @step
        def run(self, ctx: Context[None]) -> Outcome[str]:
            started.set()
            may_go_on.wait(PATIENCE.total_seconds())
            ctx.checkpoint_sync("stored")
            return Stop("look")

    started, may_go_on = threading.Event(), threading.Event()
    async with Worker([Waits], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Waits, None)
        await until_true(started.is_set)
        async with db.transaction():
            await db.execute("select from gen_durable.gen_durable where id = $1 for update", ref.id)
            may_go_on.set()
            await asyncio.sleep(0.3)
            found = await worker.get(ref)
            assert found is not None
            assert (found.status, found.checkpoint) == ("executing", None)
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert ended.checkpoint == "stored"


async def test_clients_show_the_checkpoint(durable_dsn: str, async_durable: AsyncHarness) -> None:
    ref = await async_durable.insert(Stages, "stop")
    await async_durable.drain()
    with Client(durable_dsn) as client:
        found = client.get(ref)
        assert found is not None
        assert found.checkpoint == 7
        assert [one.checkpoint for one in client.list(Stages)] == [7]
