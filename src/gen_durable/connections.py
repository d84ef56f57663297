"""The connections that `conn=` takes, and what `dsn=` may be.

They are told by their shape, so that importing gen_durable imports no driver. A pool has none of these
shapes, and must not: a statement that goes to a pool is outside of the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

__all__ = ["AsyncConnection", "Connection", "Dsn"]


class _Asyncpg(Protocol):
    def is_in_transaction(self) -> bool: ...


class _AsyncpgAcquired(Protocol):
    """The proxy that asyncpg's `pool.acquire()` hands out: it passes every attribute on."""

    def __getattr__(self, attr: str, /) -> Any: ...


class _AsyncPsycopg(Protocol):
    async def set_autocommit(self, value: bool, /) -> None: ...


class _Psycopg(Protocol):
    def set_autocommit(self, value: bool, /) -> None: ...


AsyncConnection: TypeAlias = _Asyncpg | _AsyncpgAcquired | _AsyncPsycopg
"""A connection of asyncpg, or psycopg's `AsyncConnection`."""

Connection: TypeAlias = _Psycopg
"""psycopg's `Connection`."""

Dsn: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""A DSN, or a function (plain or async) that is asked for one before every new connection."""
