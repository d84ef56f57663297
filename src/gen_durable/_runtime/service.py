"""The loop of every service: run a round, pause until the next or until woken, back off on database errors."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from .._db.failures import StatementError
from .database_status import DatabaseRetry, DatabaseStatus

__all__ = ["Service"]


class Service:
    """A named loop. Subclasses implement one round as `tick`."""

    name = "service"
    # Whether a failure of this service to reach the database counts as an outage.
    is_vital = False

    def __init__(self, database_status: DatabaseStatus) -> None:
        self._database_status = database_status
        self._woken = asyncio.Event()
        self._is_stopping = False

    async def tick(self) -> timedelta | None:
        """Run one round. Returns the pause until the next one; `None`: wait until woken."""
        raise NotImplementedError

    def first_pause(self) -> timedelta:
        """Return the delay before the first round."""
        return timedelta(0)

    def wake(self) -> None:
        """Start the next round now."""
        self._woken.set()

    def stop(self) -> None:
        """Stop after the current round."""
        self._is_stopping = True
        self._woken.set()

    async def run(self) -> None:
        """Run rounds until `stop`."""
        retry = DatabaseRetry(self.name, self._database_status, is_vital=self.is_vital)
        await self._wait(self.first_pause().total_seconds())
        while not self._is_stopping:
            # Clear before the round: a wake during the round may be about work that the round did not see.
            self._woken.clear()
            try:
                pause = await self.tick()
            except StatementError as error:
                await self._wait(retry.pause(error))
                continue
            retry.succeeded()
            await self._wait(None if pause is None else pause.total_seconds())

    async def _wait(self, seconds: float | None) -> None:
        if self._is_stopping or seconds == 0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
