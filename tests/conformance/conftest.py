from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from tests.conformance.support import Sql


@pytest.fixture
def sql(direct_dsn: str) -> Iterator[Sql]:
    """A look behind the engine's back, into the database of the test."""
    opened = Sql(direct_dsn)
    yield opened
    opened.conn.close()


@pytest.fixture
async def async_sql(direct_dsn: str) -> AsyncIterator[Any]:
    """The same for those who await."""
    connection = await asyncpg.connect(direct_dsn)
    yield connection
    await connection.close(timeout=5)
