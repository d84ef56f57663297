"""Run plans and transactions on a pool of our own connections."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ..config import Pooler, Settings
from ..connections import Dsn
from .address import unreachable
from .connection_pool import ConnectionPool
from .connector import NEWER, PINNED, Connector, has_newer, local
from .failures import StatementError, is_no_reply
from .plan import Plan, only
from .reply_timeouts import ReplyTimeouts
from .runner import asyncpg_failures, drive, from_asyncpg, run_asyncpg
from .sqlstates import FEATURE_NOT_SUPPORTED, READ_ONLY
from .watchdog import Watchdog

__all__ = ["Database", "OpenTransaction"]

T = TypeVar("T")

# Undo what an effect may have changed in a session; prepared statements stay. The default search_path of such a session
# is that of its role and database, and the pinned one is set on top.
_PIN_PATH: Final = f"set search_path = {PINNED['search_path']}"
_RESET: Final = (
    "reset session authorization; reset role; reset all; close all; unlisten *; "
    "select pg_catalog.pg_advisory_unlock_all(); discard sequences; discard temp; " + _PIN_PATH
)
# Set in the transaction of an effect. `lock_for_effect` reads it to see that the transaction is still the same: its end
# resets the setting. Not under the name of the schema, which a user may choose.
_IN_EFFECT: Final = {"gen_durable_pool.in_effect": "on"}
# Deferred triggers of the effect run at COMMIT, on the search_path that the effect had.
_COMMIT_EFFECT: Final = (
    "select pg_catalog.set_config('search_path', pg_catalog.current_setting('gen_durable_pool.path'), true);"
    " commit"
)
# Seconds until a statement is planned again. The plan for a small table would otherwise be used for a table that grows
# fast, until autovacuum analyzes it.
_PLAN_LIFETIME: Final = 10


class Database:
    """A pool of pinned connections to one schema."""

    def __init__(
        self,
        schema: str,
        pool: ConnectionPool,
        watchdog: Watchdog,
        pins: Mapping[str, str] | None,
        connector: Connector,
    ) -> None:
        self.schema = schema
        self.watchdog = watchdog
        """Watches this pool and those that are opened with `watchdog=`."""
        self._pool = pool
        # The settings that each transaction has to set, because behind a pooler no session is ours.
        self._pins = pins
        self._connector = connector

    @property
    def connects(self) -> int:
        """How many connections it has opened. While this is unchanged, no connection was replaced."""
        return self._connector.connects

    @property
    def where(self) -> str:
        """The DSN of the latest connect; the function of a DSN may return another one each time."""
        return self._connector.where

    @classmethod
    async def open(
        cls,
        dsn: Dsn,
        schema: str,
        *,
        name: str = "statements",
        connect_now: bool = True,
        size: int = 10,
        advice: str = "",
        lock_timeout: str = "10s",
        reply_timeouts: ReplyTimeouts | None = None,
        watchdog: Watchdog | None = None,
        pooler: Pooler = "none",
        for_effects: bool = False,
        only_reads_for: timedelta | None = None,
    ) -> Self:
        """Make a pool of at most `size` connections; open the first one if `connect_now`.

        Behind a pooler in transaction mode, sessions are shared with other clients: nothing is prepared, and every
        BEGIN sets the settings that we rely on.

        Args:
            dsn: the DSN of PostgreSQL, or a function that returns it.
            schema: the schema of the tables.
            name: what the connections are for, in log lines.
            connect_now: whether to open a connection now.
            size: the most connections.
            advice: text to add to the error if the server is unreachable.
            lock_timeout: how long statements wait for a lock.
            reply_timeouts: how long to wait for replies; by default those of the default lease.
            watchdog: the watchdog of another pool, to share; by default a new one.
            pooler: the pooler in front of PostgreSQL.
            for_effects: whether effects run on the connections; each session is reset after use.
            only_reads_for: if given, the connections are read-only, and a statement is cancelled after this time.

        Raises:
            UnreachableError: the database cannot be reached.
        """
        is_pooled = pooler == "transaction"
        pins = {**PINNED, "lock_timeout": lock_timeout}
        if only_reads_for is not None:
            limit = f"{round(only_reads_for.total_seconds() * 1000)}ms"
            pins |= {"default_transaction_read_only": "on", "statement_timeout": limit}
        unpinned = {"search_path"} if for_effects else set()
        bounds = reply_timeouts or ReplyTimeouts.of(Settings().lease, is_pooled=is_pooled)
        at_start = None if is_pooled else {name: pins[name] for name in pins if name not in unpinned}
        options = {
            "statement_cache_size": 0 if is_pooled else 100,
            "max_cached_statement_lifetime": _PLAN_LIFETIME,
        }
        connector = Connector(dsn, bounds, at_start, **options)

        async def clean(conn: Any) -> None:
            await conn.execute(_RESET)

        async def connect_for_effects() -> Any:
            conn = await connector()
            try:
                await conn.execute(_PIN_PATH)
            except BaseException:
                conn.terminate()
                raise
            return conn

        is_cleaned = for_effects and not is_pooled
        pool = ConnectionPool(
            name, connect_for_effects if is_cleaned else connector, size, clean if is_cleaned else None
        )
        watchdog = watchdog or Watchdog(Connector(dsn, bounds, at_start, **options), bounds)
        made = cls(schema, pool, watchdog, pins if is_pooled else None, connector)
        failures: tuple[type[Exception], ...] = (*asyncpg_failures(), StatementError, ValueError)
        problem = None
        if connect_now:
            try:
                await pool.release(await pool.acquire(), is_reusable=True)
            except failures as error:
                problem = unreachable(dsn, error, advice, connector.where)
        if problem is not None:
            raise problem  # outside `except`: the driver's error, which may quote the DSN, must not be its context
        watchdog.watch(pool, asks=not is_pooled)
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; wait briefly for those in use."""
        self.watchdog.forget(self._pool)
        await self._pool.close()

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan whose statements need no common transaction."""
        if self._pins is not None:
            return await drive(plan, lambda call: self.run_in_transaction(only(call)))
        return await self.run_bare(plan)

    async def run_bare(self, plan: Plan[T]) -> T:
        """Run a plan without BEGIN, even behind a pooler: for statements that cannot run in a transaction."""
        async with _Acquired(self._pool, self.watchdog) as conn:
            return await run_asyncpg(conn, plan, self.schema)

    async def run_in_transaction(self, plan: Plan[T], *, lock_timeout: str | None = None) -> T:
        """Run a plan as one transaction."""
        async with (
            _Acquired(self._pool, self.watchdog) as conn,
            _Transaction(conn, self._settings(lock_timeout)),
        ):
            return await run_asyncpg(conn, plan, self.schema)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[OpenTransaction]:
        """Begin a transaction in which several plans run, for `async with`; commit it at the end of the block."""
        async with _Acquired(self._pool, self.watchdog) as conn, _Transaction(conn, self._settings()):
            yield OpenTransaction(conn, self.schema, self._pool, self.watchdog, self._pins, self._connector)

    async def run_snapshot(self, plan: Plan[T]) -> T:
        """Run a plan of reads whose statements all see the database as it is at the first one."""
        async with (
            _Acquired(self._pool, self.watchdog) as conn,
            _Transaction(conn, self._settings(), mode="repeatable read, read only"),
        ):
            return await run_asyncpg(conn, plan, self.schema)

    async def run_effect(
        self, effect: Callable[[Any], Awaitable[object]], may_commit: Plan[bool], after: Plan[T]
    ) -> T | None:
        """Run an effect and a plan in one transaction; roll back and return `None` if `may_commit` is false.

        The effect runs on the search_path of its role and database; `may_commit` pins ours again. BEGIN fails on a
        standby, so a read-only error after that was caused by the effect.
        """
        with suppress(_RollbackError):
            async with (
                _Acquired(self._pool, self.watchdog) as conn,
                _Transaction(conn, {**self._settings(), **_IN_EFFECT}, for_effects=True),
            ):
                await effect(conn)
                if not await run_asyncpg(conn, may_commit, self.schema):
                    raise _RollbackError
                return await run_asyncpg(conn, after, self.schema)
        return None

    def _settings(self, lock_timeout: str | None = None) -> Mapping[str, str]:
        settings = self._pins or {}
        return settings if lock_timeout is None else {**settings, "lock_timeout": lock_timeout}


class OpenTransaction(Database):
    """A transaction in place of a database: plans run in it, one after the other.

    After an error of a statement, no other one can run.
    """

    def __init__(self, conn: Any, *of_database: Any) -> None:
        super().__init__(*of_database)
        self._conn = conn

    async def run(self, plan: Plan[T]) -> T:
        return await run_asyncpg(self._conn, plan, self.schema)

    async def run_in_transaction(self, plan: Plan[T], *, lock_timeout: str | None = None) -> T:
        return await run_asyncpg(self._conn, plan, self.schema)


class _RollbackError(Exception):
    """Roll back the transaction of an effect."""


class _Acquired:
    """A connection of the pool, for `async with`."""

    def __init__(self, pool: ConnectionPool, watchdog: Watchdog) -> None:
        self._pool = pool
        self._watchdog = watchdog
        self._conn: Any = None
        self._acquired_at = 0.0

    async def __aenter__(self) -> Any:
        try:
            self._conn = await self._pool.acquire()
        except asyncpg_failures() as error:
            raise from_asyncpg(error) from error
        self._acquired_at = time.monotonic()
        return self._conn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        conn = self._conn
        if is_no_reply(error) and not conn.is_closed():
            # Terminated, not closed: some versions of asyncpg wait for the reply forever.
            self._watchdog.silent(self._pool, conn, time.monotonic() - self._acquired_at)
            conn.terminate()
        # The server is no longer the primary. The next connection tries all hosts of the DSN again.
        if isinstance(error, StatementError) and error.sqlstate == READ_ONLY:
            self._pool.expire()
        # After a cancellation a statement may still run; a session in an open transaction cannot be reused either.
        is_reusable = error is None or isinstance(error, Exception)
        await self._pool.release(
            conn, is_reusable=is_reusable and not conn.is_closed() and not conn.is_in_transaction()
        )


class _Transaction:
    """BEGIN ISOLATION LEVEL READ COMMITTED … COMMIT, for `async with`."""

    def __init__(
        self, conn: Any, settings: Mapping[str, str], *, for_effects: bool = False, mode: str | None = None
    ) -> None:
        self._conn = conn
        self._settings = settings
        self._for_effect = for_effects
        # Isolation level and access mode instead of those that the settings need.
        self._mode = mode

    async def __aenter__(self) -> None:
        try:
            await self._execute(self._begin())
        except BaseException as error:
            await self._roll_back(error)  # BEGIN may have succeeded
            # What a standby raises for BEGIN READ WRITE; without READ WRITE the first write would raise READ_ONLY.
            if isinstance(error, StatementError) and error.sqlstate == FEATURE_NOT_SUPPORTED:
                raise StatementError(READ_ONLY, error.message) from error
            raise

    def _begin(self) -> str:
        # The access mode only where the session does not pin it: behind a pooler, and where an effect might change it.
        is_pooled = "default_transaction_read_only" in self._settings
        access = ""
        if is_pooled or self._for_effect:
            is_read_only = self._settings.get("default_transaction_read_only") == "on"
            access = " read only" if is_read_only else " read write"
        settings = dict(self._settings)
        statements = [f"begin isolation level {self._mode or f'read committed{access}'}"]
        if is_pooled and has_newer(self._conn):
            settings |= NEWER
        if self._for_effect:
            # Behind a pooler the session already has the search_path of its role.
            settings.pop("search_path", None)
            statements += [] if is_pooled else ["set local search_path to default"]
        return "; ".join([*statements, *local(settings)])

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self._execute(_COMMIT_EFFECT if self._for_effect else "commit")
        else:
            await self._roll_back(error)

    async def _roll_back(self, because: BaseException) -> None:
        # Without a reply, or after a cancellation, the connection is closed, which rolls back as well.
        if is_no_reply(because) or not isinstance(because, Exception):
            return
        # If ROLLBACK fails, the connection is broken or busy, and is closed too.
        with suppress(StatementError):
            await self._execute("rollback")

    async def _execute(self, text: str) -> None:
        try:
            await self._conn.execute(text)
        except asyncpg_failures() as error:
            raise from_asyncpg(error) from error
