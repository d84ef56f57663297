"""Run plans on connections of callers: of asyncpg and psycopg, and sessions of SQLAlchemy and Django.

SQLAlchemy and Django are recognized by class names, so that they need not be installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from ..errors import UsageError
from .caller_search_path import on_pinned_path
from .plan import Plan
from .runner import run_asyncpg, run_psycopg, run_psycopg_async

__all__ = ["driver_of", "is_connection"]

T = TypeVar("T")
Driver: TypeAlias = Callable[..., Any]
"""Runs a plan on a connection, in a schema; `as_one`: in one transaction, the caller's if there is one."""

# Advice for objects that are passed by mistake, by the end of the class name.
_MISTAKES: Final = {
    "Pool": "a pool has no transaction of yours: acquire a connection and pass that",
    "Engine": "an engine has no transaction of yours: pass a session or a connection",
    "MockConnection": "it does not run statements (alembic --sql): use the output of `gen-durable db sql`",
}


def is_connection(given: object) -> bool:
    """Whether this is a connection or session. Some of these are callable, like a function that returns a DSN."""
    return bool(_kinds(given) & (_BLOCKING.keys() | _ASYNC.keys()))


def driver_of(conn: Any, *, blocking: bool) -> Driver:
    """Return the function that runs plans on this connection.

    Raises:
        UsageError: it is not a supported connection.
    """
    kinds = _kinds(conn)
    for kind, driver in (_BLOCKING if blocking else _ASYNC).items():
        if kind in kinds:
            return driver
    what = f"conn= is a {type(conn).__module__.split('.')[0]} {type(conn).__name__}"
    for end, advice in _MISTAKES.items():
        if type(conn).__name__.endswith(end):
            raise UsageError(what, advice)
    raise UsageError(what, f"pass {_WANTED[blocking]}")


async def _run_asyncpg(conn: Any, plan: Plan[T], schema: str, *, as_one: bool = False) -> T:
    return await run_asyncpg(conn, on_pinned_path(plan, conn.is_in_transaction, as_one=as_one), schema)


def _run_psycopg(conn: Any, plan: Plan[T], schema: str, *, as_one: bool = False) -> T:
    pinned = on_pinned_path(plan, lambda: _is_in_transaction(conn), as_one=as_one)
    return run_psycopg(conn, pinned, schema)


async def _run_psycopg_async(conn: Any, plan: Plan[T], schema: str, *, as_one: bool = False) -> T:
    pinned = on_pinned_path(plan, lambda: _is_in_transaction(conn), as_one=as_one)
    return await run_psycopg_async(conn, pinned, schema)


def _is_in_transaction(conn: Any) -> bool:
    """Whether the next statement is part of a transaction; in a pipeline, all statements up to the sync are."""
    is_piped = bool(conn.pgconn.pipeline_status)
    return not conn.autocommit or is_piped or conn.info.transaction_status.name != "IDLE"


def _run_sqlalchemy(conn: Any, plan: Plan[T], schema: str, *, as_one: bool = False) -> T:
    """In the transaction of a Session or Connection of SQLAlchemy."""
    found = conn if "sqlalchemy.Connection" in _kinds(conn) else conn.connection()
    if not found.in_transaction():
        found.begin()  # otherwise commit() of SQLAlchemy does nothing
    raw = found.connection.driver_connection
    result: T
    if _kinds(raw) & _ASYNC.keys():
        # Alembic on an async engine: SQLAlchemy awaits in a greenlet.
        driver = driver_of(raw, blocking=False)
        if driver is _run_asyncpg and not raw.is_in_transaction():
            found.exec_driver_sql("select 1")  # see _run_sqlalchemy_async
        wait = importlib.import_module("sqlalchemy.util").await_only
        result = wait(driver(raw, plan, schema, as_one=as_one))
    else:
        result = driver_of(raw, blocking=True)(raw, plan, schema, as_one=as_one)
    return result


async def _run_sqlalchemy_async(conn: Any, plan: Plan[T], schema: str, *, as_one: bool = False) -> T:
    """In the transaction of an AsyncSession or AsyncConnection of SQLAlchemy."""
    found = conn if "sqlalchemy.AsyncConnection" in _kinds(conn) else await conn.connection()
    if not found.in_transaction():
        await found.begin()
    raw = (await found.get_raw_connection()).driver_connection
    driver = driver_of(raw, blocking=False)
    # With asyncpg, SQLAlchemy sends BEGIN just before its own first statement. A statement of ours before that would be
    # autocommitted.
    if driver is _run_asyncpg and not raw.is_in_transaction():
        await found.exec_driver_sql("select 1")
    result: T = await driver(raw, plan, schema, as_one=as_one)
    return result


def _run_django(conn: Any, plan: Plan[T], schema: str, *, as_one: bool = False) -> T:
    """In the transaction of Django's connection; in autocommit outside of one."""
    conn.ensure_connection()
    conn.validate_no_broken_transaction()
    raw = conn.connection
    driver = driver_of(raw, blocking=True)
    try:
        result: T = driver(raw, plan, schema, as_one=as_one)
        return result
    except BaseException:
        # As if a cursor of Django had raised it: Django checks the connection before its next use. An atomic() block
        # that catches the error rolls back, and does not send a COMMIT that PostgreSQL turns into a ROLLBACK.
        conn.errors_occurred = True
        if conn.in_atomic_block and raw.info.transaction_status.name == "INERROR":
            conn.set_rollback(True)
        raise


_BLOCKING: Final[dict[str, Driver]] = {
    "psycopg.Connection": _run_psycopg,
    "sqlalchemy.Session": _run_sqlalchemy,
    "sqlalchemy.scoped_session": _run_sqlalchemy,
    "sqlalchemy.Connection": _run_sqlalchemy,
    "django.BaseDatabaseWrapper": _run_django,
    "django.ConnectionProxy": _run_django,
}
_ASYNC: Final[dict[str, Driver]] = {
    "asyncpg.Connection": _run_asyncpg,
    "asyncpg.PoolConnectionProxy": _run_asyncpg,  # returned by pool.acquire()
    "psycopg.AsyncConnection": _run_psycopg_async,
    "sqlalchemy.AsyncSession": _run_sqlalchemy_async,
    "sqlalchemy.async_scoped_session": _run_sqlalchemy_async,
    "sqlalchemy.AsyncConnection": _run_sqlalchemy_async,
}
_WANTED: Final = {
    True: "a psycopg Connection (an asyncpg or async one goes to AsyncClient), or a session over one",
    False: "an asyncpg Connection or a psycopg AsyncConnection (a blocking one goes to Client), or a session over one",
}


def _kinds(conn: Any) -> set[str]:
    return {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(conn).__mro__}
