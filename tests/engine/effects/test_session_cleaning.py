"""The session of an effect is cleaned before reuse, also when its execution is cancelled."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from typing import Any

import pytest

from gen_durable._db import pool
from gen_durable._db.plan import Plan, Statement, only
from gen_durable._db.pool import Database

# As `lock_for_effect` does: the end of the transaction needs the search path of the effect.
YES = Statement(
    "yes",
    "select set_config('gen_durable_pool.path', current_setting('search_path'), true) is not null as yes",
)

CLEANING = """
    select count(*) from pg_stat_activity
    where datname = current_database() and state = 'active' and query ~ '^reset session.*sleep'
"""


def yes() -> Plan[bool]:
    return bool((yield from only(YES()))[0]["yes"])


@pytest.mark.parametrize("ends", [False, True], ids=["cleaned", "the session ends meanwhile"])
async def test_session_is_cleaned_when_the_execution_is_cancelled(
    durable_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(pool, "_RESET", pool._RESET + "; select pg_sleep(0.5)")
    unhandled: list[Mapping[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    pids: list[int] = []

    async def lock(conn: Any) -> None:
        pids.append(conn.get_server_pid())
        await conn.execute("select pg_advisory_lock(4711)")

    async with await Database.open(durable_dsn, "gen_durable", size=1, for_effects=True) as database:
        task = asyncio.ensure_future(database.run_effect(lock, yes(), yes()))
        while not await db.fetchval(CLEANING):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if ends:
            await db.execute("select pg_terminate_backend($1)", pids[0])
        assert await database.run_effect(lock, yes(), yes()), "the next one has a clean session"
        assert (pids[0] == pids[1]) == (not ends)
        assert await db.fetchval("select pg_try_advisory_lock(4711)")
    del task
    gc.collect()
    await asyncio.sleep(0)
    assert unhandled == []
