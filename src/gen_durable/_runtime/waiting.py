"""Waiting for instances: one poller per client, however many callers wait for however many instances."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from .._db.failures import StatementError
from .._db.pool import Database
from .._db.snapshots import finished_or_parked
from .._polling import Pace
from ..errors import NoTargetError, NotConnectedError
from .database_status import DatabaseRetry, DatabaseStatus

__all__ = ["Waiting"]

_Waiter: TypeAlias = tuple[bool, asyncio.Future[Mapping[str, Any]]]
"""Does parking count? And who waits."""


class Waiting:
    """Looks at all awaited instances in one statement: often at first, less often while nothing happens."""

    def __init__(self, database: Database, database_status: DatabaseStatus | None = None) -> None:
        self._database = database
        self._database_status = database_status
        # Instance → (does parking count?, who waits). Touched on the event loop only.
        self._futures: defaultdict[int, list[tuple[bool, asyncio.Future[Mapping[str, Any]]]]] = defaultdict(
            list
        )
        self._hint = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None

    def hint(self) -> None:
        """Something has come to rest in this process: look now."""
        self._hint.set()

    async def until_at_rest(self, id: int, *, parked: bool) -> Mapping[str, Any]:
        """The row of an instance when it has ended, or (`parked`) waits for a signal or for children."""
        future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        waiter = (parked, future)
        self._futures[id].append(waiter)
        self._hint.set()
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll())
        try:
            return await future
        finally:
            if id in self._futures:
                self._futures[id] = [other for other in self._futures[id] if other is not waiter]
                if not self._futures[id]:
                    del self._futures[id]

    def close(self) -> None:
        """Stop looking; whoever still waits is told that the client is closed."""
        if self._poller is not None:
            self._poller.cancel()
        self.fail(NotConnectedError("client", "async with"))

    async def _poll(self) -> None:
        pace = Pace()
        # No time for repairs: an error that only an administrator can fix is raised at once.
        retry = DatabaseRetry("wait", self._database_status, repair_within=0)
        while self._futures:
            # Clear the hint before the query: an instance that comes to rest during it sets the hint again.
            self._hint.clear()
            # This query answers these waiters only. A later waiter may expect a state that the query has not seen.
            asked = {id: tuple(waiters) for id, waiters in self._futures.items()}
            wanted = {id: any(parked for parked, _ in waiters) for id, waiters in asked.items()}
            try:
                found = await self._database.run(finished_or_parked(wanted))
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
                if self._answer(found, asked):
                    pace.reset()
                pause = pace.pause()
            try:
                async with asyncio.timeout(pause):
                    await self._hint.wait()
                    pace.reset()
            except TimeoutError:
                pass

    def _answer(
        self, found: Mapping[int, Mapping[str, Any] | None], asked: Mapping[int, Sequence[_Waiter]]
    ) -> bool:
        answered = False
        for id, row in found.items():
            for parked, future in asked[id]:
                if future.done():
                    continue
                if row is None:
                    future.set_exception(NoTargetError(id, "wait"))
                    answered = True
                elif parked or row["finished_at"] is not None:
                    future.set_result(row)
                    answered = True
        return answered

    def fail(self, error: BaseException) -> None:
        """Nothing more will happen here: tell everybody who waits."""
        for waiters in self._futures.values():
            for _, future in waiters:
                if not future.done():
                    future.set_exception(error)
