"""A rolling upgrade of a machine over four releases and three versions, under load, with killed workers."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import AsyncClient, NoTargetError, Spec
from tests.support.settings import FAST
from tests.support.waiting import PATIENCE, holds
from tests.support.worker_process import WorkerProcess, program
from tests.upgrades.releases import ROUNDS, Count, Counts, First, Fourth, Second, Third, Total

SETTINGS = msgspec.structs.replace(FAST, drain_timeout=timedelta(seconds=2), crash_limit=10)
SIZE = 16


def spec(release: type[Any], id: int) -> Spec[Any, Any]:
    states = {
        First: Count(id, 0),
        Second: Count(id, 0),
        Third: Counts(id, []),
        Fourth: Total(id, 0),
    }
    return Spec(release, states[release], correlation_key=f"parcel:{id}")


@pytest.mark.timeout(240)
@pytest.mark.clause("VER-4", "VER-5", "VER-6", "VER-8")
async def test_rolling_upgrade_over_three_versions_with_killed_workers(durable_dsn: str, db: Any) -> None:
    ids: list[int] = []
    processes: list[WorkerProcess] = []
    async with AsyncClient(durable_dsn) as client, AsyncExitStack() as stack:

        async def start(release: str) -> WorkerProcess:
            process = await stack.enter_async_context(
                program(
                    "tests.upgrades.releases", durable_dsn, msgspec.json.encode(SETTINGS).decode(), release
                )
            )
            await process.wait_for(ready=True)
            processes.append(process)
            return process

        async def wake(these: list[int]) -> None:
            for id in these:
                with suppress(NoTargetError):  # it has ended
                    await client.signal(f"parcel:{id}", First.go, dedup_key="go")

        async def wave(release: type[Any]) -> None:
            """Insert instances as a producer of this release, and wake half of those that wait."""
            first = len(ids)
            new = range(first, first + SIZE)
            await client.insert_all([spec(release, id) for id in new])
            ids.extend(new)
            await wake([id for id in ids if id % 4 == 1])

        async def kill(process: WorkerProcess) -> None:
            """Kill it while it works, or if it finds no work for two seconds."""
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait_for(ran=...), 2)
            process.send(signal.SIGKILL)

        await wave(First)
        old = [await start("first"), await start("first")]
        await old[0].wait_for(ran="work")
        await kill(old[0])
        second = [await start("second"), await start("second")]
        await wave(Second)
        # Rows at the new name come back from the old worker until a new one takes them.
        await second[0].wait_for(ran="carry")
        third = await start("third")
        await wave(First)
        await kill(second[0])
        await third.wait_for(ran="carry")
        await wave(Third)
        old[1].send(signal.SIGTERM)
        fourth = await start("fourth")
        await kill(third)
        third_again = await start("third")
        await wave(Fourth)
        await kill(second[1])
        await fourth.wait_for(ran="bring")
        await kill(third_again)
        await kill(fourth)
        last = await start("fourth")
        await wake([id for id in ids if id % 2])
        ended = await client.wait_all([f"parcel:{id}" for id in ids], timeout=2 * PATIENCE)
        assert Counter(one.status for one in ended) == {"done": len(ids)}, [one.last_error for one in ended]
        assert [one.result for one in ended] == [1000 * id + ROUNDS for id in ids]
        last.send(signal.SIGTERM)
        await asyncio.gather(*(process.ends() for process in processes))
    ran = [line for process in processes for line in process.lines if "ran" in line]
    # Code of a version ran states of that version and of older ones, and each kind of upgrade happened.
    pairs = {(line["code"], line["form"]) for line in ran}
    assert all(form <= code for code, form in pairs)
    assert {(2, 1), (3, 1), (3, 2)} <= pairs, pairs
    made = await db.fetchrow(
        """select count(*), count(distinct (instance_id, step_seq)) as transitions
             from gen_durable.executions where status = 'DONE'"""
    )
    assert made["count"] == made["transitions"]
    assert await db.fetchval("select count(*) from gen_durable.executions where outcome = 'stop'") == 0


@pytest.mark.clause("VER-8")
async def test_rolled_back_code_leaves_upgraded_instances(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client, AsyncExitStack() as stack:
        settings = msgspec.json.encode(SETTINGS).decode()
        old = await stack.enter_async_context(
            program("tests.upgrades.releases", durable_dsn, settings, "first")
        )
        await old.wait_for(ready=True)
        upgraded = await client.insert(*_inserted(Third, 1), correlation_key="a")
        renamed = await client.insert(First, Count(2, 0), correlation_key="b", step="finish")
        await holds(db, "select status = 'done' from gen_durable.gen_durable where id = $1", renamed.id)
        await db.execute(
            "select from gen_durable.insert('parcel', '{\"id\": 3, \"count\": 0}', step => 'carry', version => 1,"
            " correlation_key => 'c')"
        )
        await holds(db, "select execution > 1 from gen_durable.gen_durable where correlation_key = 'c'")
        rows = await db.fetch(
            "select status::text, execution from gen_durable.gen_durable where id = $1", upgraded.id
        )
        assert [tuple(row) for row in rows] == [("runnable", 0)]
        new = await stack.enter_async_context(
            program("tests.upgrades.releases", durable_dsn, settings, "fourth")
        )
        await new.wait_for(ready=True)
        await client.signal("a", "go")
        ended = await client.wait_all(["a", "c"], timeout=PATIENCE)
        assert [one.result for one in ended] == [1000 + ROUNDS, 3000 + ROUNDS]


def _inserted(release: type[Any], id: int) -> tuple[type[Any], Any]:
    return release, spec(release, id).state
