"""The schema as operators and hosts handle it: one look or one change, on a connection of ours or of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeGuard, TypeVar

from ._db import migrate as migrations
from ._db.address import ask_blocking
from ._db.caller_connection import driver_of, is_connection
from ._db.migrate import LATEST, Schema
from ._db.plan import Plan
from ._db.pool import Database
from ._server import Server
from .config import Pooler, Settings
from .connections import AsyncConnection, Connection, Dsn
from .errors import UsageError

__all__ = [
    "LATEST",
    "Schema",
    "drop_schema",
    "migrate",
    "migrate_async",
    "migrate_schema",
    "run_on",
    "schema_status",
    "server_dsn",
]

T = TypeVar("T")


def migrate(
    where: Dsn | Connection | None = None, /, *, schema: str | None = None, version: int | None = None
) -> int:
    """Bring the tables of gen_durable to a version, up or down, in one transaction.

    With a connection it is part of the transaction of that connection: nothing is there until its owner commits. On one
    that is in no transaction it is a transaction of its own. Any number of processes may do it at once: one works, the
    others wait and find it done.

    Args:
        where: a DSN, or a blocking connection: of psycopg, a `Session` or `Connection` of SQLAlchemy (such as Alembic's
            `op.get_bind()`), or Django's. Left out, `GEN_DURABLE_DSN` or the embedded server.
        schema: the PostgreSQL schema; left out, that of the settings (`GEN_DURABLE_SCHEMA`, else `gen_durable`).
        version: which one; left out, the latest. 0 removes the tables and what they hold.

    Returns:
        The version that the schema has now.

    Raises:
        UsageError: there is no such version.
        SchemaVersionError: the schema is newer than this library.
    """
    settings, to = _wanted(schema, version)
    plan = migrations.migrate(settings.schema, to)
    if _is_dsn(where):
        found = _blocking(_run(where, settings.schema, plan, settings.pooler))
    else:
        found = run_on(where, plan, settings.schema)
    return found.version or 0


async def migrate_async(
    where: Dsn | AsyncConnection | None = None, /, *, schema: str | None = None, version: int | None = None
) -> int:
    """The same for an event loop: `where` is a DSN, or an async connection.

    Of asyncpg or psycopg, or an `AsyncSession` or `AsyncConnection` of SQLAlchemy.
    """
    settings, to = _wanted(schema, version)
    plan = migrations.migrate(settings.schema, to)
    if _is_dsn(where):
        found = await _run(where, settings.schema, plan, settings.pooler)
    else:
        found = await driver_of(where, blocking=False)(where, plan, settings.schema, as_one=True)
    return found.version or 0


def run_on(conn: Any, plan: Plan[T], schema: str) -> T:
    """Run a plan as one transaction of a blocking connection that a caller brought."""
    result: T = driver_of(conn, blocking=True)(conn, plan, schema, as_one=True)
    return result


def _is_dsn(where: object) -> TypeGuard[Dsn | None]:
    return where is None or isinstance(where, str) or (callable(where) and not is_connection(where))


def _wanted(schema: str | None, version: int | None) -> tuple[Settings, int]:
    settings = Settings.load() if schema is None else Settings.load(schema=schema)
    if version is None:
        return settings, LATEST
    if type(version) is not int:
        raise UsageError(f"version= must be an int, got {type(version).__name__}", f"give 0 to {LATEST}")
    return settings, version


def _blocking(work: Coroutine[Any, Any, T]) -> T:
    """Wait for it, on a thread of its own: a loop may run in this one."""
    with ThreadPoolExecutor(1, thread_name_prefix="gen_durable migrate") as thread:
        return thread.submit(asyncio.run, work).result()


async def schema_status(dsn: str | None, schema: str, pooler: Pooler = "none") -> Schema:
    """Which version is installed there."""
    return await _run(dsn, schema, migrations.status(schema), pooler)


def server_dsn(dsn: str | None) -> str:
    """Where PostgreSQL is: as given, as the environment says, or the embedded server, started if need be."""
    server = Server.find(dsn)
    try:
        found = server.dsn
        return found if isinstance(found, str) else ask_blocking(found)
    finally:
        server.close()


async def migrate_schema(
    dsn: str | None, schema: str, to: int | None = None, pooler: Pooler = "none"
) -> Schema:
    """Bring it to a version (`None`: the latest), up or down; 0 takes everything back."""
    return await _run(dsn, schema, migrations.migrate(schema, to), pooler)


async def drop_schema(dsn: str | None, schema: str) -> None:
    """Remove it whole, whatever is in it, of whichever version."""
    await _run(dsn, schema, migrations.drop(schema), "none")


async def _run(dsn: Dsn | None, schema: str, plan: Plan[T], pooler: Pooler) -> T:
    server = await Server.find_async(dsn)
    try:
        async with await Database.open(
            server.dsn, schema, size=1, advice=server.advice, pooler=pooler
        ) as database:
            return await database.run_in_transaction(plan)
    finally:
        await server.close_async()
