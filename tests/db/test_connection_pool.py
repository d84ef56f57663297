"""The pool of connections: who gets which, and when they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gen_durable._db import connection_pool
from gen_durable._db.failures import StatementError
from gen_durable._db.pool import Database

SESSIONS = "select count(*) from pg_stat_activity where application_name = 'gen_durable' and pid = any($1)"


@pytest.fixture
async def database(direct_dsn: str) -> AsyncIterator[Database]:
    async with await Database.open(direct_dsn, "gen_durable", size=2, at_once=False) as opened:
        yield opened


async def used(database: Database, *, is_reusable: bool = True) -> int:
    """Use a connection; the process id of its session."""
    conn = await database._pool.acquire()
    pid: int = conn.get_server_pid()
    await database._pool.release(conn, is_reusable=is_reusable)
    return pid


async def ends(db: Any, *pids: int) -> None:
    async with asyncio.timeout(10):
        while await db.fetchval(SESSIONS, pids):
            await asyncio.sleep(0.02)


async def test_connection_used_last_is_used_next(database: Database) -> None:
    pool = database._pool
    first, second = await pool.acquire(), await pool.acquire()
    for conn in (first, second):
        await pool.release(conn, is_reusable=True)
    pids = {await used(database), await used(database)}
    assert pids == {second.get_server_pid()}


async def test_doubtful_connection_is_closed_and_replaced(database: Database, db: Any) -> None:
    pid = await used(database, is_reusable=False)
    assert await used(database) != pid
    await ends(db, pid)


async def test_connection_in_use_is_not_used_again_after_suspicion(database: Database, db: Any) -> None:
    pool = database._pool
    idle, busy = await pool.acquire(), await pool.acquire()
    await pool.release(idle, is_reusable=True)
    pids = {idle.get_server_pid(), busy.get_server_pid()}
    assert pool.suspect() == 2
    assert (idle.is_closed(), busy.is_closed()) == (True, False)
    await pool.release(busy, is_reusable=True)
    assert await used(database) not in pids
    assert database.connects == 3


async def test_cancelled_acquire_leaves_its_place(database: Database) -> None:
    pool = database._pool
    busy = [await pool.acquire(), await pool.acquire()]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await pool.acquire()
    for conn in busy:
        await pool.release(conn, is_reusable=True)
    async with asyncio.timeout(5):
        await asyncio.wait([asyncio.ensure_future(used(database)) for _ in range(5)])


async def test_failed_connect_leaves_its_place(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = database._pool
    original = pool._connect

    async def fail() -> Any:
        raise OSError("away")

    monkeypatch.setattr(pool, "_connect", fail)
    for _ in range(3):
        with pytest.raises(OSError, match="away"):
            await pool.acquire()
    monkeypatch.setattr(pool, "_connect", original)
    await used(database)


async def test_idle_connection_ends_after_a_while(
    database: Database, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_pool, "_IDLE_LIFETIME", 0.2)
    await ends(db, await used(database))
    assert database._pool._idle == []


async def test_old_connection_is_replaced(
    database: Database, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_pool, "_LIFETIME", 0.0)
    pid = await used(database)
    assert await used(database) != pid
    await ends(db, pid)


async def test_close_cuts_what_does_not_come_back(
    database: Database, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_pool, "_CLOSE_WITHIN", 0.2)
    idle, busy = await database._pool.acquire(), await database._pool.acquire()
    await database._pool.release(idle, is_reusable=True)
    pids = [idle.get_server_pid(), busy.get_server_pid()]
    begun = time.monotonic()
    await database.close()
    assert time.monotonic() - begun < 5
    assert busy.is_closed()
    await ends(db, *pids)
    with pytest.raises(StatementError, match="closed"):
        await database._pool.acquire()
