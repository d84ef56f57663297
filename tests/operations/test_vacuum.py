"""The worker vacuums after many deferred rows, with pauses, and gives up a slow vacuum."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import pytest

from gen_durable._db.pool import Database
from gen_durable._runtime.database_status import DatabaseStatus
from gen_durable._runtime.maintenance.vacuum import Vacuum

COUNT: Final = "select vacuum_count from pg_stat_user_tables where schemaname = 'gen_durable' and relname = 'gen_durable'"


@pytest.fixture
def vacuum(database: Database) -> Vacuum:
    return Vacuum(database, DatabaseStatus())


async def vacuumed(db: Any, times: int) -> None:
    async with asyncio.timeout(10):
        while await db.fetchval(COUNT) != times:
            await asyncio.sleep(0.01)


async def test_few_rows_are_left_to_autovacuum(vacuum: Vacuum, db: Any) -> None:
    vacuum.rows_deferred(4999)
    assert await vacuum.tick() is None
    vacuum.rows_deferred(1)
    assert await vacuum.tick() is None
    await vacuumed(db, 1)


async def test_vacuum_pauses_after_each_run(vacuum: Vacuum, db: Any) -> None:
    vacuum.rows_deferred(5000)
    await vacuum.tick()
    vacuum.rows_deferred(5000)
    pause = await vacuum.tick()
    assert pause is not None
    await asyncio.sleep(pause.total_seconds())
    assert await vacuum.tick() is None
    await vacuumed(db, 2)


async def test_slow_vacuum_is_given_up(
    vacuum: Vacuum, database: Database, db: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await db.execute(
        "insert into gen_durable.gen_durable (fsm, step) select 'A', 's' from generate_series(1, 2000)"
    )
    name = await db.fetchval("select current_database()")
    await db.execute(f"alter database {name} set vacuum_cost_delay = '100ms'")
    await db.execute(f"alter database {name} set vacuum_cost_limit = 1")
    database._pool.expire()
    vacuum.rows_deferred(5000)
    round_ = asyncio.ensure_future(vacuum.tick())
    # The view also shows autovacuum, and the databases of other tests.
    cancel_ours = (
        "select pg_cancel_backend(pid) from pg_stat_progress_vacuum join pg_stat_activity using (pid, datname)"
        " where datname = current_database() and backend_type = 'client backend'"
    )
    with caplog.at_level(logging.INFO, logger="gen_durable.worker"):
        async with asyncio.timeout(10):
            while not await db.fetchval(cancel_ours):
                await asyncio.sleep(0.01)
        assert await round_ is None
    assert "leaving the table to autovacuum for an hour" in caplog.text
