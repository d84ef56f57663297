"""A fresh, migrated database per test, and a plain connection to look behind the engine's back."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from gen_durable._schema import migrate_schema
from gen_durable.embedded import EmbeddedPostgres

HOME = Path(__file__).parents[2] / ".gen_durable" / "scenarios"


@pytest.fixture(scope="session")
def template_dsn() -> Iterator[str]:
    with EmbeddedPostgres(HOME, idle_stop=timedelta(seconds=60), options={"fsync": "off"}) as server:
        dsn = server.ensure()
        name = f"template_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f'create database "{name}"'.encode())
        asyncio.run(migrate_schema(_in_database(dsn, name), "gen_durable"))
        yield _in_database(dsn, name)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f'drop database "{name}" with (force)'.encode())


@pytest.fixture
def durable_dsn(template_dsn: str) -> Iterator[str]:
    template = template_dsn.partition("?")[0].rpartition("/")[2]
    name = f"test_{uuid.uuid4().hex}"
    admin = _in_database(template_dsn, "postgres")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'create database "{name}" template "{template}"'.encode())
    yield _in_database(template_dsn, name)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'drop database "{name}" with (force)'.encode())


def _in_database(dsn: str, name: str) -> str:
    head, _, tail = dsn.partition("?")
    return f"{head.rpartition('/')[0]}/{name}?{tail}"


@pytest.fixture
async def db(durable_dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(durable_dsn)
    yield connection
    await connection.close()
