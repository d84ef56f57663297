"""The pool of the engine, on the test's database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gen_durable._db.pool import Database


@pytest.fixture
async def database(durable_dsn: str) -> AsyncIterator[Database]:
    """The engine's own pool, for tests that run its plans one by one."""
    async with await Database.open(durable_dsn, "gen_durable", size=4) as opened:
        yield opened
