"""An event loop on a thread of its own, for connections that must not belong to the loop of a test.

A fixture is set up before the loop of its test runs, and every async plugin of pytest has its own idea of which loop
that will be. What lives here works with all of them, and can be used from code that does not await, too.
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
    """The thread and its loop, from the moment it is made until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="gen_durable test loop", daemon=True
        )
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Let something happen there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Let something happen there, and wait for it."""
        return self.begin(work).result()

    def close(self) -> None:
        """End the thread; whatever still happens there is cancelled."""
        self.call(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class ThreadedDatabase(Database):
    """A pool that lives on a loop_thread of its own: awaited from any loop, or used without one."""

    def __init__(self, database: Database, loop_thread: LoopThread) -> None:
        self._database = database
        self._loop_thread = loop_thread
        self.schema = database.schema

    @classmethod
    def open_now(cls, dsn: Dsn, schema: str, *, advice: str, pooler: Pooler = "none") -> Self:
        """Connect; at least one connection works then."""
        loop_thread = LoopThread()
        try:
            return cls(
                loop_thread.call(Database.open(dsn, schema, advice=advice, pooler=pooler)), loop_thread
            )
        except BaseException:
            loop_thread.close()
            raise

    def close_now(self) -> None:
        """Close every connection, and the loop_thread."""
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
