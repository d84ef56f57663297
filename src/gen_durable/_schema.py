"""Read or migrate the schema, on a connection of our own or of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeGuard, TypeVar

from ._db import migrate as migrations
from ._db.address import resolve_dsn_blocking
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
    "schema_on",
    "schema_status",
    "server_dsn",
]

T = TypeVar("T")


def migrate(
    where: Dsn | Connection | None = None, /, *, schema: str | None = None, version: int | None = None
) -> int:
    """Migrate the tables of gen_durable to a version, up or down, in one transaction.

        migrate("postgresql://shop@db/shop")

    On a connection in a transaction it is part of that transaction, and visible after the caller commits. Otherwise it
    is a transaction of its own. Processes may call it concurrently: one migrates, the others wait.

    Args:
        where: a DSN, or a blocking connection: of psycopg, a `Session` or `Connection` of SQLAlchemy (such as Alembic's
            `op.get_bind()`), or Django's. Default: `GEN_DURABLE_DSN`, else the embedded server.
        schema: the PostgreSQL schema. Default: that of the settings (`GEN_DURABLE_SCHEMA`, else `gen_durable`).
        version: the target version. Default: the latest. 0 drops the tables with their data.

    Returns:
        The version of the schema now.

    Raises:
        UsageError: the version does not exist.
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
    """`migrate` for an event loop.

    `where` is a DSN, or an async connection of asyncpg or psycopg, or an `AsyncSession` or `AsyncConnection` of
    SQLAlchemy.
    """
    settings, to = _wanted(schema, version)
    plan = migrations.migrate(settings.schema, to)
    if _is_dsn(where):
        found = await _run(where, settings.schema, plan, settings.pooler)
    else:
        found = await driver_of(where, blocking=False)(where, plan, settings.schema, as_one=True)
    return found.version or 0


def run_on(conn: Any, plan: Plan[T], schema: str) -> T:
    """Run a plan as one transaction on a blocking connection of a caller."""
    result: T = driver_of(conn, blocking=True)(conn, plan, schema, as_one=True)
    return result


def _is_dsn(where: object) -> TypeGuard[Dsn | None]:
    return where is None or isinstance(where, str) or (callable(where) and not is_connection(where))


def _wanted(schema: str | None, version: int | None) -> tuple[Settings, int]:
    settings = Settings.load() if schema is None else Settings.load(schema=schema)
    if version is None:
        return settings, LATEST
    if type(version) is not int:
        raise UsageError(f"version= must be an int, got {type(version).__name__}", f"pass 0 to {LATEST}")
    return settings, version


def _blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on another thread, because this one may run an event loop."""
    with ThreadPoolExecutor(1, thread_name_prefix="gen_durable migrate") as thread:
        return thread.submit(asyncio.run, work).result()


async def schema_status(dsn: str | None, schema: str, pooler: Pooler = "none") -> Schema:
    """Read the installed version."""
    return await _run(dsn, schema, migrations.status(schema), pooler)


async def schema_on(server: Server, schema: str, pooler: Pooler = "none") -> Schema:
    """Read the installed version of a running server, without keeping an embedded one running."""
    return await _run_on(server, schema, migrations.status(schema), pooler)


def server_dsn(dsn: str | None) -> str:
    """Return the DSN: as given, else of the environment, else of the embedded server, started if necessary."""
    server = Server.find(dsn)
    try:
        found = server.dsn
        return found if isinstance(found, str) else resolve_dsn_blocking(found)
    finally:
        server.close()


async def migrate_schema(
    dsn: str | None,
    schema: str,
    to: int | None = None,
    pooler: Pooler = "none",
    *,
    reason: str | None = None,
    actor: str | None = None,
) -> Schema:
    """Migrate to a version (`None`: the latest), up or down; 0 drops everything."""
    return await _run(dsn, schema, migrations.migrate(schema, to, reason=reason, actor=actor), pooler)


async def drop_schema(dsn: str | None, schema: str) -> None:
    """Drop the schema with everything in it, of any version."""
    await _run(dsn, schema, migrations.drop(schema), "none")


async def _run(dsn: Dsn | None, schema: str, plan: Plan[T], pooler: Pooler) -> T:
    server = await Server.find_async(dsn)
    try:
        return await _run_on(server, schema, plan, pooler)
    finally:
        await server.close_async()


async def _run_on(server: Server, schema: str, plan: Plan[T], pooler: Pooler) -> T:
    async with await Database.open(
        server.dsn, schema, size=1, advice=server.advice, pooler=pooler
    ) as database:
        return await database.run_in_transaction(plan)
