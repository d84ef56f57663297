"""Detect silent connections: the peer is gone, but no FIN or RST has arrived."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from ..errors import UsageError
from .address import AddressError
from .connection_pool import ConnectionPool
from .failures import NoReplyError, StatementError
from .plan import Plan, statements
from .reply_timeouts import GRACE, ReplyTimeouts
from .runner import asyncpg_failures, run_asyncpg

__all__ = ["Watchdog", "working"]

_log: Final = logging.getLogger("gen_durable.connections")
# Seconds between two checks of the connections in use. A check costs almost nothing.
_CHECK_EVERY: Final = 0.5
_SQL = statements("watchdog.sql")


def working(pids: Sequence[int]) -> Plan[set[int]]:
    """Which of these sessions run a statement."""
    return {row["pid"] for row in (yield _SQL["working"](pids=pids))}


class _Waiting(NamedTuple):
    """A connection that waits for a reply."""

    pool: ConnectionPool
    conn: Any
    asked_at: float
    pid: int
    """Server process id of its session, which a closed connection no longer knows."""

    def is_current(self) -> bool:
        """Whether it still waits for the same reply."""
        return bool(self.conn.asked_at == self.asked_at and not self.conn.is_closed())


class Watchdog:
    """Watches the pools of one event loop.

    A statement without a reply is slow, or its connection is silent. A query on a new connection tells which: whether
    the session still runs the statement. If it does not, or if that query gets no reply either, the connection is
    terminated. The same cause has probably broken others, so all connections of all pools are replaced.
    """

    def __init__(self, connect: Callable[[], Awaitable[Any]], reply_timeouts: ReplyTimeouts) -> None:
        self._connect = connect
        self._reply_timeouts = reply_timeouts
        self._pools: list[ConnectionPool] = []
        self._task: asyncio.Task[None] | None = None
        self.on_silence: Callable[[], None] = lambda: None
        """Called when a connection is found silent, for pools of another event loop."""

    def watch(self, pool: ConnectionPool, *, asks: bool) -> None:
        """Watch one more pool. `asks`: the process ids of its connections are those of the server, not of a pooler."""
        self._pools.append(pool)
        if asks and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def forget(self, pool: ConnectionPool) -> None:
        """Stop watching a pool."""
        self._pools = [other for other in self._pools if other is not pool]
        if not self._pools and self._task is not None:
            self._task.cancel()
            self._task = None

    def silent(self, pool: ConnectionPool, conn: Any, seconds: float) -> None:
        """Replace all connections, because one of this pool got no reply for this time."""
        # For a connection that is retired already, the warning has been logged.
        is_first = not pool.is_retired(conn)
        count = self.replace_all()
        if is_first:
            self.on_silence()
            _log.warning(
                "connection silent: no reply for %.1f s on a connection for %s; closing it and replacing all %d "
                "connections of this client or worker",
                seconds,
                pool.name,
                count,
            )

    def replace_all(self) -> int:
        """Replace all connections of all pools; return how many there are."""
        return sum(pool.replace_all() for pool in self._pools)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(min(self._reply_timeouts.suspect / 4, _CHECK_EVERY))
            if not self._waiting(self._reply_timeouts.suspect):
                continue
            # Statements that were just sent may not have arrived at the server: check only older ones.
            silent = await self._without_session(self._waiting(self._reply_timeouts.suspect / 4))
            await asyncio.sleep(GRACE)
            self._cut([entry for entry in silent if entry.is_current()])

    def _waiting(self, seconds: float) -> list[_Waiting]:
        """Connections that have waited this long since they were last known to be served."""
        latest = time.monotonic() - seconds
        return [
            _Waiting(pool, conn, conn.asked_at, conn.get_server_pid())
            for pool in self._pools
            for conn in pool.used()
            if conn.asked_at is not None
            and max(conn.asked_at, conn.seen_at) <= latest
            and not conn.is_closed()
        ]

    async def _without_session(self, waiting: list[_Waiting]) -> list[_Waiting]:
        """The connections whose session does not run a statement on the server."""
        failures: tuple[type[Exception], ...] = (*asyncpg_failures(), StatementError)
        pids = {entry.pid for entry in waiting}
        try:
            async with asyncio.timeout(self._reply_timeouts.connect):
                probe = await self._connect()
                try:
                    pids = await run_asyncpg(probe, working(list(pids)), "")
                finally:
                    probe.terminate()
        except (AddressError, UsageError, socket.gaierror):
            pass  # the address is unknown now: try again later
        except (OSError, NoReplyError):  # includes TimeoutError: the new connection gets no reply either
            return waiting
        except failures:
            pass  # the server replies, but refuses the query: try again later
        now = time.monotonic()
        for entry in waiting:
            if entry.pid in pids:
                entry.conn.seen_at = now
        return [entry for entry in waiting if entry.pid not in pids]

    def _cut(self, silent: list[_Waiting]) -> None:
        now = time.monotonic()
        for entry in sorted(silent, key=lambda entry: entry.asked_at):
            seconds = now - entry.asked_at
            self.silent(entry.pool, entry.conn, seconds)
            entry.conn.cut(seconds)
