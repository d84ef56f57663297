"""The schema as operators handle it: one look or one change, on a connection that is opened for it."""

from __future__ import annotations

from typing import TypeVar

from ._db import migrate
from ._db.address import ask_blocking
from ._db.migrate import LATEST, Schema
from ._db.plan import Plan
from ._db.pool import Database
from ._server import Server
from .config import Pooler

__all__ = ["LATEST", "Schema", "drop_schema", "migrate_schema", "schema_status", "server_dsn"]

T = TypeVar("T")


async def schema_status(dsn: str | None, schema: str, pooler: Pooler = "none") -> Schema:
    """Which version is installed there."""
    return await _run(dsn, schema, migrate.status(schema), pooler)


def server_dsn(dsn: str | None) -> str:
    """Where PostgreSQL is: as given, as the environment says, or the embedded server, started if need be."""
    server = Server.find(dsn)
    try:
        found = server.dsn
        return found if isinstance(found, str) else ask_blocking(found)
    finally:
        server.close()


async def migrate_schema(dsn: str | None, schema: str, to: int = LATEST, pooler: Pooler = "none") -> Schema:
    """Bring it to a version, up or down; 0 takes everything back."""
    return await _run(dsn, schema, migrate.migrate(schema, to), pooler)


async def drop_schema(dsn: str | None, schema: str) -> None:
    """Remove it whole, whatever is in it, of whichever version."""
    await _run(dsn, schema, migrate.drop(schema), "none")


async def _run(dsn: str | None, schema: str, plan: Plan[T], pooler: Pooler) -> T:
    server = Server.find(dsn)
    try:
        async with await Database.open(
            server.dsn, schema, size=1, advice=server.advice, pooler=pooler
        ) as database:
            return await database.run_in_transaction(plan)
    finally:
        server.close()
