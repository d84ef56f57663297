from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from gen_durable.testing._databases import Databases
from tests.plans.explain import Explainer

POPULATION = Path(__file__).with_name("population.sql").read_text(encoding="utf-8")

TABLES = ("gen_durable.gen_durable", "gen_durable.signals", "gen_durable.executions")
VACUUM = f"vacuum {', '.join(TABLES)}"
STIRRED = "select sum(n_tup_ins + n_tup_upd) from pg_stat_xact_user_tables where schemaname = 'gen_durable'"


@pytest.fixture(scope="session")
def populated(durable_databases: Databases) -> Iterator[str]:
    """The DSN of a database with 200,000 instances. Tests undo what they do there."""
    with durable_databases.fresh() as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            # Its snapshots would keep ours from removing what a test left behind.
            for table in TABLES:
                conn.execute(f"alter table {table} set (autovacuum_enabled = off)")
            conn.execute(POPULATION)
            conn.execute(VACUUM)
            conn.execute(f"analyze {', '.join(TABLES)}")
        yield dsn


@pytest.fixture
async def explainer(populated: str) -> AsyncIterator[Explainer]:
    """A session among 200,000 instances, in a transaction that is rolled back."""
    async with Explainer.open(populated) as opened:
        transaction = opened.connection.transaction()
        await transaction.start()
        yield opened
        stirred = await opened.connection.fetchval(STIRRED)
        await transaction.rollback()
    if stirred > 1000:  # what it leaves behind would be counted with the blocks of others
        with psycopg.connect(populated, autocommit=True) as conn:
            conn.execute(VACUUM)
