"""`worker.run(processes=N)` with real processes, some of which are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gen_durable import AsyncClient, Settings, Spec
from tests.support.rows import has_no_lease, row_of
from tests.support.settings import CALM
from tests.support.waiting import holds, process_ends
from tests.support.worker_process import WorkerProcess, program
from tests.workers.supervised_worker import Sleeper

ROOT = Path(__file__).parents[2]
NEVER = "/nonexistent/go"
IS_REGISTERED = "exists (select from gen_durable.workers where name = $1)"
PATIENT = msgspec.structs.replace(CALM, drain_timeout=timedelta(seconds=30))


@asynccontextmanager
async def processes(dsn: str, settings: Settings, count: int) -> AsyncIterator[WorkerProcess]:
    """Run a supervisor and its children; none outlives the block."""
    options = msgspec.json.encode(settings).decode()
    async with program("tests.workers.supervised_worker", dsn, options, str(count)) as process:
        yield process


@pytest.mark.clause("SUP-1")
async def test_work_of_a_killed_child_resumes_at_once(durable_dsn: str, db: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with (
        AsyncClient(durable_dsn, settings=CALM) as client,
        processes(durable_dsn, PATIENT, 2) as process,
    ):
        await process.wait_for(ready=True)
        ref = await client.insert(Sleeper, str(go))
        first = await process.wait_for(begun=ref.id, attempt=0)
        owner = (await row_of(db, ref.id))["locked_by"]
        await holds(db, f"select {IS_REGISTERED}", owner)
        killed_at = time.monotonic()
        os.kill(first["pid"], signal.SIGKILL)
        second = await process.wait_for(begun=ref.id, attempt=1)
        assert time.monotonic() - killed_at < 20, "the lease of one minute need not expire"
        assert second["parent"] == first["parent"]
        row = await row_of(db, ref.id)
        assert (row["attempt"], row["crash_count"]) == (1, 1)
        assert row["locked_by"] != owner
        await holds(db, f"select not {IS_REGISTERED}", owner)
        (record,) = await db.fetch("select * from gen_durable.executions where instance_id = $1", ref.id)
        assert (record["status"], record["outcome"], record["lease_owner"]) == ("ABORTED", "lease", owner)
        # Another process takes its place; Ctrl-C drains the current ones.
        await holds(db, "select count(*) = 2 from gen_durable.workers")
        more = await client.insert_all([Spec(Sleeper, str(go)) for _ in range(3)])
        pids = {second["pid"], *[(await process.wait_for(begun=...))["pid"] for _ in more]}
        process.send(signal.SIGINT)
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        await asyncio.sleep(0.3)
        go.touch()
        assert await process.ends() == 0
        assert (await client.wait(ref)).result == second["pid"]
    assert await db.fetchval("select count(*) from gen_durable.gen_durable where status = 'done'") == 4
    log = "\n".join(process.log)
    assert f"(pid {first['pid']}) was killed by SIGKILL; restarting in 0." in log
    assert f"leases of a crashed worker reaped: worker {owner}, ids [{ref.id}]" in log
    assert sum("is worker" in line for line in process.log) == 3, "two processes, and one restart"


@pytest.mark.clause("SUP-2")
async def test_children_of_a_killed_supervisor_release_and_exit(durable_dsn: str, db: Any) -> None:
    async with (
        AsyncClient(durable_dsn, settings=CALM) as client,
        processes(durable_dsn, PATIENT, 2) as process,
    ):
        await process.wait_for(ready=True)
        hanging = await client.insert(Sleeper, NEVER, step="hang")
        hangs = (await process.wait_for(begun=hanging.id))["pid"]
        refs = await client.insert_all([Spec(Sleeper, NEVER) for _ in range(4)])
        pids = {(await process.wait_for(begun=...))["pid"] for _ in refs}
        assert hangs not in pids
        os.kill(process.pid, signal.SIGKILL)
        for pid in pids:
            await process_ends(pid)
        for ref in refs:
            row = await row_of(db, ref.id)
            assert (row["status"], row["attempt"], row["crash_count"]) == ("runnable", 0, 0)
            assert has_no_lease(row)
        await process_ends(hangs)


@pytest.mark.clause("SUP-3")
async def test_crash_loop_backs_off_and_is_logged(durable_dsn: str) -> None:
    async with program("tests.workers.crashes_at_start", durable_dsn) as process:
        at = []
        for _ in range(4):
            await process.wait_for(broken=True)
            at.append(time.monotonic())
        # Pauses of 0.25 to 0.5 s, 0.5 to 1 s, 1 to 2 s, and the starts.
        assert at[3] - at[0] >= 1.75
        process.send(signal.SIGTERM)
        assert await process.ends() in (0, 1), "1 if it was just about to crash again"
    assert sum("exited with code 3; restarting in" in line for line in process.log) >= 3


@pytest.mark.clause("SUP-4")
async def test_one_signal_drains_every_child(durable_dsn: str, db: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with (
        AsyncClient(durable_dsn, settings=CALM) as client,
        processes(durable_dsn, PATIENT, 2) as process,
    ):
        await process.wait_for(ready=True)
        refs = await client.insert_all([Spec(Sleeper, str(go)) for _ in range(4)])
        pids = {(await process.wait_for(begun=...))["pid"] for _ in refs}
        process.send(signal.SIGTERM)
        # A process manager may signal the whole group: that does not skip the drain.
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert not go.exists()
        go.touch()
        assert await process.ends() == 0
    assert await db.fetchval("select count(*) from gen_durable.gen_durable where status = 'done'") == 4


@pytest.mark.clause("SUP-5")
async def test_second_signal_skips_the_drain(durable_dsn: str, db: Any) -> None:
    async with (
        AsyncClient(durable_dsn, settings=CALM) as client,
        processes(durable_dsn, PATIENT, 2) as process,
    ):
        await process.wait_for(ready=True)
        ref = await client.insert(Sleeper, NEVER)
        await process.wait_for(begun=ref.id)
        stopped_at = time.monotonic()
        process.send(signal.SIGTERM)
        await asyncio.sleep(0.1)
        process.send(signal.SIGINT)
        assert await process.ends() == 0
        assert time.monotonic() - stopped_at < 20
    row = await row_of(db, ref.id)
    assert (row["status"], row["attempt"], row["crash_count"]) == ("runnable", 0, 0)


@pytest.mark.clause("SUP-6")
async def test_child_crash_during_drain_sets_the_exit_code(durable_dsn: str, db: Any) -> None:
    async with (
        AsyncClient(durable_dsn, settings=CALM) as client,
        processes(durable_dsn, PATIENT, 2) as process,
    ):
        await process.wait_for(ready=True)
        ref = await client.insert(Sleeper, NEVER)
        child = await process.wait_for(begun=ref.id)
        process.send(signal.SIGTERM)
        await asyncio.sleep(0.2)
        os.kill(child["pid"], signal.SIGKILL)
        assert await process.ends() == 1
        await holds(db, "select status = 'runnable' and crash_count = 1 from gen_durable.gen_durable")
    assert not any("ended" in line for line in process.lines if line["pid"] == child["parent"])
