from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest


@pytest.fixture
async def sql(durable_dsn: str) -> AsyncIterator[Any]:
    """A plain asyncpg connection, to call the SQL functions as other languages do."""
    connection = await asyncpg.connect(durable_dsn)
    yield connection
    await connection.close(timeout=5)


async def refused(sql: Any, call: str) -> Any:
    """The error of a refused call."""
    try:
        await sql.fetch(f"select * from gen_durable.{call}")
    except asyncpg.PostgresError as error:
        return error
    pytest.fail(f"{call} was not refused")
