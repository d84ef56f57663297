"""A plain connection to the test's database, and each of the two clients in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gen_durable import AsyncClient, Client
from tests.clients.conftest import Awaitable


@pytest.fixture(params=["AsyncClient", "Client"])
async def client(request: pytest.FixtureRequest, durable_dsn: str) -> AsyncIterator[Any]:
    if request.param == "AsyncClient":
        async with AsyncClient(durable_dsn) as opened:
            yield opened
    else:
        with Client(durable_dsn) as blocking:
            yield Awaitable(blocking)
