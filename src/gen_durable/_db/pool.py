"""Connections of our own: transactions on them, and the pool that hands them out."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ..config import Pooler, Settings
from ..connections import Dsn
from .address import unreachable
from .connection_pool import ConnectionPool
from .connector import NEWER, PINNED, Connector, has_newer, local
from .failures import StatementError, is_silence
from .plan import Plan, only
from .reply_timeouts import ReplyTimeouts
from .runner import asyncpg_failures, drive, from_asyncpg, run_asyncpg
from .sqlstates import FEATURE_NOT_SUPPORTED, READ_ONLY
from .watchdog import Watchdog

__all__ = ["Database"]

T = TypeVar("T")

# After an effect ran on a session of ours: all that it may have left there. What we prepared stays. A session that runs
# effects has the search_path of its role and database as its default, and ours on top of that.
_PIN_PATH: Final = f"set search_path = {PINNED['search_path']}"
_RESET: Final = (
    "reset session authorization; reset role; reset all; close all; unlisten *; "
    "select pg_catalog.pg_advisory_unlock_all(); discard sequences; discard temp; " + _PIN_PATH
)
# Set in the transaction of an effect. `lock_for_effect` reads it to see that the transaction is still the same: its end
# resets the setting. Not under the name of the schema, which a user may choose.
_IN_EFFECT: Final = {"gen_durable_pool.in_effect": "on"}
# The end of such a transaction: triggers that the effect deferred run now, on the path that the effect had.
_COMMIT_EFFECT: Final = (
    "select pg_catalog.set_config('search_path', pg_catalog.current_setting('gen_durable_pool.path'), true);"
    " commit"
)
# A plan is made for the size that the table has at that time; after so many seconds it is made anew. Otherwise a table
# that grows in a rush is served by the plans of a tiny one until the server gets to analyze it.
_PLAN_LIFETIME: Final = 10


class Database:
    """A pool of pinned connections to one schema."""

    def __init__(
        self,
        schema: str,
        pool: ConnectionPool,
        watchdog: Watchdog,
        pins: Mapping[str, str] | None,
        count: Callable[[], int],
    ) -> None:
        self.schema = schema
        self.watchdog = watchdog
        """Watches this pool and those that are opened with `watchdog=`."""
        self._pool = pool
        # What each transaction has to say for itself, because no session of ours lasts: behind a pooler.
        self._pins = pins
        self._count = count

    @property
    def connects(self) -> int:
        """How many connections it has made. While this is unchanged, an earlier one still stands."""
        return self._count()

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
    ) -> Self:
        """Make a pool of at most `size` connections; open the first one if `connect_now`.

        One that lends its connections to the code of others cleans them afterwards.

        Behind a pooler in transaction mode a session is another client's a moment later: nothing is prepared, and the
        settings that we rely on go with every BEGIN.

        Args:
            dsn: where PostgreSQL is.
            schema: the schema of the tables.
            name: what its connections are for, in the log.
            connect_now: whether to open a connection now.
            size: the most connections.
            advice: what to add to the error if the server is unreachable.
            lock_timeout: how long statements wait for a lock.
            reply_timeouts: how long to wait for answers; left out, as for the default lease.
            watchdog: of another pool, to learn of silent connections together; left out, a new one.
            pooler: what stands before PostgreSQL.
            for_effects: whether code of others runs on its connections.

        Raises:
            UnreachableError: there is no way to that database.
        """
        is_pooled = pooler == "transaction"
        pins = {**PINNED, "lock_timeout": lock_timeout}
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
        made = cls(schema, pool, watchdog, pins if is_pooled else None, lambda: connector.connects)
        failures: tuple[type[Exception], ...] = (*asyncpg_failures(), StatementError, ValueError)
        problem = None
        if connect_now:
            try:
                await pool.release(await pool.acquire(), is_reusable=True)
            except failures as error:
                problem = unreachable(dsn, error, advice, connector.where)
        if problem is not None:
            raise problem  # not inside of `except`: the driver's text may quote the DSN
        watchdog.watch(pool, asks=not is_pooled)
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection, waiting a moment for those in use."""
        self.watchdog.forget(self._pool)
        await self._pool.close()

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan of one statement, or of several that need no common transaction."""
        if self._pins is not None:
            return await drive(plan, lambda call: self.run_in_transaction(only(call)))
        return await self.run_bare(plan)

    async def run_bare(self, plan: Plan[T]) -> T:
        """Run a plan outside of any transaction of ours, for what cannot be inside of one."""
        async with _Acquired(self._pool, self.watchdog) as conn:
            return await run_asyncpg(conn, plan, self.schema)

    async def run_in_transaction(self, plan: Plan[T], *, lock_timeout: str | None = None) -> T:
        """Run a plan as one transaction."""
        async with (
            _Acquired(self._pool, self.watchdog) as conn,
            _Transaction(conn, self._settings(lock_timeout)),
        ):
            return await run_asyncpg(conn, plan, self.schema)

    async def run_effect(
        self, inside: Callable[[Any], Awaitable[object]], may_go_on: Plan[bool], after: Plan[T]
    ) -> T | None:
        """One transaction: `inside` on the very connection, then `after`; or, if it may not go on, nothing: `None`.

        `inside` runs on the search_path that its role has in this database; `may_go_on` pins ours again.
        A standby refuses to begin it: whatever is read-only later was made so by `inside`.
        """
        with suppress(_RollbackError):
            async with (
                _Acquired(self._pool, self.watchdog) as conn,
                _Transaction(conn, {**self._settings(), **_IN_EFFECT}, for_effects=True),
            ):
                await inside(conn)
                if not await run_asyncpg(conn, may_go_on, self.schema):
                    raise _RollbackError
                return await run_asyncpg(conn, after, self.schema)
        return None

    def _settings(self, lock_timeout: str | None = None) -> Mapping[str, str]:
        settings = self._pins or {}
        return settings if lock_timeout is None else {**settings, "lock_timeout": lock_timeout}


class _RollbackError(Exception):
    """A transaction is rolled back on purpose."""


class _Acquired:
    """A connection of the pool; what goes wrong on the way to it is one of our errors."""

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
        if is_silence(error) and not conn.is_closed():
            # Cut, not closed: some versions of asyncpg wait for the answer forever.
            self._watchdog.silent(self._pool, conn, time.monotonic() - self._acquired_at)
            conn.terminate()
        # This was the primary once. The next connection asks all hosts of the DSN anew.
        if isinstance(error, StatementError) and error.sqlstate == READ_ONLY:
            self._pool.expire()
        # After a cancellation a statement may still run. One that is left open in a transaction cannot be used either.
        is_reusable = error is None or isinstance(error, Exception)
        await self._pool.release(
            conn, is_reusable=is_reusable and not conn.is_closed() and not conn.is_in_transaction()
        )


class _Transaction:
    """BEGIN … COMMIT, pinned to READ COMMITTED by its own words."""

    def __init__(self, conn: Any, settings: Mapping[str, str], *, for_effects: bool = False) -> None:
        self._conn = conn
        self._settings = settings
        self._for_effect = for_effects

    async def __aenter__(self) -> None:
        try:
            await self._execute(self._begin())
        except BaseException as error:
            await self._roll_back(error)  # it may have begun all the same
            # A standby answers so to READ WRITE; otherwise it would refuse the first write as read-only.
            if isinstance(error, StatementError) and error.sqlstate == FEATURE_NOT_SUPPORTED:
                raise StatementError(READ_ONLY, error.message) from error
            raise

    def _begin(self) -> str:
        # With a mode only where nothing else pins that, behind a pooler, and where an effect might change it.
        is_pooled = "default_transaction_read_only" in self._settings
        says_mode = is_pooled or self._for_effect
        settings = dict(self._settings)
        statements = [f"begin isolation level read committed{' read write' if says_mode else ''}"]
        if is_pooled and has_newer(self._conn):
            settings |= NEWER
        if self._for_effect:
            # Behind a pooler the session has the path of its role already.
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
        # After silence or a cancellation the connection is closed, and that rolls back as well.
        if is_silence(because) or not isinstance(because, Exception):
            return
        # So it is if this fails, because the connection is broken or busy.
        with suppress(StatementError):
            await self._execute("rollback")

    async def _execute(self, text: str) -> None:
        try:
            await self._conn.execute(text)
        except asyncpg_failures() as error:
            raise from_asyncpg(error) from error
