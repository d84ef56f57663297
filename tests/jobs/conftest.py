"""Connections of the test's own, to look behind the engine's back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.rows import DictRow, dict_row


@pytest.fixture
async def db(durable_dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(durable_dsn)
    yield connection
    await connection.close()


@pytest.fixture
def conn(durable_dsn: str) -> Iterator[psycopg.Connection[DictRow]]:
    """The same for tests that do not await."""
    with psycopg.connect(durable_dsn, autocommit=True, row_factory=dict_row) as conn:
        yield conn
