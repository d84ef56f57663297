"""Run SQL directly on a connection of a pool."""

from __future__ import annotations

from typing import Any

from gen_durable._db.pool import Database

__all__ = ["fetch", "fetchrow"]


async def fetch(database: Database, query: str, *args: Any) -> Any:
    conn = await database._pool.acquire()
    try:
        return await conn.fetch(query, *args)
    finally:
        await database._pool.release(conn, is_reusable=True)


async def fetchrow(database: Database, query: str, *args: Any) -> Any:
    return (await fetch(database, query, *args))[0]
