"""Disposable servers, and databases on the shared server."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from gen_durable._schema import migrate_schema
from tests.chaos.arena import Arena
from tests.chaos.cluster import DURABLE, FORGETFUL, Cluster, Installation
from tests.chaos.machines import LEDGER
from tests.embedded.once import made_once


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """PostgreSQL, and a data directory with the schema and a ledger."""
    with (
        made_once(tmp_path_factory, "chaos-template", _make_template) as template,
        Installation.open(template) as installation,
    ):
        yield installation


@pytest.fixture
def cluster(installation: Installation) -> Iterator[Cluster]:
    """A server without durability."""
    with installation.cluster(FORGETFUL) as cluster:
        yield cluster


@pytest.fixture
def durable_cluster(installation: Installation) -> Iterator[Cluster]:
    """A server with durability."""
    with installation.cluster(DURABLE) as cluster:
        yield cluster


@pytest.fixture
async def database(direct_dsn: str) -> str:
    """A database with a ledger on the shared server, for faults of workers and connections."""
    await _give_ledger(direct_dsn)
    return direct_dsn


@pytest.fixture
async def arena(database: str, tmp_path: Path) -> AsyncIterator[Arena]:
    async with Arena.open(database, tmp_path) as arena:
        yield arena


def _make_template(path: Path) -> None:
    with Installation.open() as installation:
        with installation.cluster(FORGETFUL) as cluster:
            asyncio.run(_furnish(cluster.dsn))
            cluster.stop()
            installation.keep(cluster)
        subprocess.run(["mv", installation.template, path], check=True)


async def _furnish(dsn: str) -> None:
    await migrate_schema(dsn, "gen_durable")
    await _give_ledger(dsn)


async def _give_ledger(dsn: str) -> None:
    conn = await asyncpg.connect(dsn)
    await conn.execute(LEDGER)
    await conn.close()
