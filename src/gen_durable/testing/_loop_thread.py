"""An event loop on its own thread, for connections that must not belong to the event loop of a test.

A fixture is set up before the event loop of its test runs, and pytest plugins differ in which loop that is.
Connections on this loop work with all plugins, and from code without a loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from .._db.plan import Plan
from .._db.pool import Database
from ..config import Pooler
from ..connections import Dsn

__all__ = ["LoopThread", "ThreadedDatabase"]

T = TypeVar("T")


class LoopThread:
    """A thread with an event loop, from construction until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="gen_durable test loop", daemon=True
        )
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result."""
        return self.begin(work).result()

    def close(self) -> None:
        """Cancel all tasks and end the thread."""
        self.call(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class ThreadedDatabase(Database):
    """A connection pool on its own `LoopThread`, usable from any event loop or without one."""

    def __init__(self, database: Database, loop_thread: LoopThread) -> None:
        self._database = database
        self._loop_thread = loop_thread
        self.schema = database.schema

    @classmethod
    def open_now(cls, dsn: Dsn, schema: str, *, advice: str, pooler: Pooler = "none") -> Self:
        """Open the pool; at least one connection works."""
        loop_thread = LoopThread()
        try:
            return cls(
                loop_thread.call(Database.open(dsn, schema, advice=advice, pooler=pooler)), loop_thread
            )
        except BaseException:
            loop_thread.close()
            raise

    def close_now(self) -> None:
        """Close all connections and the thread."""
        self._loop_thread.call(self._database.close())
        self._loop_thread.close()

    def run_now(self, plan: Plan[T]) -> T:
        """Run a plan, blocking."""
        return self._loop_thread.call(self._database.run(plan))

    def run_in_transaction_now(self, plan: Plan[T]) -> T:
        """Run a plan as one transaction, blocking."""
        return self._loop_thread.call(self._database.run_in_transaction(plan))

    async def run(self, plan: Plan[T]) -> T:
        """Run a plan of one statement, or of several that need no common transaction."""
        return await asyncio.wrap_future(self._loop_thread.begin(self._database.run(plan)))

    async def run_in_transaction(self, plan: Plan[T], *, lock_timeout: str | None = None) -> T:
        """Run a plan as one transaction."""
        work = self._database.run_in_transaction(plan, lock_timeout=lock_timeout)
        return await asyncio.wrap_future(self._loop_thread.begin(work))


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
