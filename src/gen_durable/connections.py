"""The types of the arguments `conn=` and `dsn=`.

Protocols describe the connections, so importing gen_durable imports no driver and no framework. Pools and engines do
not match them: a statement on a pool runs outside the transaction of the caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

__all__ = ["AsyncConnection", "Connection", "Dsn"]


class _Asyncpg(Protocol):
    def is_in_transaction(self) -> bool: ...


class _AsyncpgAcquired(Protocol):
    """The proxy that asyncpg's `pool.acquire()` returns; it forwards every attribute."""

    def __getattr__(self, attr: str, /) -> Any: ...


class _AsyncPsycopg(Protocol):
    async def set_autocommit(self, value: bool, /) -> None: ...


class _Psycopg(Protocol):
    def set_autocommit(self, value: bool, /) -> None: ...


class _Rows(Protocol):
    def fetchall(self) -> Any: ...


class _Sqlalchemy(Protocol):
    def exec_driver_sql(self, statement: str) -> _Rows: ...


class _Session(Protocol):
    def connection(self) -> _Sqlalchemy: ...


class _AsyncSqlalchemy(Protocol):
    async def exec_driver_sql(self, statement: str) -> _Rows: ...


class _AsyncSession(Protocol):
    async def connection(self) -> _AsyncSqlalchemy: ...


class _Django(Protocol):
    def ensure_connection(self) -> None: ...


AsyncConnection: TypeAlias = _Asyncpg | _AsyncpgAcquired | _AsyncPsycopg | _AsyncSession | _AsyncSqlalchemy
"""A connection of asyncpg, psycopg's `AsyncConnection`, or an `AsyncSession` or `AsyncConnection` of SQLAlchemy."""

Connection: TypeAlias = _Psycopg | _Session | _Sqlalchemy | _Django
"""psycopg's `Connection`, a `Session` or `Connection` of SQLAlchemy, or `django.db.connection`."""

Dsn: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""A DSN, or a plain or async function that returns one. It is called before every new connection."""
