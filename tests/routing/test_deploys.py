"""Rolling deploys with graceful and killed workers lose nothing and fail nothing."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gen_durable import AsyncClient, Spec, Status
from tests.routing.releases import Month, MonthV2, charge, nap, refund
from tests.support.rows import row_of
from tests.support.settings import FAST
from tests.support.waiting import PATIENCE, holds
from tests.support.worker_process import WorkerProcess, program

_ROOT = Path(__file__).parents[2]
SETTINGS = msgspec.structs.replace(FAST, drain_timeout=timedelta(seconds=2))


@asynccontextmanager
async def release(dsn: str, name: str, source: str) -> AsyncIterator[WorkerProcess]:
    """A worker process of one release, killed at the end of the block."""
    settings = msgspec.json.encode(SETTINGS).decode()
    async with program("tests.routing.releases", dsn, settings, name, source) as process:
        yield process


@pytest.mark.clause("ROUTE-9")
@pytest.mark.parametrize("source", ["queue", "prefix"])
async def test_rolling_deploy_loses_nothing(durable_dsn: str, db: Any, source: str) -> None:
    """New workers replace two old ones, one of them by SIGKILL, while a producer inserts types of the new release."""
    async with AsyncClient(durable_dsn) as client, AsyncExitStack() as stack:
        old = [await stack.enter_async_context(release(durable_dsn, "old", source)) for _ in range(2)]
        for process in old:
            await process.wait_for(ready=True)

        def wave(first: int) -> list[Any]:
            """Insert all types; those of the new release have a higher priority."""
            jobs = [Spec(each, number) for number in range(first, first + 15) for each in (charge, refund)]
            newer = [Spec(MonthV2, 3, priority=-1), Spec(refund, 0, priority=-1, concurrency_key="till")]
            return [*newer, *jobs, Spec(Month, 3), Spec(charge, 0, concurrency_key="till")]

        await client.insert_all(wave(100))
        # Only the old release runs. Its types are done; new types wait, and so does the charge that has the same
        # concurrency key as a waiting refund.
        known = (
            "fsm <> 'shop.refund.v1' and (fsm, fsm_version) <> ('shop.month', 2) and concurrency_key is null"
        )
        await holds(
            db,
            f"select bool_and(status = 'done') and count(*) > 15 from gen_durable.gen_durable where {known}",
        )
        left = await db.fetch(
            f"select status::text, execution from gen_durable.gen_durable where not ({known})"
        )
        assert {(row["status"], row["execution"]) for row in left} == {("runnable", 0)}
        assert len(left) == 18

        new = [await stack.enter_async_context(release(durable_dsn, "new", source))]
        await new[0].wait_for(ready=True)
        await client.insert_all(wave(200))
        old[0].send(signal.SIGTERM)
        assert await old[0].ends() == 0
        await client.insert_all(wave(300))
        await old[1].wait_for(ran=...)
        old[1].send(signal.SIGKILL)
        new.append(await stack.enter_async_context(release(durable_dsn, "new", source)))
        await client.insert_all(wave(400))

        await holds(db, "select not exists (select from gen_durable.gen_durable where finished_at is null)")
        for process in (old[1], *new):
            if process is not old[1]:
                process.send(signal.SIGTERM)
            await process.ends()
        statuses = await db.fetch("select status::text, count(*) from gen_durable.gen_durable group by 1")
        assert {row["status"]: row["count"] for row in statuses} == {"done": 4 * (34 + 3 + 6)}
        for machine, closed in ((Month, 3), (MonthV2, 6)):
            assert {
                each.result for each in await client.list(machine, version=machine.__definition__.version)
            } == {closed}
        lines = [line for process in (*old, *new) for line in process.lines]
        assert not [line for line in lines if "missing" in line]
        foreign = {
            (line["ran"], line["version"]) for process in old for line in process.lines if "ran" in line
        }
        assert foreign == {("shop.charge.v1", 1), ("shop.month", 1)}, (
            "the old release ran what it knows, and only that"
        )
        assert (
            await db.fetchval("select max(attempt) from gen_durable.executions where outcome <> 'lease'") <= 1
        )
        # Every transition is committed once.
        made = await db.fetchrow(
            """select count(*), count(distinct (instance_id, step_seq)) as transitions
                 from gen_durable.executions where status = 'DONE'"""
        )
        assert made["count"] == made["transitions"]


@pytest.mark.parametrize("source", ["queue", "prefix"])
async def test_another_worker_continues_after_a_kill(
    durable_dsn: str, db: Any, tmp_path: Path, source: str
) -> None:
    may_end = tmp_path / "may_end"
    async with AsyncClient(durable_dsn) as client, release(durable_dsn, "old", source) as first:
        await first.wait_for(ready=True)
        refs = [await client.insert(nap, str(may_end), concurrency_key=key) for key in ("k", "l", "k")]
        begun = [await first.wait_for(ran="shop.nap.v1") for _ in range(2)]
        assert {line["id"] for line in begun} == {ref.id for ref in refs[:2]}
        await first.kill()
        row = await row_of(db, refs[0].id)
        assert (row["status"], row["attempt"]) == ("executing", 0)
        async with release(durable_dsn, "new", source) as second:
            may_end.touch()
            results = [(await client.wait(ref, timeout=PATIENCE)).result for ref in refs]
            again = [await second.wait_for(ran="shop.nap.v1") for _ in range(3)]
    tried = {line["id"]: (line["attempt"], line["key"]) for line in again}
    assert tried == {ref.id: (attempt, f"{ref.id}:1") for ref, attempt in zip(refs, (1, 1, 0), strict=True)}
    assert {line["key"] for line in begun} == {f"{ref.id}:1" for ref in refs[:2]}
    assert results == [1, 1, 0]
    records = await db.fetch(
        "select outcome from gen_durable.executions where instance_id = $1 order by execution", refs[0].id
    )
    assert [record["outcome"] for record in records] == ["lease", "done"]
    assert (
        await db.fetchval("select count(*) from gen_durable.gen_durable where status = $1", Status.DONE.value)
        == 3
    )
