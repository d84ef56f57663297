"""A connection pool: opens connections on demand, keeps them for a while, drops those that may be broken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Final

from .failures import StatementError

__all__ = ["ConnectionPool"]

# Seconds until an idle connection is closed, and until any connection is replaced. The latter bounds the memory of a
# session on the server, and follows a changed DNS record.
_IDLE_LIFETIME: Final = 60.0
_LIFETIME: Final = 1800.0
# Seconds that closing one connection may take before it is terminated.
_CLOSE_WITHIN: Final = 2.0


class ConnectionPool:
    """At most `size` connections of one event loop; last in, first out.

    `clean` runs on a connection before it is used again; the connection is dropped if that fails.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Awaitable[Any]],
        size: int,
        clean: Callable[[Any], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self._connect = connect
        self._clean = clean
        self._permits = asyncio.Semaphore(size)
        # Connections with the monotonic time of their last use, in the order of that.
        self._idle: list[tuple[Any, float]] = []
        self._used: set[Any] = set()
        # Connections in use that must not be used again. A subset of `_used`.
        self._retired: set[Any] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pruning: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def acquire(self) -> Any:
        """Return an idle connection or open one; wait while `size` connections are in use."""
        await self._permits.acquire()
        try:
            self._check_open()
            conn = self._pop_idle() or await self._connect()
        except BaseException:
            self._permits.release()
            raise
        self._used.add(conn)
        try:
            self._check_open()
        except StatementError:
            self._drop(conn)
            raise
        return conn

    async def release(self, conn: Any, *, is_reusable: bool) -> None:
        """Return a connection to the pool; one that is not reusable is closed in the background."""
        if not is_reusable or conn.is_closed():
            self._drop(conn)
        elif self._clean is None:
            self._keep(conn)
        else:
            # Shielded: the cleaning continues if the caller is cancelled.
            await asyncio.shield(self._spawn(self._clean_and_keep(conn, self._clean)))

    def replace_all(self) -> int:
        """Terminate idle connections, and use no other one again; return how many there are."""
        count = len(self._idle) + len(self._used)
        for conn, _ in self._idle:
            conn.terminate()
        self._idle.clear()
        self._retired = set(self._used)
        return count

    def expire(self) -> None:
        """Close idle connections, and use no other one again that exists now."""
        for conn, _ in self._idle:
            self._close_later(conn)
        self._idle.clear()
        self._retired = set(self._used)

    def is_retired(self, conn: Any) -> bool:
        """Whether a connection in use will not be used again."""
        return conn in self._retired

    def used(self) -> Iterator[Any]:
        """The connections in use."""
        return iter(tuple(self._used))

    async def close(self) -> None:
        """Close every connection; wait briefly for those in use."""
        self._is_closed = True
        if self._pruning is not None:
            self._pruning.cancel()
        for conn, _ in self._idle:
            self._close_later(conn)
        self._idle.clear()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_WITHIN):
                    while self._tasks or self._used:
                        # A connection that is released now is closed by a task.
                        await (asyncio.wait(self._tasks) if self._tasks else asyncio.sleep(0.01))
        finally:  # also if the caller is cancelled
            for conn in self._used:
                conn.terminate()
            for task in self._tasks:
                task.cancel()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StatementError("", "the client was closed")

    def _pop_idle(self) -> Any:
        while self._idle:
            conn, _ = self._idle.pop()
            if not conn.is_closed():
                return conn
        return None

    def _keep(self, conn: Any) -> None:
        now = time.monotonic()
        if self._is_closed or conn in self._retired or now - conn.made_at > _LIFETIME:
            self._drop(conn)
            return
        self._used.discard(conn)
        self._idle.append((conn, now))
        self._permits.release()
        if self._pruning is None:
            self._pruning = asyncio.get_running_loop().call_later(_IDLE_LIFETIME, self._prune)

    def _drop(self, conn: Any) -> None:
        self._used.discard(conn)
        self._retired.discard(conn)
        if conn.is_closed():
            self._permits.release()
        else:
            # Release the permit when the session has ended: otherwise many cancelled calls could exceed `size`.
            self._spawn(_close(conn)).add_done_callback(lambda _: self._permits.release())

    def _prune(self) -> None:
        self._pruning = None
        oldest = time.monotonic() - _IDLE_LIFETIME
        for conn, used_at in self._idle:
            if used_at <= oldest:
                self._close_later(conn)
        self._idle = [(conn, used_at) for conn, used_at in self._idle if used_at > oldest]
        if self._idle:
            pause = self._idle[0][1] - oldest
            self._pruning = asyncio.get_running_loop().call_later(pause, self._prune)

    async def _clean_and_keep(self, conn: Any, clean: Callable[[Any], Awaitable[None]]) -> None:
        try:
            await clean(conn)
        except Exception:  # noqa: BLE001 - after any error the session cannot be reused
            self._drop(conn)
        except BaseException:
            self._drop(conn)
            raise
        else:
            self._keep(conn)

    def _close_later(self, conn: Any) -> None:
        _ = self._spawn(_close(conn))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _close(conn: Any) -> None:
    """Close a connection: cancel its running statement first. Terminate it if that takes too long."""
    try:
        # After any error the connection is terminated below.
        with suppress(Exception):
            async with asyncio.timeout(_CLOSE_WITHIN):
                await conn.close()
    finally:
        conn.terminate()
