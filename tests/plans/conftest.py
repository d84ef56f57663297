from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from gen_durable.testing._databases import Databases
from tests.plans.explain import Explainer

HERE = Path(__file__).parent
POPULATION = Path(__file__).with_name("population.sql").read_text(encoding="utf-8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All in one process of pytest-xdist, with `--dist loadgroup`: each process would need a population of its own."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.xdist_group("plans"))


@pytest.fixture(scope="session")
def populated(durable_databases: Databases) -> Iterator[str]:
    """The DSN of a database with 200,000 instances. Tests undo what they do there."""
    with durable_databases.fresh() as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(POPULATION)
            conn.execute(
                "vacuum analyze gen_durable.gen_durable, gen_durable.signals, gen_durable.executions"
            )
        yield dsn


@pytest.fixture
async def explainer(populated: str) -> AsyncIterator[Explainer]:
    """A session among 200,000 instances, in a transaction that is rolled back."""
    async with Explainer.open(populated) as opened:
        transaction = opened.connection.transaction()
        await transaction.start()
        yield opened
        await transaction.rollback()
