"""A plain connection to the test's database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from gen_durable._db.pool import Database


@pytest.fixture
async def db(durable_dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(durable_dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def database(durable_dsn: str) -> AsyncIterator[Database]:
    """The engine's own pool, for tests that run its plans one by one."""
    async with await Database.open(durable_dsn, "gen_durable", size=4) as opened:
        yield opened
