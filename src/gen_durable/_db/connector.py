"""Open connections of our own, with pinned session settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..config import Settings
from ..connections import Dsn
from .address import AddressError, resolve_dsn
from .dsn import hosts_of, redacted, rotated, split_query
from .reply_timeouts import KEEPALIVE, ReplyTimeouts, on_server
from .runner import asyncpg_failures, from_asyncpg

__all__ = ["NEWER", "PINNED", "Connector", "connect", "has_newer", "local"]

# Override the defaults of the role and the database:
# - isolation: the statements are tested under READ COMMITTED
# - synchronous_commit: an outcome is acknowledged only when it is on disk
# - timeouts: no wait is endless
# - generic plans, no JIT: planning costs more than running these statements; JIT took 650 ms for one pick
# - no sequential scans: a plan from when the table was empty would read the whole table later
# - datestyle, intervalstyle: psycopg parses only these
# - search_path: with `public` on it, functions and operators of other roles could shadow those of PostgreSQL and run
#   with the privileges of this session; pg_temp comes last for the same reason
PINNED: Final = {
    "application_name": "gen_durable",
    "search_path": "pg_catalog, pg_temp",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "synchronous_commit": "on",
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "30s",
    "idle_session_timeout": "0",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "datestyle": "ISO",
    "intervalstyle": "postgres",
}
# The same, for settings that are new in PostgreSQL 17. An older server refuses a connection that sets them.
NEWER: Final = {"transaction_timeout": "0"}
_NEWER_SINCE: Final = 17
# DSNs of servers without these settings.
_older: Final[set[Dsn]] = set()


def local(settings: Mapping[str, str]) -> list[str]:
    """SET LOCAL for these settings, without those that BEGIN sets: isolation level and access mode."""
    return [
        "set local {} = '{}'".format(name, value.replace(", ", "', '"))
        for name, value in settings.items()
        if not name.startswith("default_transaction_")
    ]


def has_newer(conn: Any) -> bool:
    """Whether the server has the settings of `NEWER`."""
    return bool(conn.get_server_version() >= (_NEWER_SINCE,))


class Connector:
    """Opens connections to a DSN, or to the DSN that a function returns."""

    def __init__(
        self, dsn: Dsn, reply_timeouts: ReplyTimeouts, settings: Mapping[str, str] | None, **options: Any
    ) -> None:
        self._dsn = dsn
        self._settings = settings
        self._reply_timeouts = reply_timeouts
        self._options = options
        # The first hosts of the DSN that did not reply: try them last, because each costs a timeout.
        self._skipped_hosts = 0
        self.connects = 0
        """How many connections it has tried to open."""
        self.where = ""
        """The DSN of the last try."""

    async def __call__(self) -> Any:
        """Open a connection.

        Raises:
            TimeoutError: no host replied in time.
        """
        self.where = where = await resolve_dsn(self._dsn)
        self.connects += 1
        for _ in range(hosts_of(where) - 1):
            try:
                return await self._connect(rotated(where, self._skipped_hosts))
            except TimeoutError:
                self._skipped_hosts += 1
        return await self._connect(rotated(where, self._skipped_hosts))

    async def _connect(self, where: str) -> Any:
        import asyncpg

        # asyncpg would send parameters that it does not know to the server as settings.
        bare, own = split_query(where, KEEPALIVE)
        try:
            keepalive = self._reply_timeouts.keepalive() | {name: int(value) for name, value in own.items()}
            conn = await self._connect_pinned(bare, on_server(keepalive))
        except asyncpg.PostgresError as error:
            error.args = (redacted(str(error.args[0]), where), *error.args[1:])
            raise
        except (ValueError, OverflowError) as error:  # an invalid DSN; the text may quote it
            problem: OSError = AddressError(redacted(str(error), where))
        except TimeoutError:
            problem = TimeoutError(f"no reply within {self._reply_timeouts.connect:.1f} s")
        else:
            try:
                conn.keep_alive(keepalive)
            except OSError as error:  # the kernel refuses a value, or the connection is already broken
                conn.terminate()
                problem = AddressError(f"keepalive settings {keepalive}: {error}")
            else:
                return conn
        raise problem

    async def _connect_pinned(self, where: str, keepalive: Mapping[str, str]) -> Any:
        """Open a session with the pinned settings, and with `NEWER` if the server has them.

        The version is found out by trying: setting them after the connect would cost a round trip per session.
        """
        import asyncpg

        from .driver import Connection

        options = {
            "connection_class": Connection,
            "command_timeout": self._reply_timeouts.reply,
            "timeout": self._reply_timeouts.connect,
            **self._options,
        }
        settings = None if self._settings is None else {**self._settings, **keepalive}
        if settings is not None and self._dsn not in _older:
            try:
                return await asyncpg.connect(where, server_settings={**settings, **NEWER}, **options)
            except asyncpg.UndefinedObjectError:
                _older.add(self._dsn)
        conn = await asyncpg.connect(where, server_settings=settings, **options)
        if has_newer(conn):  # the server was upgraded
            _older.discard(self._dsn)
        return conn


async def connect(dsn: str) -> Any:
    """Open one pinned connection outside any pool."""
    try:
        return await Connector(dsn, ReplyTimeouts.of(Settings().lease), PINNED)()
    except asyncpg_failures() as error:
        raise from_asyncpg(error) from error
