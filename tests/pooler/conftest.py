from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from gen_durable import Settings


@pytest.fixture
def durable_settings() -> Settings:
    """With these, `durable_dsn` leads through PgBouncer."""
    return Settings(
        pooler="transaction",
        poll_interval=timedelta(milliseconds=100),
        lease=timedelta(seconds=1),
        heartbeat=timedelta(milliseconds=300),
        reap_interval=timedelta(milliseconds=100),
        drain_timeout=timedelta(seconds=5),
    )


@pytest.fixture
async def db(direct_dsn: str) -> AsyncIterator[Any]:
    """A connection to the server itself, to look behind the engine's back."""
    connection = await asyncpg.connect(direct_dsn)
    yield connection
    await connection.close()
