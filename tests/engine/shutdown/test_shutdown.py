"""Shutdown: interrupted steps go back to the queue, at no attempt and no crash."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gen_durable import AsyncClient, Context, Done, Machine, Next, Outcome, Worker, step
from gen_durable.telemetry import SchedulerDrain
from tests.support.crashing_workers import Sleeper
from tests.support.rows import has_no_lease, row_of
from tests.support.settings import CALM
from tests.support.waiting import Events, happens
from tests.support.worker_process import worker_process

NEVER = "/nonexistent/go"
# Long leases: rows that come back early were released.
BRIEF = msgspec.structs.replace(CALM, drain_timeout=timedelta(milliseconds=300))
PATIENT = msgspec.structs.replace(CALM, drain_timeout=timedelta(seconds=30))

both_signals = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda one: one.name)


async def _worn(client: AsyncClient, db: Any, step: str, go: str = NEVER) -> int:
    """An instance with two attempts and one crash."""
    ref = await client.insert(Sleeper, go, step=step)
    await db.execute("update gen_durable.gen_durable set attempt = 2, crash_count = 1 where id = $1", ref.id)
    return ref.id


def _is_given_back(row: dict[str, Any]) -> bool:
    assert (row["status"], row["attempt"], row["crash_count"], row["step_seq"]) == ("runnable", 2, 1, 0)
    assert row["eligible_at"] == row["inserted_at"], "it keeps its place in the queue"
    return has_no_lease(row)


@pytest.mark.clause("DRN-2")
@both_signals
async def test_step_longer_than_the_drain_is_released_at_no_cost(
    durable_dsn: str, db: Any, number: signal.Signals
) -> None:
    async with (
        AsyncClient(durable_dsn, settings=CALM) as client,
        worker_process(durable_dsn, BRIEF) as process,
    ):
        ids = {name: await _worn(client, db, name) for name in ("sleep", "block")}
        for _ in ids:
            await process.wait_for(begun=...)
        stopped_at = time.monotonic()
        process.send(number)
        assert await process.ends() == 0
        assert time.monotonic() - stopped_at < 10, "a thread does not hold up the exit"
    assert {name: _is_given_back(await row_of(db, id)) for name, id in ids.items()} == dict.fromkeys(
        ids, True
    )
    (drain,) = [line for line in process.lines if line.get("event") == "scheduler.drain"]
    assert (drain["released"], drain["in_flight"], drain["queue"]) == (2, 2, "default")
    assert "ended" in process.lines[-1]
    assert not any("handled" in line for line in process.lines)
    message = "stopping: 2 steps are running, waiting up to 300ms; a second signal skips the wait"
    assert process.log[-1].endswith(message)


async def test_step_that_ignores_cancellation_does_not_delay_the_exit(durable_dsn: str, db: Any) -> None:
    async with (
        AsyncClient(durable_dsn, settings=CALM) as client,
        worker_process(durable_dsn, BRIEF) as process,
    ):
        id = await _worn(client, db, "ignore")
        await process.wait_for(begun="ignore")
        process.send(signal.SIGTERM)
        await process.wait_for(event="scheduler.drain", released=1)
        assert _is_given_back(await row_of(db, id))
        async with asyncio.timeout(5):
            assert await process.ends() == 0


@both_signals
async def test_step_that_ends_within_the_drain_is_committed(
    durable_dsn: str, db: Any, tmp_path: Path, number: signal.Signals
) -> None:
    go = tmp_path / "go"
    async with (
        AsyncClient(durable_dsn, settings=CALM) as client,
        worker_process(durable_dsn, PATIENT) as process,
    ):
        id = await _worn(client, db, "sleep", str(go))
        await process.wait_for(begun="sleep")
        process.send(number)
        go.touch()
        assert await process.ends() == 0
    row = await row_of(db, id)
    assert (row["status"], row["step_seq"]) == ("done", 1)


@both_signals
@pytest.mark.clause("DRN-4")
async def test_second_signal_skips_the_drain(durable_dsn: str, db: Any, number: signal.Signals) -> None:
    async with (
        AsyncClient(durable_dsn, settings=CALM) as client,
        worker_process(durable_dsn, PATIENT) as process,
    ):
        id = await _worn(client, db, "sleep")
        await process.wait_for(begun="sleep")
        stopped_at = time.monotonic()
        process.send(number)
        process.send(signal.SIGTERM if number == signal.SIGINT else signal.SIGINT)
        assert await process.ends() == 0
        assert time.monotonic() - stopped_at < 10
    assert _is_given_back(await row_of(db, id))


async def test_shutdown_ends_a_chain_between_two_steps(
    durable_dsn: str, db: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gen_durable")
    is_there, may_go = asyncio.Event(), asyncio.Event()

    class Walk(Machine[None, None]):
        @step
        async def one(self, ctx: Context[None]) -> Outcome[None]:
            is_there.set()
            await may_go.wait()
            return Next(self.two)

        @step
        async def two(self, ctx: Context[None]) -> Outcome[None]:
            return Done(None)

    async with AsyncClient(durable_dsn, settings=CALM) as client:
        ref = await client.insert(Walk)
        async with Worker([Walk], dsn=durable_dsn, settings=PATIENT) as worker:
            events = Events(worker)
            await happens(is_there)
            # By then the worker is closing.
            asyncio.get_running_loop().call_later(0.5, may_go.set)
        row = await row_of(db, ref.id)
        assert (row["status"], row["step"], row["step_seq"]) == ("runnable", "two", 1)
        assert has_no_lease(row)
        assert [(one.released, one.in_flight) for one in events.of(SchedulerDrain)] == [(0, 1)]
        assert caplog.messages[-1] == "stopping: 1 step is running, waiting up to 30s"
