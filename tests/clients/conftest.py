from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from gen_durable import AsyncClient, Client


class Awaitable:
    """A blocking client behind the face of the other one, so that one test can ask both."""

    def __init__(self, client: Client) -> None:
        self.blocking = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.blocking, name)

        async def call(*args: Any, **options: Any) -> Any:
            return await asyncio.to_thread(method, *args, **options)

        return call


@pytest.fixture(params=["AsyncClient", "Client"])
async def client(request: pytest.FixtureRequest, durable_dsn: str) -> AsyncIterator[Any]:
    """Each of the two clients in turn: what one answers the other must answer."""
    if request.param == "AsyncClient":
        async with AsyncClient(durable_dsn) as opened:
            yield opened
    else:
        with Client(durable_dsn) as blocking:
            yield Awaitable(blocking)


@pytest.fixture
async def sql(direct_dsn: str) -> AsyncIterator[Any]:
    """A connection beside the client's, to see what is really there."""
    connection = await asyncpg.connect(direct_dsn)
    yield connection
    await connection.close(timeout=5)
