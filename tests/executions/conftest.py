"""A plain connection to the test's database, with a ledger in it: what an effect writes there has happened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gen_durable._db.pool import Database
from tests.executions.ledger import LEDGER


@pytest.fixture
async def db(db: Any) -> Any:
    """With a table for the effects of steps."""
    await db.execute(LEDGER)
    return db


@pytest.fixture
async def database(durable_dsn: str) -> AsyncIterator[Database]:
    """The engine's own pool, for tests that run its plans one by one."""
    async with await Database.open(durable_dsn, "gen_durable", size=4) as opened:
        yield opened
