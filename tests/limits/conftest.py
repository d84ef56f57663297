from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gen_durable import AsyncClient


@pytest.fixture
async def client(durable_dsn: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(durable_dsn) as opened:
        yield opened
