"""A plain connection to the test's database, and the engine's own pool for tests that run its plans one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gen_durable._db.pool import Database


@pytest.fixture(autouse=True)
def no_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment of whoever runs the tests says about prefixes is not meant for them."""
    for variable in ("GEN_DURABLE_PREFIXES", "WORKER_TYPE_PREFIXES"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
async def database(durable_dsn: str) -> AsyncIterator[Database]:
    async with await Database.open(durable_dsn, "gen_durable", size=4) as opened:
        yield opened
