"""A plain connection to the test's database, and the engine's own pool for tests that run its plans one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gen_durable._db.pool import Database


@pytest.fixture(autouse=True)
def no_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment of whoever runs the tests says about prefixes is not meant for them."""
    monkeypatch.delenv("WORKER_TYPE_PREFIXES", raising=False)


@pytest.fixture
async def database(durable_dsn: str) -> AsyncIterator[Database]:
    async with await Database.open(durable_dsn, "gen_durable", size=4) as opened:
        yield opened
