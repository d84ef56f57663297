"""The dashboard continues batches whose process has died."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from gen_durable import AsyncClient, Spec, Status
from gen_durable._db import batches
from gen_durable._db.pool import Database
from gen_durable.dashboard import create_app
from gen_durable.dashboard.batch_runner import BatchRunner
from tests.dashboard.conftest import TOKENS
from tests.support.machines import Plain

pytestmark = pytest.mark.usefixtures("_often")


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gen_durable.dashboard.batch_runner._EVERY", 0.02)


async def _ended(client: AsyncClient, id: int) -> None:
    async with asyncio.timeout(20):
        while not (await client.get_batch(id)).is_over:
            await asyncio.sleep(0.01)


async def _expire(db: Any) -> None:
    await db.execute(
        "update gen_durable.batches set lease_expires_at = now() - interval '1 s', lease_token = 7"
    )


async def test_dashboard_continues_a_batch_of_a_dead_process(client: AsyncClient, db: Any) -> None:
    await client.insert_all([Spec(Plain, n) for n in range(1200)])
    batch = await client.start_batch("cancel")
    async with create_app(client, tokens=TOKENS).opened():
        await asyncio.sleep(0.2)
        assert (await client.get_batch(batch.id)).visited == 0, "no process has run it"
        await _expire(db)
        await _ended(client, batch.id)
    assert await client.count(status=Status.CANCELLED) == 1200


async def test_read_only_dashboard_runs_no_batch(client: AsyncClient, db: Any) -> None:
    batch = await client.start_batch("cancel")
    await _expire(db)
    async with create_app(client, tokens=TOKENS, read_only=True).opened():
        await asyncio.sleep(0.2)
    assert (await client.get_batch(batch.id)).status == "pending"


async def test_batch_that_fails_is_not_tried_again(
    client: AsyncClient, database: Database, db: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await client.insert(Plain, 1)
    batch = await client.start_batch("cancel")
    await db.execute("alter function gen_durable.cancel_rows rename to gone")
    runner = BatchRunner(client, database.run)
    with caplog.at_level(logging.ERROR, "gen_durable.dashboard"):
        runner.run(batch.id)
        runner.run(batch.id)
        async with asyncio.timeout(20):
            while not caplog.records:
                await asyncio.sleep(0.01)
    assert len(caplog.records) == 1
    assert f"continue it: gen-durable batches run {batch.id}" in caplog.text
    assert await database.run(batches.unfinished(10)) == {batch.id: False}
    await runner.close()


async def test_closed_dashboard_leaves_its_batch_to_others(
    client: AsyncClient, database: Database, db: Any
) -> None:
    await client.insert_all([Spec(Plain, n) for n in range(3)])
    batch = await client.start_batch("cancel")
    async with db.transaction():
        await db.execute("select from gen_durable.gen_durable where id = 2 for no key update")
        runner = BatchRunner(client, database.run)
        runner.run(batch.id)
        async with asyncio.timeout(20):
            while (await client.get_batch(batch.id)).visited < 2:
                await asyncio.sleep(0.01)
        await runner.close()
    assert (await client.get_batch(batch.id)).status == "running", "until the lease expires"
    await _expire(db)
    assert (await client.run_batch(batch)).done == 3
