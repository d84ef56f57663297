from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from gen_durable._db.pool import Database


@pytest.fixture
async def sql(durable_dsn: str) -> AsyncIterator[Any]:
    """A plain connection of asyncpg, as a user of another language would have one."""
    connection = await asyncpg.connect(durable_dsn)
    yield connection
    await connection.close(timeout=5)


@pytest.fixture
async def database(durable_dsn: str) -> AsyncIterator[Database]:
    """The engine's own pool, on the schema that every test database comes with."""
    async with await Database.open(durable_dsn, "gen_durable", size=4) as opened:
        yield opened


async def refused(sql: Any, call: str) -> Any:
    """The error of a call that is refused."""
    try:
        await sql.fetch(f"select * from gen_durable.{call}")
    except asyncpg.PostgresError as error:
        return error
    pytest.fail(f"{call} was not refused")
