"""A worker that stops because of an engine error raises where the application uses it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from gen_durable import Worker, WorkerStoppedError
from gen_durable._runtime.override_poller import OverridePoller
from tests.support.machines import Plain
from tests.support.settings import AN_HOUR, CALM


class BugError(Exception):
    pass


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set this event to make the override poller fail."""
    fails = asyncio.Event()

    async def tick(self: OverridePoller) -> None:
        await fails.wait()
        raise BugError("the poller is broken")

    monkeypatch.setattr(OverridePoller, "tick", tick)
    return fails


@pytest.mark.clause("DEP-4")
async def test_engine_error_ends_the_async_with_block(
    durable_dsn: str, broken: asyncio.Event, caplog: Any
) -> None:
    with pytest.raises(WorkerStoppedError, match=r"stopped: BugError: the poller is broken") as stopped:
        async with Worker([Plain], dsn=durable_dsn, settings=CALM):
            broken.set()
            await asyncio.sleep(30)
    assert isinstance(stopped.value.__cause__, BugError)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
    assert caplog.text.count("the poller is broken") >= 1


async def test_callers_that_wait_get_the_engine_error(durable_dsn: str, broken: asyncio.Event) -> None:
    async with Worker([Plain], dsn=durable_dsn, settings=CALM) as client:
        instance = await client.insert(Plain, 1, schedule_in=AN_HOUR)
    found: list[BaseException] = []

    async def wait(worker: Worker) -> None:
        try:
            await worker.wait(instance)
        except WorkerStoppedError as error:
            found.append(error)

    with pytest.raises(WorkerStoppedError):
        async with Worker([Plain], dsn=durable_dsn, settings=CALM) as worker:
            waiting = asyncio.get_running_loop().create_task(wait(worker))
            await asyncio.sleep(0.1)
            broken.set()
            await asyncio.sleep(30)
    await waiting
    assert len(found) == 1


async def test_block_that_ended_before_the_error_arrived_raises_it(
    durable_dsn: str, broken: asyncio.Event
) -> None:
    with pytest.raises(WorkerStoppedError):
        async with Worker([Plain], dsn=durable_dsn, settings=CALM) as worker:
            assert worker._engine is not None
            worker._engine._fail(BugError("at the last moment"))
    await asyncio.sleep(0)  # no cancellation is pending


async def test_block_that_swallows_the_cancellation_raises_at_its_end(
    durable_dsn: str, broken: asyncio.Event
) -> None:
    with pytest.raises(WorkerStoppedError):
        async with Worker([Plain], dsn=durable_dsn, settings=CALM):
            broken.set()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(30)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_error_of_the_block_is_raised_with_a_note(durable_dsn: str, broken: asyncio.Event) -> None:
    with pytest.raises(KeyError) as raised:
        async with Worker([Plain], dsn=durable_dsn, settings=CALM):
            broken.set()
            try:
                await asyncio.sleep(30)
            finally:
                raise KeyError("of the application")
    assert "BugError: the poller is broken" in raised.value.__notes__[0]


async def test_outer_cancellation_is_not_hidden(durable_dsn: str, broken: asyncio.Event) -> None:
    async def work() -> None:
        async with Worker([Plain], dsn=durable_dsn, settings=CALM) as worker:
            entered.set()
            try:
                await asyncio.sleep(30)
            finally:
                # The engine fails while the block handles a cancellation from outside.
                assert worker._engine is not None
                worker._engine._fail(BugError("meanwhile"))

    entered = asyncio.Event()
    task = asyncio.get_running_loop().create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_worker_can_be_opened_again_after_it_stopped(durable_dsn: str, broken: asyncio.Event) -> None:
    worker = Worker([Plain], dsn=durable_dsn, settings=CALM)
    with pytest.raises(WorkerStoppedError):
        async with worker:
            broken.set()
            await asyncio.sleep(30)
    broken.clear()
    async with worker:
        instance = await worker.insert(Plain, 1)
        assert (await worker.wait(instance)).result == 1


def test_worker_in_a_thread_raises_at_the_end_of_the_block(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tick(self: OverridePoller) -> None:
        raise BugError("the poller is broken")

    monkeypatch.setattr(OverridePoller, "tick", tick)
    worker = Worker([Plain], dsn=durable_dsn, settings=CALM)
    with pytest.raises(WorkerStoppedError, match="the poller is broken"), worker.in_thread():
        pass


def test_run_raises(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tick(self: OverridePoller) -> None:
        raise BugError("the poller is broken")

    monkeypatch.setattr(OverridePoller, "tick", tick)
    with pytest.raises(WorkerStoppedError, match="the poller is broken"):
        Worker([Plain], dsn=durable_dsn, settings=CALM).run()
