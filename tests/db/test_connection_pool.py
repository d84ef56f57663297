"""The connection pool: reuse, replacement and closing of connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import pytest

from gen_durable._db import connection_pool
from gen_durable._db.blocking import BlockingDatabase
from gen_durable._db.driver import Connection
from gen_durable._db.failures import StatementError
from gen_durable._db.plan import Statement, only
from gen_durable._db.pool import Database
from gen_durable._db.reply_timeouts import ReplyTimeouts
from gen_durable.errors import UnreachableError

SESSIONS = "select count(*) from pg_stat_activity where application_name = 'gen_durable' and pid = any($1)"


@pytest.fixture
async def database(direct_dsn: str) -> AsyncIterator[Database]:
    async with await Database.open(direct_dsn, "gen_durable", size=2, connect_now=False) as opened:
        yield opened


async def used(database: Database, *, is_reusable: bool = True) -> int:
    """Use a connection; return the process id of its session."""
    conn = await database._pool.acquire()
    pid: int = conn.get_server_pid()
    await database._pool.release(conn, is_reusable=is_reusable)
    return pid


def is_watched(database: Database) -> bool:
    task = database.watchdog._task
    return task is not None and not task.done()


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


async def test_retired_connection_is_closed_and_replaced(database: Database, db: Any) -> None:
    pid = await used(database, is_reusable=False)
    assert await used(database) != pid
    await ends(db, pid)


async def test_connection_counts_until_it_is_closed(direct_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    may_close = asyncio.Event()

    async def close(self: Connection, *, timeout: float | None = None) -> None:
        await may_close.wait()
        self.terminate()

    monkeypatch.setattr(Connection, "close", close)
    async with await Database.open(direct_dsn, "gen_durable", size=1) as database:
        pool = database._pool
        await pool.release(await pool.acquire(), is_reusable=False)
        waiting = asyncio.ensure_future(used(database))
        assert not (await asyncio.wait([waiting], timeout=0.1))[0]
        assert database.connects == 1
        may_close.set()
        await waiting


async def test_connection_in_use_is_not_reused_after_replace_all(database: Database, db: Any) -> None:
    pool = database._pool
    idle, busy = await pool.acquire(), await pool.acquire()
    await pool.release(idle, is_reusable=True)
    pids = {idle.get_server_pid(), busy.get_server_pid()}
    assert pool.replace_all() == 2
    assert (idle.is_closed(), busy.is_closed()) == (True, False)
    await pool.release(busy, is_reusable=True)
    assert await used(database) not in pids
    assert database.connects == 3


async def test_cancelled_acquire_releases_its_permit(database: Database) -> None:
    pool = database._pool
    busy = [await pool.acquire(), await pool.acquire()]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await pool.acquire()
    for conn in busy:
        await pool.release(conn, is_reusable=True)
    async with asyncio.timeout(5):
        await asyncio.wait([asyncio.ensure_future(used(database)) for _ in range(5)])


async def test_failed_connect_releases_its_permit(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_idle_connection_is_closed_after_its_lifetime(
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


async def test_close_terminates_connections_that_are_not_released(
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


async def test_caller_that_waits_while_the_pool_closes_opens_no_connection(database: Database) -> None:
    pool = database._pool
    busy = [await pool.acquire(), await pool.acquire()]
    waiting = asyncio.ensure_future(pool.acquire())
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(database.close())
    await asyncio.sleep(0)
    for conn in busy:
        await pool.release(conn, is_reusable=True)
    with pytest.raises(StatementError, match="closed"):
        await waiting
    await closing
    assert database.connects == 2


async def test_cancelled_close_still_terminates_connections_in_use(database: Database, db: Any) -> None:
    busy = await database._pool.acquire()
    pid = busy.get_server_pid()
    closing = asyncio.ensure_future(database.close())
    await asyncio.sleep(0.02)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert busy.is_closed()
    await ends(db, pid)


async def test_keepalive_value_that_the_kernel_refuses_closes_the_connection(
    direct_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Connection] = []

    def refuse(self: Connection, _: object) -> None:
        made.append(self)
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(Connection, "keep_alive", refuse)
    with pytest.raises(UnreachableError, match=r"keepalive settings .*keepalives_idle.* Invalid argument"):
        await Database.open(direct_dsn, "gen_durable")
    assert [conn.is_closed() for conn in made] == [True]


@pytest.mark.parametrize("is_blocking", [False, True], ids=["async", "blocking"])
async def test_watchdog_continues_if_the_dsn_function_fails(direct_dsn: str, is_blocking: bool) -> None:
    answers: list[Any] = [direct_dsn, None, None]
    bounds = ReplyTimeouts(suspect=0.1, connect=2.0, reply=40.0)
    sleep = Statement("sleep", "select pg_sleep(0.6)::text as slept")

    def dsn() -> str:
        answer: str = answers.pop(0) if answers else direct_dsn
        return answer

    if is_blocking:
        with closing(BlockingDatabase(dsn, "gen_durable")) as blocking:
            blocking._reply_timeouts = bounds
            await asyncio.to_thread(blocking.run, only(sleep()))
        assert not answers
        return
    async with await Database.open(dsn, "gen_durable", reply_timeouts=bounds) as database:
        await database.run(only(sleep()))
        assert not answers
        assert is_watched(database)


async def test_watchdog_continues_if_a_statement_is_cancelled_during_its_check(
    direct_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking, may_answer = asyncio.Event(), asyncio.Event()
    bounds = ReplyTimeouts(suspect=0.05, connect=5.0, reply=40.0)
    async with await Database.open(direct_dsn, "gen_durable", reply_timeouts=bounds) as database:
        ask = database.watchdog._connect

        async def ask_later() -> Any:
            asking.set()
            await may_answer.wait()
            return await ask()

        monkeypatch.setattr(database.watchdog, "_connect", ask_later)
        slow = asyncio.ensure_future(database.run(only(Statement("sleep", "select pg_sleep(20)::text")())))
        await asyncio.wait_for(asking.wait(), 10)
        slow.cancel()
        await asyncio.wait([slow])
        await asyncio.wait(database._pool._tasks)  # the connection is closed now
        asking.clear()
        may_answer.set()
        slow = asyncio.ensure_future(database.run(only(Statement("sleep", "select pg_sleep(20)::text")())))
        await asyncio.wait_for(asking.wait(), 10)  # the watchdog checks again
        slow.cancel()
        assert is_watched(database)
