from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.hijack.traps import traps

# Search paths: pg_catalog first (the default), or last.
PATHS = ["public", "public, pg_catalog"]


@pytest.fixture
async def attacker(db: Any) -> AsyncIterator[str]:
    """A producer, in a database where it may create in public: so is every one up to PostgreSQL 14."""
    name = f"attacker_{uuid.uuid4().hex[:12]}"
    await db.execute(
        f"create role {name} login nosuperuser password 'pw'; grant create on schema public to {name}"
    )
    await db.execute("select gen_durable.grant_producer($1)", name)
    yield name
    await db.execute(f"drop owned by {name} cascade; drop role {name}")


@pytest.fixture(params=PATHS)
async def trapped(request: pytest.FixtureRequest, direct_dsn: str, attacker: str, db: Any) -> str:
    """The DSN of a database with planted objects. They record the role that runs them in the table `caught`."""
    connection = await asyncpg.connect(re.sub(r"//[^@/]*@", f"//{attacker}:pw@", direct_dsn, count=1))
    await connection.execute(traps())
    await connection.close(timeout=5)
    database = urlsplit(direct_dsn).path.removeprefix("/")
    await db.execute(f'alter database "{database}" set search_path = {request.param}')
    return direct_dsn
