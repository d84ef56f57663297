from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from gen_durable.embedded import EmbeddedPostgres
from tests.interleavings.bench import Bench

# No durability needed; autovacuum would be an uncontrolled session.
_OPTIONS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "autovacuum": "off"}


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A server for this test process."""
    home = Path(tempfile.mkdtemp(prefix="gd-")).resolve()
    home.chmod(0o711)  # the server's account needs access
    postgres = EmbeddedPostgres(home / "home", idle_stop=timedelta(0), options=_OPTIONS)
    yield postgres.ensure()
    postgres.close()
    shutil.rmtree(home, ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(server: str) -> AsyncIterator[Bench]:
    """A database with default isolation REPEATABLE READ, and connections to it."""
    name = f"interleavings_{uuid4().hex}"
    admin = await asyncpg.connect(server)
    await admin.execute(f"create database {name}")
    await admin.execute(f"alter database {name} set default_transaction_isolation = 'repeatable read'")
    made = await Bench.open(server, name)
    yield made
    await made.close()
    await admin.execute(f"drop database {name} with (force)")
    await admin.close()
