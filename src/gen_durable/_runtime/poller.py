"""The poller of a client: one query for all that wait, often at first, less often while nothing changes."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar

from .._db.failures import StatementError
from .._db.pool import Database
from .._polling import Pace
from ..errors import NotConnectedError
from .database_status import DatabaseRetry, DatabaseStatus

__all__ = ["Poller"]


class Poller:
    """Polls as long as anything waits. Subclasses implement one query as `_ask`."""

    name: ClassVar[str]

    def __init__(self, database: Database, database_status: DatabaseStatus | None = None) -> None:
        self._database = database
        self._database_status = database_status
        self._hint = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._is_closed = False

    def hint(self) -> None:
        """Poll now: something that is waited for has happened in this process."""
        self._hint.set()

    def close(self) -> None:
        """Stop polling. Waiters get NotConnectedError, also those that come later."""
        self._is_closed = True
        if self._poller is not None:
            self._poller.cancel()
        self.fail(self._not_connected())

    def fail(self, error: BaseException) -> None:
        """Raise the error in all waiters."""
        raise NotImplementedError

    def _has_waiters(self) -> bool:
        raise NotImplementedError

    async def _ask(self) -> bool:
        """Run one query for all waiters. Returns whether it answered any."""
        raise NotImplementedError

    def _pause(self, pause: float, took: float) -> float:
        """Return the seconds until the next query."""
        # A query for thousands of waiters takes long: it runs half of the time at most.
        return max(pause, took)

    def _not_connected(self) -> NotConnectedError:
        return NotConnectedError("AsyncClient", "async with")

    def _start(self) -> None:
        """Poll, before a waiter is added."""
        if self._is_closed:
            raise self._not_connected()
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll())

    async def _poll(self) -> None:
        pace = Pace()
        # No time for repairs: an error that only an administrator can fix is raised at once.
        retry = DatabaseRetry(self.name, self._database_status, repair_within=0)
        while self._has_waiters():
            # Clear the hint before the query: what happens during it sets the hint again.
            self._hint.clear()
            began = time.monotonic()
            try:
                has_answered = await self._ask()
            except StatementError as error:
                try:
                    pause: float | None = retry.pause(error)
                except StatementError:
                    # A retry cannot succeed. All waiters get the error; the next one starts a new poller.
                    self.fail(error)
                    return
            except BaseException as error:
                self.fail(error)
                raise
            else:
                retry.succeeded()
                if has_answered:
                    pace.reset()
                pause = self._pause(pace.pause() or 0.0, time.monotonic() - began)
            try:
                async with asyncio.timeout(pause):
                    await self._hint.wait()
                    pace.reset()
            except TimeoutError:
                pass
