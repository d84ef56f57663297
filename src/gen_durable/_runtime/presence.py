"""What a worker tells the others of itself, and what it hears about its queues."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from .._db import fleet
from .._db.failures import StatementError
from .._db.plan import Plan
from .._db.pool import Database
from ..config import Settings
from .scheduler import Scheduler
from .service import Contact, Service

__all__ = ["Overseer", "Presence"]

# More often would tell nobody more.
_SELDOM: Final = timedelta(seconds=1)


class Presence(Service):
    """Says at every heartbeat that this worker is there. Whoever has not been heard of for three of them is not."""

    name = "presence"

    def __init__(
        self, database: Database, settings: Settings, contact: Contact, presence: fleet.Presence
    ) -> None:
        super().__init__(contact)
        self._database = database
        self._every = max(settings.renew_after(), _SELDOM)
        self._presence = presence
        self._is_draining = False

    def first_pause(self) -> timedelta:
        """One round: the worker said it itself before it let anything go."""
        return self._every

    async def tick(self) -> timedelta:
        await self._database.run(self.plan())
        return self._every

    def plan(self) -> Plan[None]:
        """Say that this worker is there."""
        return fleet.appear(self._presence, 3 * self._every, is_draining=self._is_draining)

    def drain(self) -> None:
        """From now on it says that it takes no more work."""
        self._is_draining = True
        self.wake()

    async def leave(self) -> None:
        """The last word. If it is lost, the others notice a little later."""
        with suppress(StatementError):
            await self._database.run(fleet.disappear(self._presence.name))


class Overseer(Service):
    """Looks what was said about queues, and passes it on.

    Twice per poll_interval: the pick itself sees a pause at once, and this is for what is leased already. So no
    execution begins later than one poll_interval after a pause, chained ones and those that wait for a slot included.
    """

    name = "queues"

    def __init__(
        self, database: Database, settings: Settings, contact: Contact, schedulers: Sequence[Scheduler]
    ) -> None:
        super().__init__(contact)
        self._database = database
        self._every = settings.poll_interval / 2
        self._schedulers = schedulers

    async def tick(self) -> timedelta:
        overrides = await self._database.run(fleet.settings())
        for scheduler in self._schedulers:
            scheduler.heed(overrides)
        return self._every
