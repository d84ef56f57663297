from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row

from gen_durable import AsyncClient, Client
from tests.clients.conftest import Awaitable


@pytest.fixture
def conn(direct_dsn: str) -> Iterator[psycopg.Connection[DictRow]]:
    """The same for tests that do not await."""
    with psycopg.connect(direct_dsn, autocommit=True, row_factory=dict_row) as opened:
        yield opened


@pytest.fixture(params=["AsyncClient", "Client"])
async def client(request: pytest.FixtureRequest, durable_dsn: str) -> AsyncIterator[Any]:
    if request.param == "AsyncClient":
        async with AsyncClient(durable_dsn) as opened:
            yield opened
    else:
        with Client(durable_dsn) as blocking:
            yield Awaitable(blocking)
