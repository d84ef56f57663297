"""Progress: what a step tells, clients read about a second later."""

from __future__ import annotations

import asyncio
import math
import re
import threading
import time
from pathlib import Path
from typing import Any

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
    Progress,
    Stop,
    Worker,
    step,
)
from gen_durable._db import step_data
from gen_durable._db.failures import StatementError
from gen_durable.errors import UsageError
from gen_durable.telemetry import ProgressStored
from gen_durable.testing import Harness, context
from tests.engine.step_data.crawler import (
    PAGES,
    Crawl,
    InProcess,
    InThread,
    OnLoop,
)
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE, Events, happens, holds
from tests.support.worker_process import program

STORED = "select progress ->> 'done' = $1 from gen_durable.gen_durable"


class Counts(Machine[str, Any]):
    """Tells its progress, then does what its state says."""

    @step
    async def first(self, ctx: Context[str]) -> Outcome[Any]:
        for number in range(1, 4):
            ctx.progress(number, 3, f"number {number}")
        match ctx.state:
            case "next":
                return Next(self.second)
            case "stop" if ctx.last_checkpoint is None:
                await ctx.checkpoint("stopped")
                return Stop("once")
            case _:
                return Done()

    @step
    async def second(self, ctx: Context[str]) -> Outcome[Any]:
        return Stop("second")


@pytest.mark.clause("PROG-1")
@pytest.mark.parametrize("machine", [OnLoop, InThread, InProcess])
async def test_client_reads_the_progress_of_a_running_step(
    durable_dsn: str, db: Any, tmp_path: Path, machine: type[Machine[Crawl, int]]
) -> None:
    pages = tmp_path / "pages"
    arguments = ("tests.engine.step_data.crawl_worker", durable_dsn, msgspec.json.encode(FAST).decode())
    async with AsyncClient(durable_dsn, settings=FAST) as client:
        ref = await client.insert(machine, Crawl(str(pages), waits_at=12))
        async with program(*arguments) as first:
            await holds(db, STORED, "11")
            running = await client.get(ref)
            assert running is not None
            assert running.progress is not None
            assert (running.progress.done, running.progress.total) == (11, PAGES)
            assert str(running.progress) == "11 of 20 (55%): page 11"
            assert running.progress.at is not None
            assert running.progress.at >= running.inserted_at
            await first.kill()
        async with program(*arguments):
            ended = await client.wait(ref, timeout=PATIENCE)
    assert (ended.result, ended.progress) == (PAGES, None)


@pytest.mark.clause("PROG-2")
def test_next_step_starts_without_progress(durable: Harness) -> None:
    ref = durable.insert(Counts, "next")
    durable.drain()
    assert durable.assert_failed(ref, match="second").progress is None


@pytest.mark.clause("PROG-2")
def test_failed_instance_keeps_its_progress_until_done(durable: Harness) -> None:
    ref = durable.insert(Counts, "stop")
    durable.drain()
    progress = durable.assert_failed(ref).progress
    assert progress is not None
    assert (progress.done, progress.total, progress.message) == (3, 3, "number 3")
    durable.retry(ref)
    durable.drain()
    durable.assert_done(ref)
    found = durable.get(ref)
    assert found is not None
    assert found.progress is None


@pytest.mark.clause("PROG-3")
async def test_many_reports_are_one_statement_per_second(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    store = step_data.progress

    def counted(reports: Any) -> Any:
        batches.append(len(reports))
        return store(reports)

    class Talks(Machine[None, None]):
        @step
        async def talk(self, ctx: Context[None]) -> Outcome[None]:
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                for number in range(1000):
                    ctx.progress(number)
                await asyncio.sleep(0.01)
            return Done()

    monkeypatch.setattr(step_data, "progress", counted)
    async with Worker([Talks], dsn=durable_dsn, settings=CALM) as worker:
        refs = [await worker.insert(Talks, None) for _ in range(5)]
        await worker.wait_all(refs, timeout=PATIENCE)
    assert 1 <= len(batches) <= 4
    assert max(batches) == 5


@pytest.mark.clause("PROG-3")
async def test_step_without_progress_runs_no_statement(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(reports: Any) -> Any:
        raise AssertionError(reports)

    class Quiet(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            await asyncio.sleep(1.5)
            return Done()

    monkeypatch.setattr(step_data, "progress", fail)
    async with Worker([Quiet], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(Quiet, None), timeout=PATIENCE)
    assert ended.status == "done"


class Parks(Machine[float, None]):
    """Tells one number, and waits."""

    may_end: asyncio.Event

    @step
    async def run(self, ctx: Context[float]) -> Outcome[None]:
        ctx.progress(ctx.state)
        await self.may_end.wait()
        return Done()


@pytest.mark.clause("PROG-4")
async def test_progress_of_a_locked_row_is_stored_later(durable_dsn: str, db: Any) -> None:
    machine = Parks()
    machine.may_end = asyncio.Event()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        async with db.transaction():
            # Not before its pick.
            locked = await worker.insert(Parks, 7)
            await holds(
                db, "select status = 'executing' from gen_durable.gen_durable where id = $1", locked.id
            )
            await db.execute("select from gen_durable.gen_durable where id = $1 for update", locked.id)
            free = await worker.insert(Parks, 8)
            await holds(db, "select progress is not null from gen_durable.gen_durable where id = $1", free.id)
        await holds(db, "select progress is not null from gen_durable.gen_durable where id = $1", locked.id)
        await events.wait(ProgressStored, count=2)
        machine.may_end.set()
        await worker.wait_all([locked, free], timeout=PATIENCE)


@pytest.mark.clause("PROG-4")
async def test_failing_writes_of_progress_do_not_cost_a_lease(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(reports: Any) -> Any:
        raise StatementError("42501", "permission denied")

    monkeypatch.setattr(step_data, "progress", fail)
    machine = Parks()
    machine.may_end = asyncio.Event()
    async with Worker([machine], dsn=durable_dsn, settings=FAST) as worker:
        ref = await worker.insert(Parks, 7)
        await asyncio.sleep(3)  # three leases
        machine.may_end.set()
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert (ended.status, ended.attempt) == ("done", 0)
    lines = [record.getMessage() for record in caplog.records if "progress" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("progress not stored: permission denied")


@pytest.mark.clause("PROG-4")
async def test_hanging_write_of_progress_does_not_cost_a_lease(durable_dsn: str, db: Any) -> None:
    machine = Parks()
    machine.may_end = asyncio.Event()
    # Every write of progress sleeps for three leases.
    await db.execute(
        """
        create function gen_durable.hang() returns trigger language plpgsql as
        $$ begin perform pg_sleep(3); return new; end $$;
        create trigger hang before update of progress on gen_durable.gen_durable for each row
        when (new.progress is not null) execute function gen_durable.hang()"""
    )
    async with Worker([machine], dsn=durable_dsn, settings=FAST) as worker:
        quiet = await worker.insert(Parks, 7)
        await asyncio.sleep(3.5)
        machine.may_end.set()
        ended = await worker.wait(quiet, timeout=PATIENCE)
    assert (ended.status, ended.attempt) == ("done", 0)


async def test_blocked_event_loop_does_not_delay_progress(durable_dsn: str, db: Any) -> None:
    class Blocks(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            ctx.progress(1, 2)
            while not may_end.is_set():
                time.sleep(0.01)
            return Done()

    may_end = threading.Event()

    def look() -> None:
        with Client(durable_dsn) as client:
            until = time.monotonic() + PATIENCE.total_seconds()
            while time.monotonic() < until:
                found = client.get(ids[0])
                if found is not None and found.progress is not None:
                    seen.append(found.progress)
                    break
                time.sleep(0.05)
        may_end.set()

    ids: list[int] = []
    seen: list[Progress] = []
    async with Worker([Blocks], dsn=durable_dsn, settings=CALM) as worker:
        ids.append((await worker.insert(Blocks, None)).id)
        thread = threading.Thread(target=look)
        thread.start()
        await worker.wait(ids[0], timeout=PATIENCE)
        thread.join()
    assert [progress.done for progress in seen] == [1]


def test_message_with_characters_that_postgresql_refuses_is_stored(durable: Harness) -> None:
    class Odd(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            ctx.progress(2**63 - 1, 0.5, "a\0b\ud800c" + "x" * 2000)
            return Stop("look")

    durable.use(Odd)
    ref = durable.insert(Odd, None)
    durable.drain()
    progress = durable.assert_failed(ref).progress
    assert progress is not None
    assert (len(progress.message), progress.message[:6]) == (1000, "a\ufffdb?cx")
    assert progress.fraction == 1


def test_progress_that_another_program_wrote_is_not_read(durable: Harness, sql: Any) -> None:
    ref = durable.insert(Counts, "stop")
    sql("update gen_durable.gen_durable set progress = '{\"x\": 1}'")
    found = durable.get(ref)
    assert found is not None
    assert found.progress is None


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("12",), "done of ctx.progress is of type str; give a number"),
        ((True,), "done of ctx.progress is of type bool"),
        ((-1,), "done of ctx.progress is -1; give a number of at least 0 and below 2^63"),
        (
            (2**62, 2**63),
            "total of ctx.progress is 9223372036854775808; give a number of at least 0 and below 2^63",
        ),
        ((10**400,), "done of ctx.progress is about 10^400; give"),
        ((-(10**5000),), "done of ctx.progress is about -10^5000; give"),
        ((math.nan,), "done of ctx.progress is nan"),
        ((1, math.inf), "total of ctx.progress is inf"),
        ((1, 2, 3), "message of ctx.progress is of type int; give a text"),
    ],
)
def test_invalid_progress_is_refused(arguments: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)):
        context(None).progress(*arguments)


@pytest.mark.parametrize(
    ("progress", "fraction", "text"),
    [
        (Progress(done=12, total=20), 0.6, "12 of 20 (60%)"),
        (Progress(done=999, total=1000, message="last"), 0.999, "999 of 1,000 (99%): last"),
        (Progress(done=25, total=20), 1, "25 of 20 (100%)"),
        (Progress(done=0, total=0), 1, "0 of 0 (100%)"),
        (Progress(done=0.5), None, "0.5"),
    ],
)
def test_text_and_fraction_of_progress(progress: Progress, fraction: float | None, text: str) -> None:
    assert (progress.fraction, str(progress)) == (fraction, text)


async def test_late_report_of_an_ended_step_is_dropped(durable_dsn: str, db: Any) -> None:
    class Talks(Machine[None, None]):
        @step
        async def first(self, ctx: Context[None]) -> Outcome[None]:
            ctx.progress(1)
            return Next(self.second)

        @step
        async def second(self, ctx: Context[None]) -> Outcome[None]:
            started.set()
            await asyncio.sleep(1.5)
            return Stop("look")

    started = asyncio.Event()
    async with Worker([Talks], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Talks, None)
        await happens(started)
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert ended.progress is None
