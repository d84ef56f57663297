"""What a worker tells the others of itself, and what it hears about its queues."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from .._db import workers
from .._db.failures import StatementError
from .._db.plan import Plan
from .._db.pool import Database
from ..config import Settings
from .database_status import DatabaseStatus
from .picker import Picker
from .service import Service

__all__ = ["OverridePoller", "Registration"]

# More often would tell nobody more.
_SELDOM: Final = timedelta(seconds=1)


class Registration(Service):
    """Says at every heartbeat that this worker is there. Whoever has not been heard of for three of them is not."""

    name = "registration"

    def __init__(
        self,
        database: Database,
        settings: Settings,
        database_status: DatabaseStatus,
        worker_row: workers.WorkerRow,
    ) -> None:
        super().__init__(database_status)
        self._database = database
        self._every = max(settings.renew_after(), _SELDOM)
        self._worker_row = worker_row
        self._is_draining = False
        # One statement at a time: an older one that arrives late would take back what a newer one confirms.
        self._lock = asyncio.Lock()
        # The pauses that this worker heeds, by queue and paused_at, and those of them that the database knows of.
        self._paused: Mapping[str, datetime] = {}
        self._confirmed: Mapping[str, datetime] = {}

    def first_pause(self) -> timedelta:
        """One round: the worker said it itself before it let anything go."""
        return self._every

    async def tick(self) -> timedelta:
        async with self._lock:
            paused = self._paused
            await self._database.run(self.plan())
            self._confirmed = paused
        return self._every

    async def confirm(self, paused: Mapping[str, datetime]) -> None:
        """Tell the database that nothing of these queues begins here any more. Costs nothing if it knows."""
        self._paused = paused
        if paused != self._confirmed:
            await self.tick()

    def plan(self) -> Plan[None]:
        """Say that this worker is there."""
        return workers.announce(
            self._worker_row, 3 * self._every, is_draining=self._is_draining, paused=self._paused
        )

    def drain(self) -> None:
        """From now on it says that it takes no more work."""
        self._is_draining = True
        self.wake()

    async def leave(self) -> None:
        """The last word. If it is lost, the others notice a little later."""
        with suppress(StatementError):
            await self._database.run(workers.withdraw(self._worker_row.name))


class OverridePoller(Service):
    """Reads what was set for queues, passes it to the pickers, and confirms pauses.

    Twice per poll_interval: the pick itself sees a pause at once, and this is for what is leased already. So no
    execution begins later than one poll_interval after a pause, chained ones and those that wait for a slot included.
    It runs until the end of a drain: a draining worker confirms, too.
    """

    name = "queues"

    def __init__(
        self,
        database: Database,
        settings: Settings,
        database_status: DatabaseStatus,
        pickers: Sequence[Picker],
        registration: Registration,
    ) -> None:
        super().__init__(database_status)
        self._database = database
        self._every = settings.poll_interval / 2
        self._pickers = pickers
        self._registration = registration

    async def tick(self) -> timedelta:
        overrides = await self._database.run(workers.overrides())
        for picker in self._pickers:
            picker.apply_overrides(overrides)
        # After every picker has applied it: from here on none of them begins anything of a paused queue, unless a
        # pick that starts later finds the queue open again.
        await self._registration.confirm(
            {queue: said.paused_at for queue, said in overrides.items() if said.paused_at is not None}
        )
        return self._every
