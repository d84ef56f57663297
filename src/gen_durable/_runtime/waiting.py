"""Wait for instances: one poller per client, for any number of waiters and instances."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from .._db.collect import collect_done
from .._db.failures import StatementError
from .._db.pool import Database
from .._db.snapshots import finished_or_parked
from .._polling import Pace
from ..errors import NoTargetError, NotConnectedError
from .database_status import DatabaseRetry, DatabaseStatus

__all__ = ["Waiting"]

_Waiter: TypeAlias = tuple[bool, asyncio.Future[Mapping[str, Any]]]
"""Whether a parked instance ends the wait, and the future of the waiter."""


class Waiting:
    """Polls all awaited instances in one statement: often at first, less often while nothing changes."""

    def __init__(self, database: Database, database_status: DatabaseStatus | None = None) -> None:
        self._database = database
        self._database_status = database_status
        # Waiters by instance id. Used on the event loop only.
        self._futures: defaultdict[int, list[_Waiter]] = defaultdict(list)
        # Instances that are not kept, and are not deleted yet because a waiter reads them. If it stops waiting before,
        # the collector deletes them.
        self._kept: set[int] = set()
        self._hint = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None

    def hint(self) -> None:
        """Poll now: an instance of this process has ended or parked."""
        self._hint.set()

    def keep(self, id: int) -> bool:
        """Whether an instance is awaited. The commit of its end then leaves it, and it is deleted after it was read."""
        if id not in self._futures:
            return False
        self._kept.add(id)
        return True

    async def until_ended_or_parked(self, id: int, *, parked: bool) -> Mapping[str, Any]:
        """Return the row of an instance once it has ended or, with `parked`, waits for a signal or for children."""
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
                    self._kept.discard(id)

    def close(self) -> None:
        """Stop polling. Waiters get NotConnectedError."""
        if self._poller is not None:
            self._poller.cancel()
        self.fail(NotConnectedError("client", "async with"))

    async def _poll(self) -> None:
        pace = Pace()
        # No time for repairs: an error that only an administrator can fix is raised at once.
        retry = DatabaseRetry("wait", self._database_status, repair_within=0)
        while self._futures:
            # Clear the hint before the query: an instance that ends or parks during it sets the hint again.
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
                await self._delete(found)
                pause = pace.pause()
            try:
                async with asyncio.timeout(pause):
                    await self._hint.wait()
                    pace.reset()
            except TimeoutError:
                pass

    async def _delete(self, found: Mapping[int, Mapping[str, Any] | None]) -> None:
        """Delete instances that were kept for their waiters. If this fails, the collector deletes them later."""
        # A waiter that began after the query reads the row with the next one.
        if read := [
            id
            for id, row in found.items()
            if id in self._kept
            and row is not None
            and row["finished_at"] is not None
            and all(future.done() for _, future in self._futures.get(id, ()))
        ]:
            self._kept.difference_update(read)
            with suppress(StatementError):
                await self._database.run(collect_done(read))

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
        """Raise the error in all waiters."""
        for waiters in self._futures.values():
            for _, future in waiters:
                if not future.done():
                    future.set_exception(error)
