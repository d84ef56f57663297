"""How a connection of our own is opened, and what is pinned on its session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..config import Settings
from ..connections import Dsn
from .address import AddressError, ask
from .dsn import hosts_of, redacted, rotated, split_query
from .reply_timeouts import KEEPALIVE, ReplyTimeouts, on_server
from .runner import asyncpg_failures, from_asyncpg

__all__ = ["NEWER", "PINNED", "Connector", "connect", "has_newer", "local"]

# Whatever the role or the database has as defaults: the statements were proved under READ COMMITTED, an outcome is
# acknowledged only when it is on disk, and no wait is endless. Generic plans and no JIT: planning these statements anew
# costs more than running them, and one compiled pick took 650 ms. No sequential scans: a plan that was made while the
# table was empty would else go on reading all of it when it no longer is. psycopg reads times only as ISO writes them.
# Nothing but pg_catalog on the search path: with `public` on it, an operator or a function that another role creates
# there can take the place of one of PostgreSQL's, and runs with the rights of this session. Temporary tables come last.
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
# Of the same kind, and new in PostgreSQL 17: an older server refuses a connection that names it.
NEWER: Final = {"transaction_timeout": "0"}
_NEWER_THAN: Final = 17
# The DSNs that led to a server without these.
_older: Final[set[Dsn]] = set()


def local(settings: Mapping[str, str]) -> list[str]:
    """These settings for one transaction. Its isolation level is given with BEGIN; later it cannot be."""
    return [
        "set local {} = '{}'".format(name, value.replace(", ", "', '"))
        for name, value in settings.items()
        if not name.startswith("default_transaction_")
    ]


def has_newer(conn: Any) -> bool:
    """Whether the server has the newer settings."""
    return bool(conn.get_server_version() >= (_NEWER_THAN,))


class Connector:
    """Opens connections to where a DSN, or a function that returns one, points."""

    def __init__(
        self, dsn: Dsn, reply_timeouts: ReplyTimeouts, settings: Mapping[str, str] | None, **options: Any
    ) -> None:
        self._dsn = dsn
        self._settings = settings
        self._reply_timeouts = reply_timeouts
        self._options = options
        # How many hosts of a DSN to pass over: they gave no answer, and the driver would wait for them each time.
        self._skipped_hosts = 0
        self.connects = 0
        """How many connections it has tried to make."""
        self.where = ""
        """The DSN of the last one."""

    async def __call__(self) -> Any:
        """A new connection.

        Raises:
            TimeoutError: no host answered in time.
        """
        self.where = where = await ask(self._dsn)
        self.connects += 1
        for _ in range(hosts_of(where) - 1):
            try:
                return await self._connect(rotated(where, self._skipped_hosts))
            except TimeoutError:
                self._skipped_hosts += 1
        return await self._connect(rotated(where, self._skipped_hosts))

    async def _connect(self, where: str) -> Any:
        import asyncpg

        # asyncpg takes what it does not know for settings of the server.
        bare, own = split_query(where, KEEPALIVE)
        try:
            keepalive = self._reply_timeouts.keepalive() | {name: int(value) for name, value in own.items()}
            conn = await self._connect_pinned(bare, on_server(keepalive))
        except asyncpg.PostgresError as error:
            error.args = (redacted(str(error.args[0]), where), *error.args[1:])
            raise
        except (ValueError, OverflowError) as error:  # the text may quote the DSN; a port may be any number
            problem: OSError = AddressError(redacted(str(error), where))
        except TimeoutError:
            problem = TimeoutError(f"no answer within {self._reply_timeouts.connect:.1f} s")
        else:
            try:
                conn.keep_alive(keepalive)
            except OSError as error:  # a value that the kernel refuses, or the connection has broken already
                conn.terminate()
                problem = AddressError(f"keepalive settings {keepalive}: {error}")
            else:
                return conn
        raise problem

    async def _connect_pinned(self, where: str, keepalive: Mapping[str, str]) -> Any:
        """Open a session with our settings, and with the newer ones where the server has them.

        Which server it is turns out by trying: to set them afterwards would be another round trip for each session.
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
        if has_newer(conn):  # it was upgraded
            _older.discard(self._dsn)
        return conn


async def connect(dsn: str) -> Any:
    """One pinned connection outside of any pool."""
    try:
        return await Connector(dsn, ReplyTimeouts.of(Settings().lease), PINNED)()
    except asyncpg_failures() as error:
        raise from_asyncpg(error) from error
