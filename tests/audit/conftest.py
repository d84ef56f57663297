"""One database per test module; each test reads its own instances."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from gen_durable import Settings
from gen_durable._db.pool import Database
from gen_durable.testing import Harness
from gen_durable.testing._databases import Databases


@pytest.fixture(scope="module")
def dsn(durable_databases: Databases) -> Iterator[str]:
    with durable_databases.clean("gen_durable") as made:
        yield made


@pytest.fixture(scope="module")
def stage(dsn: str) -> Iterator[Harness]:
    with Harness(dsn, settings=Settings(alerts="ops", crash_limit=2)) as harness:
        yield harness


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Database]:
    async with await Database.open(dsn, "gen_durable", size=2) as opened:
        yield opened
