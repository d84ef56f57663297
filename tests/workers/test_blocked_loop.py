"""A step that blocks the event loop is found, named with its stack, and shown to other processes."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import signal
import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gen_durable import AsyncClient, Client, Context, Done, Machine, Outcome, Sql, Worker, step
from gen_durable._runtime import loop_watch
from gen_durable.reasons import LoopBlocked as BlockedReason
from gen_durable.reasons import Waiting
from gen_durable.telemetry import LoopBlocked
from tests.support.crashing_workers import Hog
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events, holds
from tests.support.worker_process import worker_process

BLOCKED = "select blocked ->> 'step' = $1 from gen_durable.workers"
QUICK = msgspec.structs.replace(CALM, loop_blocked_after=timedelta(milliseconds=200))


class Blocks(Machine[float, None]):
    """Blocks the event loop for as many seconds as its state says, or waits politely."""

    @step(initial=True)
    async def block(self, ctx: Context[float]) -> Outcome[None]:
        _compute_without_await(ctx.state)
        return Done()

    @step
    async def block_again_and_again(self, ctx: Context[float]) -> Outcome[None]:
        for _ in range(3):
            _compute_without_await(ctx.state)
            await asyncio.sleep(0.5)
        return Done()

    @step
    async def wait(self, ctx: Context[float]) -> Outcome[None]:
        await asyncio.sleep(ctx.state)
        return Done()

    @step
    def in_thread(self, ctx: Context[float]) -> Outcome[None]:
        time.sleep(ctx.state)
        return Done()

    @step
    async def in_its_own_task(self, ctx: Context[float]) -> Outcome[None]:
        await asyncio.create_task(_block(ctx.state))
        return Done()

    @step
    async def gathered(self, ctx: Context[float]) -> Outcome[None]:
        await asyncio.gather(_block(ctx.state), asyncio.sleep(0))
        return Done()

    @step
    async def in_a_task_group(self, ctx: Context[float]) -> Outcome[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(_block(ctx.state))
        return Done()

    @step
    async def holds_the_lock(self, ctx: Context[float]) -> Outcome[None]:
        _sum(int(ctx.state))
        return Done()


def _sum(count: int) -> None:
    sum(range(count))


def _compute_without_await(seconds: float) -> None:
    time.sleep(seconds)


async def _block(seconds: float) -> None:
    _compute_without_await(seconds)


def _lines(caplog: pytest.LogCaptureFixture, start: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.getMessage().startswith(start)]


@pytest.mark.clause("BLOCK-1")
async def test_step_that_blocks_the_loop_is_logged_once_with_its_stack(
    durable_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with Worker([Blocks], dsn=durable_dsn, settings=QUICK) as worker:
        events = Events(worker)
        waiting = await worker.insert(Blocks, 3, step=Blocks.wait)
        blocking = await worker.insert(Blocks, 1.5)
        await worker.wait_all([waiting, blocking], timeout=PATIENCE)
        event = await events.wait(LoopBlocked)
    (line,) = _lines(caplog, "event loop blocked")
    assert line.startswith(f"event loop blocked: Blocks {blocking.id}, step block, for ")
    assert f"(worker {worker.name})" in line
    assert line.endswith("time.sleep(seconds)")
    assert "in block\n    _compute_without_await(ctx.state)" in line
    assert "_runtime" not in line
    (end,) = _lines(caplog, "event loop free")
    assert f" by Blocks {blocking.id}, step block (worker {worker.name})" in end
    assert (event.id, event.fsm, event.step) == (blocking.id, "Blocks", "block")
    assert timedelta(seconds=1) < event.duration < PATIENCE


@pytest.mark.clause("BLOCK-4")
async def test_step_of_many_instances_that_blocks_the_loop_is_logged_once(
    durable_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with Worker([Blocks], dsn=durable_dsn, settings=QUICK) as worker:
        events = Events(worker)
        for _ in range(2):
            blocking = await worker.insert(Blocks, 0.7, step=Blocks.block_again_and_again)
            await worker.wait(blocking, timeout=PATIENCE)
        await events.wait(LoopBlocked, count=6)
        assert len(_lines(caplog, "event loop blocked")) == 1
        assert len(_lines(caplog, "event loop free")) == 1
        await worker.wait(await worker.insert(Blocks, 0.7), timeout=PATIENCE)
        await events.wait(LoopBlocked, count=7)
    assert len(_lines(caplog, "event loop blocked")) == 2


@pytest.mark.clause("BLOCK-4")
async def test_step_that_blocks_the_loop_much_longer_is_logged_again(
    durable_dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "_LONGER", 4)
    async with Worker([Blocks], dsn=durable_dsn, settings=QUICK) as worker:
        events = Events(worker)
        refs = []
        for number, seconds in enumerate((0.8, 0.8, 5), 1):
            refs.append(await worker.insert(Blocks, seconds))
            await worker.wait(refs[-1], timeout=PATIENCE)
            await events.wait(LoopBlocked, count=number)
    first, second = _lines(caplog, "event loop blocked: Blocks")
    assert f"Blocks {refs[0].id}, step block" in first
    assert f"Blocks {refs[2].id}, step block" in second


async def _hold_lock(worker: Worker, caplog: pytest.LogCaptureFixture) -> str:
    """Hold the interpreter lock until a stack is logged. On a loaded machine, a step may end before its stack is read."""
    events = Events(worker)
    async with asyncio.timeout(PATIENCE.total_seconds()):
        for count in itertools.count(1):
            ref = await worker.insert(Blocks, 6e7, step=Blocks.holds_the_lock)
            await worker.wait(ref)
            event = await events.wait(LoopBlocked, lambda one: one.id is not None, count=count)
            assert (event.id, event.step) == (ref.id, "holds_the_lock")
            assert timedelta(milliseconds=200) < event.duration < PATIENCE
            line = _lines(caplog, "event loop blocked: Blocks")[-1]
            assert "It held the interpreter lock" in line
            if "\n" in line:
                return line
            assert "it ended before its stack was read" in line
    raise AssertionError


@pytest.mark.clause("BLOCK-5")
async def test_step_that_holds_the_interpreter_lock_is_logged(
    durable_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker([Blocks], dsn=durable_dsn, settings=QUICK) as worker:
        line = await _hold_lock(worker, caplog)
    assert re.match(r"event loop blocked: Blocks \d+, step holds_the_lock, for ", line)
    assert "in holds_the_lock\n    _sum(int(ctx.state))" in line
    assert line.endswith("in _sum\n    sum(range(count))")


@pytest.mark.clause("BLOCK-5")
async def test_step_that_ended_before_its_stack_was_read_is_logged_again_with_one(
    durable_dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Worker([Blocks], dsn=durable_dsn, settings=QUICK) as worker:
        events = Events(worker)
        ref = await worker.insert(Blocks, 6e7, step=Blocks.holds_the_lock)
        with monkeypatch.context() as patched:
            # Another thread got the interpreter lock before the heartbeat, and the step ended meanwhile.
            ended = SimpleNamespace(id=ref.id, fsm="Blocks", version=1, step="holds_the_lock")
            patched.setattr(loop_watch, "_step_of", lambda *args, **options: None)
            patched.setattr(loop_watch.LoopWatch, "_take_ended", lambda self: iter([ended]))
            await worker.wait(ref, timeout=PATIENCE)
            await events.wait(LoopBlocked)
        (without_stack,) = _lines(caplog, "event loop blocked: Blocks")
        assert "it ended before its stack was read" in without_stack
        assert "\n" not in without_stack
        await _hold_lock(worker, caplog)
        ref = await worker.insert(Blocks, 6e7, step=Blocks.holds_the_lock)
        await worker.wait(ref, timeout=PATIENCE)
    assert len(_lines(caplog, "event loop blocked: Blocks")) == 2


@pytest.mark.clause("BLOCK-5")
async def test_suspended_process_is_not_logged_as_blocked(durable_dsn: str) -> None:
    settings = msgspec.structs.replace(CALM, loop_blocked_after=timedelta(seconds=2))
    async with AsyncClient(durable_dsn) as client, worker_process(durable_dsn, settings) as process:
        ref = await client.insert(Hog, 1.0, step=Hog.compute)
        await process.wait_for(begun="compute")
        process.send(signal.SIGSTOP)
        await asyncio.sleep(3)
        process.send(signal.SIGCONT)
        await client.wait(ref, timeout=PATIENCE)
        process.send(signal.SIGTERM)
        await process.ends()
        assert not [line for line in process.log if "event loop blocked" in line]
        assert [line for line in process.log if "worker started" in line]


@pytest.mark.clause("BLOCK-1")
async def test_steps_that_do_not_block_the_loop_are_not_logged(
    durable_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker([Blocks], dsn=durable_dsn, settings=QUICK) as worker:
        refs = [await worker.insert(Blocks, 1, step=step) for step in (Blocks.wait, Blocks.in_thread)]
        await worker.wait_all(refs, timeout=PATIENCE)
    assert not _lines(caplog, "event loop blocked: Blocks")


@pytest.mark.parametrize("name", ["in_its_own_task", "gathered", "in_a_task_group"])
async def test_task_of_a_step_that_blocks_the_loop_names_the_step(
    name: str, durable_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker([Blocks], dsn=durable_dsn, settings=QUICK) as worker:
        ref = await worker.insert(Blocks, 1, step=name)
        await worker.wait(ref, timeout=PATIENCE)
    (line,) = _lines(caplog, "event loop blocked")
    assert line.startswith(f"event loop blocked: Blocks {ref.id}, step {name}, for ")


async def test_other_code_that_blocks_the_loop_is_logged(
    durable_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker([Blocks], dsn=durable_dsn, settings=QUICK):
        _compute_without_await(1)
    (line,) = _lines(caplog, "event loop blocked")
    assert line.startswith("event loop blocked: by code outside of steps, for ")


async def test_zero_turns_the_measurement_off(durable_dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    off = msgspec.structs.replace(QUICK, loop_blocked_after=timedelta(0))
    async with Worker([Blocks], dsn=durable_dsn, settings=off) as worker:
        await worker.wait(await worker.insert(Blocks, 1.5), timeout=PATIENCE)
    assert not _lines(caplog, "event loop blocked")


@pytest.mark.clause("BLOCK-2")
async def test_other_processes_see_the_step_that_blocks_the_loop(durable_dsn: str, db: Any) -> None:
    settings = msgspec.structs.replace(CALM, loop_blocked_after=timedelta(milliseconds=500))
    async with AsyncClient(durable_dsn) as client, worker_process(durable_dsn, settings) as process:
        ref = await client.insert(Hog, 5.0)
        await process.wait_for(begun="block")
        await holds(db, BLOCKED, "block")
        explained = await client.explain(ref)
        (reason,) = [each for each in explained.reasons if isinstance(each, BlockedReason)]
        blocked = reason.blocked
        assert (blocked.machine, blocked.id, blocked.step) == ("Hog", ref.id, "block")
        assert f"event loop of worker {reason.worker} blocked since " in str(reason)
        (worker,) = await client.workers()
        assert worker.blocked is not None
        assert str(worker.blocked).endswith(f" by Hog {ref.id}, step block")
        (finding,) = [each for each in await client.doctor() if each.code == "worker.blocked"]
        assert finding.what == f"the event loop of worker {worker.name} has been {worker.blocked}"
        await client.wait(ref, timeout=PATIENCE)
        await holds(db, "select blocked is null from gen_durable.workers")


@pytest.mark.clause("BLOCK-3")
async def test_worker_with_a_blocked_loop_stays_live(durable_dsn: str, db: Any) -> None:
    settings = msgspec.structs.replace(QUICK, heartbeat=timedelta(milliseconds=500))
    async with AsyncClient(durable_dsn) as client, worker_process(durable_dsn, settings) as process:
        blocking = await client.insert(Hog, 8.0)
        await process.wait_for(begun="block")
        waiting = await client.insert(Hog, 0.0)
        # A registration of this worker expires after 3 seconds.
        await holds(
            db, "select (blocked ->> 'since')::timestamptz < now() - interval '5 s' from gen_durable.workers"
        )
        (worker,) = await client.workers()
        assert worker.is_live
        assert worker.blocked is not None
        assert [each.code for each in await client.doctor()] == ["worker.blocked"]
        explained = await client.explain(waiting)
        assert [type(each) for each in explained.reasons] == [BlockedReason, Waiting]
        assert f" by Hog {blocking.id}, step block" in str(explained.reasons[0])
        assert "no recent heartbeat" not in str(await client.explain(blocking))
        await client.wait_all([blocking, waiting], timeout=PATIENCE)


async def test_blocked_loop_is_found_while_leases_are_renewed_and_progress_stored(durable_dsn: str) -> None:
    class Mixed(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            ctx.progress(1, 2)
            while not may_end.is_set():
                time.sleep(0.01)
            return Done(effect=Sql("select 1"))

    def look() -> None:
        until = time.monotonic() + PATIENCE.total_seconds()
        with Client(durable_dsn) as client:
            while time.monotonic() < until and not seen:
                seen.extend(each for each in client.workers() if each.blocked is not None)
                time.sleep(0.05)
        may_end.set()

    may_end, seen = threading.Event(), list[Any]()
    async with Worker([Mixed], dsn=durable_dsn, settings=QUICK) as worker:
        ref = await worker.insert(Mixed, None)
        thread = threading.Thread(target=look)
        thread.start()
        ended = await worker.wait(ref, timeout=PATIENCE)
        thread.join()
    assert ended.status == "done"
    assert seen
