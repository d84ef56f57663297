"""Connections of callers, of every supported kind, for `conn=`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
from psycopg.rows import namedtuple_row

from gen_durable import AsyncClient, Client
from tests.support.clients import Awaitable


class Caller:
    """A caller's connection, and the client for it."""

    def __init__(self, client: Any, conn: Any, *, blocks: bool = False) -> None:
        self.client = client
        self.conn = conn
        self._blocks = blocks

    async def execute(self, text: str) -> None:
        answer = self.conn.execute(text)
        if not self._blocks:
            await answer

    @asynccontextmanager
    async def transaction(self, isolation: str = "read committed") -> AsyncIterator[None]:
        await self.execute(f"begin isolation level {isolation}")
        try:
            yield
        except BaseException:
            await self.execute("rollback")
            raise
        await self.execute("commit")


@asynccontextmanager
async def opened(kind: str, dsn: str) -> AsyncIterator[Caller]:
    """Open a connection of this kind, and a client for it."""
    if kind == "psycopg":
        with psycopg.connect(
            dsn, autocommit=True, row_factory=namedtuple_row, prepare_threshold=0
        ) as blocking:
            yield Caller(Awaitable(Client(dsn)), blocking, blocks=True)
    elif kind == "psycopg async":
        async with await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, prepare_threshold=None
        ) as conn:
            yield Caller(AsyncClient(dsn), conn)
    elif kind == "asyncpg pool":
        async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as proxy:
            yield Caller(AsyncClient(dsn), proxy)
    else:
        conn = await asyncpg.connect(dsn)
        if kind == "asyncpg with its own jsonb":
            for type_name in ("json", "jsonb"):
                await conn.set_type_codec(
                    type_name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
                )
        yield Caller(AsyncClient(dsn), conn)
        await conn.close(timeout=5)
