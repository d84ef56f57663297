from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest_asyncio

from gen_durable.testing._databases import Databases
from tests.plans.explain import Explained, Explainer
from tests.plans.statements import explained

POPULATION = Path(__file__).with_name("population.sql").read_text(encoding="utf-8")

TABLES = (
    "gen_durable.gen_durable",
    "gen_durable.signals",
    "gen_durable.executions",
    "gen_durable.outbox",
    "gen_durable.audit_events",
    "gen_durable.stream_items",
)
VACUUM = f"vacuum {', '.join(TABLES)}"
CHANGED = "select sum(n_tup_ins + n_tup_upd) from pg_stat_xact_user_tables where schemaname = 'gen_durable'"


class Populated(NamedTuple):
    dsn: str
    # Statements of a session that had prepared its plans before the rows were inserted.
    by_old_plans: Mapping[str, Explained]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def populated(durable_databases: Databases) -> AsyncIterator[Populated]:
    """A database with 200,000 instances. Tests roll back their changes."""
    with durable_databases.fresh() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        # The snapshots of autovacuum would prevent VACUUM from removing dead rows of earlier tests.
        for table in TABLES:
            conn.execute(f"alter table {table} set (autovacuum_enabled = off)")
        async with Explainer.open(dsn) as early:
            await explained(early)
            conn.execute(POPULATION)
            by_old_plans = await explained(early)
        conn.execute(VACUUM)
        conn.execute(f"analyze {', '.join(TABLES)}")
        yield Populated(dsn, by_old_plans)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def session(populated: Populated) -> AsyncIterator[Explainer]:
    """One session for all tests: like a worker's, it plans each statement once."""
    async with Explainer.open(populated.dsn) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def explainer(populated: Populated, session: Explainer) -> AsyncIterator[Explainer]:
    """A session among 200,000 instances, in a transaction that is rolled back."""
    transaction = session.connection.transaction()
    await transaction.start()
    try:
        yield session
        changed = await session.connection.fetchval(CHANGED)
    finally:
        await transaction.rollback()
    if changed > 1000:  # its dead rows would add to the block counts of later tests
        with psycopg.connect(populated.dsn, autocommit=True) as conn:
            conn.execute(VACUUM)
