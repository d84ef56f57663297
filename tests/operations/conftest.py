"""A plain connection to the test's database, the engine's own pool, and each of the two clients in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gen_durable import AsyncClient, Client, Settings
from gen_durable._db.pool import Database
from tests.clients.conftest import Awaitable


@pytest.fixture
async def database(durable_dsn: str, durable_settings: Settings) -> AsyncIterator[Database]:
    pooler = durable_settings.pooler
    async with await Database.open(durable_dsn, "gen_durable", size=4, pooler=pooler) as opened:
        yield opened


@pytest.fixture(params=["AsyncClient", "Client"])
async def client(request: pytest.FixtureRequest, durable_dsn: str) -> AsyncIterator[Any]:
    if request.param == "AsyncClient":
        async with AsyncClient(durable_dsn) as opened:
            yield opened
    else:
        with Client(durable_dsn) as blocking:
            yield Awaitable(blocking)
