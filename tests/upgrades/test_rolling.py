"""Rolling upgrade: workers of this version and of the next one run side by side on the schema of the next version."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gen_durable import AsyncClient, RateLimit, Retried, Spec
from gen_durable._db import migrate, workers
from gen_durable._db.migrate import LATEST
from gen_durable._schema import migrate_schema
from gen_durable.errors import UsageError
from gen_durable.testing._databases import Databases
from tests.pooler.machines import Alone, Chain, Parent, Payment, Stubborn, Waiter
from tests.support.worker_rows import WORKER_ROW
from tests.upgrades.machines import Ender, add
from tests.upgrades.next_version import NEXT, ROOT, as_next_version, copy_package

PATIENCE = timedelta(seconds=60)


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_package(tmp_path_factory.mktemp("next"))


async def upgrade(dsn: str, new: Path) -> None:
    """Run `gen-durable db migrate` of the new code."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", "gen_durable", "db", "migrate"),
        stdout=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(new), "GEN_DURABLE_DSN": dsn},
    )
    assert await asyncio.wait_for(process.wait(), 60) == 0


class Process:
    """A worker process of old or new code."""

    def __init__(self, process: asyncio.subprocess.Process, version: int, name: str, log: Path) -> None:
        self.process, self.version, self.name, self._log = process, version, name, log

    def log(self) -> list[str]:
        return self._log.read_text(encoding="utf-8").splitlines()


@asynccontextmanager
async def worker(dsn: str, queue: str, log: Path, source: Path = ROOT / "src") -> AsyncIterator[Process]:
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", "tests.upgrades.worker", dsn, queue),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": f"{source}:{ROOT}"},
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().split()
        assert line, log.read_text(encoding="utf-8")
        yield Process(process, int(line[0]), line[1], log)
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 40) == 0, log.read_text(encoding="utf-8")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


WORK: dict[str, Any] = {
    "chained, then from the queue": (Chain, 1, 4),
    "retried by outcome and by exception": (Stubborn, None, 2),
    "timed out": (Waiter, 0.05, ["nothing came"]),
    "children": (Parent, 3, 12),
    "effects": (Payment, 7, None),
    "ended with events": (Ender, "done", "done"),
    "job": (add, [1, 2, 3], 6),
}


async def insert_all(client: AsyncClient, queue: str) -> tuple[list[Any], list[Any]]:
    """Insert work of each kind in one queue; returns refs and expected results."""
    specs = [Spec(machine, state, queue=queue) for machine, state, _ in WORK.values()]
    specs += [Spec(Alone, "k", queue=queue, concurrency_key=f"key of {queue}") for _ in range(3)]
    specs += [Spec(Chain, 1, queue=queue, rate_limit="crm")]
    refs: list[Any] = await client.insert_all(specs)
    waiter = await client.insert(Waiter, 60.0, queue=queue, correlation_key=f"waiter of {queue}")
    await client.signal(f"waiter of {queue}", Waiter.note, "hello")
    expected = [result for _, _, result in WORK.values()]
    return [*refs, waiter], [*expected, None, None, None, 4, ["hello"]]


async def finished(client: AsyncClient, queue: str) -> None:
    refs, expected = await insert_all(client, queue)
    refused = await client.insert(Payment, -7, queue=queue)  # its ledger refuses the effect
    stopped = await client.insert(Ender, "stop", queue=queue)
    cancelled = await client.insert(Ender, "cancel", queue=queue)
    ended = await client.wait_all([*refs, refused, stopped, cancelled], timeout=PATIENCE)
    assert [each.status for each in ended] == ["done"] * len(refs) + ["failed", "failed", "cancelled"]
    assert [each.result for each in ended[: len(refs)]] == expected
    assert isinstance(await client.retry(stopped), Retried)
    assert (await client.wait(stopped, timeout=PATIENCE)).status == "failed"


@pytest.mark.clause("SCH-13")
async def test_old_and_new_code_on_the_new_schema(
    durable_dsn: str, db: Any, new: Path, tmp_path: Path
) -> None:
    await db.execute("create table ledger (id bigint, amount int check (amount > 0), what text)")
    async with worker(durable_dsn, "before", tmp_path / "before") as before:
        assert before.version == LATEST
        await upgrade(durable_dsn, new)  # while a worker runs
        async with (
            AsyncClient(durable_dsn) as client,
            worker(durable_dsn, "old", tmp_path / "old") as started_later,
            worker(durable_dsn, "new", tmp_path / "new", new) as upgraded,
        ):
            await client.set_limit(RateLimit("crm", 1000))
            queues = ["before", "old", "new", "default"]
            for _ in range(3):
                await asyncio.gather(*[finished(client, queue) for queue in queues])
            versions = {each.name: each.schema_version for each in await client.workers()}
            assert versions == {before.name: LATEST, started_later.name: LATEST, upgraded.name: NEXT}
    all_workers = (before, started_later, upgraded)
    output = (
        f"schema 'gen_durable' has version {NEXT}; this gen_durable has version {LATEST} and works with it"
    )
    assert [each.log().count(f"INFO {output}") for each in all_workers] == [0, 1, 0]
    troubles = [line for each in all_workers for line in each.log() if line.startswith("ERROR")]
    assert [line for line in troubles if "on purpose" not in line and "ledger" not in line] == []
    owners = await db.fetch("select distinct lease_owner from gen_durable.executions")
    assert {row["lease_owner"] for row in owners} == {each.name for each in all_workers}
    statuses = Counter(row[0] for row in await db.fetch("select status::text from gen_durable.gen_durable"))
    assert statuses == {"done": statuses["done"], "failed": 24, "cancelled": 12}
    assert await db.fetchval("select count(*) from gen_durable.outbox where published_at is null") == 0
    assert await db.fetchval("select count(*) from ledger") == 24


@pytest.mark.clause("SCH-13")
async def test_old_clients_on_the_new_schema(durable_dsn: str, new: Path) -> None:
    await upgrade(durable_dsn, new)
    script = """
import asyncio, sys
from gen_durable import AsyncClient, Client, Spec
from gen_durable._db.migrate import LATEST
from tests.pooler.machines import Chain, Waiter

with Client(sys.argv[1]) as client:
    ref = client.insert(Chain, 1, correlation_key="c")
    client.signal("c", Waiter.note, "x")
    assert client.cancel(ref) and client.retry(ref)
    for _ in range(8):  # a prepared statement
        assert client.list(Chain)[0].status == "runnable"
    assert client.explain(ref).reasons and client.workers() == [] and client.queues()

async def main():
    async with AsyncClient(sys.argv[1]) as client:
        await client.insert_all([Spec(Chain, n, unique_key=str(n)) for n in range(3)])
        print(LATEST, await client.count())

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-c", script, durable_dsn),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )
    output, errors = await process.communicate()
    assert (process.returncode, output.decode()) == (0, f"{LATEST} 4\n"), errors.decode()


async def test_new_code_refuses_the_old_schema(durable_dsn: str, new: Path, tmp_path: Path) -> None:
    refused = f"is at version {LATEST}, but this gen_durable needs {NEXT}; run `gen-durable db migrate`"
    with pytest.raises(AssertionError, match=refused):
        async with worker(durable_dsn, "new", tmp_path / "new", new):
            pass


async def test_an_increment_that_breaks_a_live_worker_is_not_applied(
    durable_dsn: str, db: Any, durable_databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncClient(durable_dsn) as client:
        await client._database.run(workers.announce(WORKER_ROW, timedelta(hours=1)))
    monkeypatch.setattr(migrate, "oldest_code", lambda version: version)
    with as_next_version(tmp_path, durable_databases):
        refusal = rf"needs code of version {NEXT}, .* older code: w \({LATEST}\); replace"
        with pytest.raises(UsageError, match=refusal):
            await migrate_schema(durable_dsn, "gen_durable")
        await db.execute("update gen_durable.workers set expires_at = now()")
        assert (await migrate_schema(durable_dsn, "gen_durable")).version == NEXT
