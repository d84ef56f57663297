"""Poll the settings that operators have changed for queues: pauses and concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from .._db import workers
from .._db.pool import Database
from ..config import Settings
from .database_status import DatabaseStatus
from .picker import Picker
from .registration import Registration
from .service import Service

__all__ = ["OverridePoller"]


class OverridePoller(Service):
    """Passes queue overrides to the pickers, and confirms pauses.

    A pick reads pauses itself; this service is for executions that are already leased. It polls twice per
    poll_interval, so no execution starts later than one poll_interval after a pause, chained and prefetched ones
    included. It runs until the end of a drain: a draining worker confirms pauses, too.
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
        self._interval = settings.poll_interval / 2
        self._pickers = pickers
        self._registration = registration

    async def tick(self) -> timedelta:
        overrides = await self._database.run(workers.overrides())
        for picker in self._pickers:
            picker.apply_overrides(overrides)
        # Confirm only now: from here on no picker starts work of a paused queue, unless a later pick finds the queue
        # resumed.
        await self._registration.confirm(
            {
                queue: override.paused_at
                for queue, override in overrides.items()
                if override.paused_at is not None
            }
        )
        return self._interval
