"""One blocking psycopg connection: opened on first use, and opened again after an outage."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, TypeVar

from ..config import Pooler, Settings
from ..connections import Dsn
from ..errors import UsageError
from .address import AddressError, resolve_dsn_blocking, unreachable
from .connector import NEWER, PINNED, local
from .failures import StatementError, is_outage
from .plan import Plan, only
from .reply_timeouts import ReplyTimeouts
from .runner import drive_blocking, from_psycopg, run_psycopg

__all__ = ["BlockingDatabase"]

T = TypeVar("T")


def _options(settings: Mapping[str, str]) -> str:
    """The `options` of libpq for these settings."""
    return " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in settings.items())


# The pinned settings, without and with `NEWER`: for a session, and (behind a pooler) for a transaction.
_OPTIONS: Final = {False: _options(PINNED), True: _options({**PINNED, **NEWER})}
_LOCAL: Final = {False: "; ".join(local(PINNED)), True: "; ".join(local({**PINNED, **NEWER}))}
_NEWER_SINCE: Final = 170000
_LEASE: Final = Settings().lease


class BlockingDatabase:
    """A connection that threads share under a lock. A forked process opens its own."""

    def __init__(
        self,
        dsn: Dsn,
        schema: str,
        *,
        lease: timedelta = _LEASE,
        advice: str = "",
        pooler: Pooler = "none",
    ) -> None:
        self._dsn = dsn
        self._advice = advice
        self._is_pooled = pooler == "transaction"
        self._reply_timeouts = ReplyTimeouts.of(lease, is_pooled=self._is_pooled)
        self.schema = schema
        self.where = ""
        """The DSN of the latest connect; the function of a DSN may return another one each time."""
        self._lock = threading.RLock()
        self._conn: Any = None
        self._inherited: list[Any] = []
        self._is_newer = True
        _databases.add(self)

    def run(self, plan: Plan[T]) -> T:
        """Run a plan whose statements need no common transaction."""
        with self._lock:
            if self._is_pooled:
                return drive_blocking(plan, lambda call: self.run_in_transaction(only(call)))
            conn = self._connection()
            try:
                return run_psycopg(conn, plan, self.schema)
            except StatementError as error:
                self._close_after_outage(error)
                raise

    def run_in_transaction(self, plan: Plan[T]) -> T:
        """Run a plan as one transaction."""
        with self._lock:
            conn = self._connection()
            import psycopg

            try:
                with conn.transaction():
                    if self._is_pooled:
                        conn.execute(_LOCAL[conn.info.server_version >= _NEWER_SINCE])
                    return run_psycopg(conn, plan, self.schema)
            except StatementError as error:
                self._close_after_outage(error)
                raise
            except psycopg.Error as error:  # of BEGIN or COMMIT
                failure = from_psycopg(error)
                self._close_after_outage(failure)
                raise failure from error

    def _close_after_outage(self, error: StatementError) -> None:
        if is_outage(error):
            self.close()  # the next use opens another connection

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        with self._lock:
            if self._conn is not None:
                self._conn.close()
                self._conn = None

    def leave_to_parent(self) -> None:
        """In a forked child: forget the connection without closing it, because its socket is the parent's."""
        self._lock = threading.RLock()  # a thread of the parent may have held it at the fork
        if self._conn is not None:
            self._inherited.append(self._conn)
            self._conn = None

    def _connection(self) -> Any:
        if self._conn is None or self._conn.closed:
            try:
                import psycopg
            except ImportError:
                raise UsageError(
                    "the blocking Client needs psycopg, which is not installed",
                    "pip install 'gen_durable[sync]', or use AsyncClient",
                ) from None
            self.where, problem = "", None
            try:
                self.where = resolve_dsn_blocking(self._dsn)
                self._conn = self._connect(self.where)
            except (psycopg.Error, ValueError, AddressError) as error:
                problem = unreachable(self._dsn, error, self._advice, self.where)
            if problem is not None:
                raise problem  # outside `except`: the driver's error may quote the DSN
            if self._is_pooled:  # set by every BEGIN, because the session has the defaults of its role
                self._conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                self._conn.read_only = False
        return self._conn

    def _connect(self, where: str) -> Any:
        """Open the connection, without `NEWER` if the server refuses these settings (see `connector`)."""
        import psycopg

        from .blocking_driver import Connection

        if self._is_pooled:
            return Connection.open(where, self._reply_timeouts, None, prepare_threshold=None)

        def ask() -> str:
            return resolve_dsn_blocking(self._dsn)

        try:
            return Connection.open(where, self._reply_timeouts, ask, options=_OPTIONS[self._is_newer])
        except psycopg.OperationalError as error:
            if not self._is_newer or not any(name in str(error) for name in NEWER):
                raise
            self._is_newer = False
            return Connection.open(where, self._reply_timeouts, ask, options=_OPTIONS[False])


_databases: Final[weakref.WeakSet[BlockingDatabase]] = weakref.WeakSet()


def _after_fork() -> None:
    for database in _databases:
        database.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
