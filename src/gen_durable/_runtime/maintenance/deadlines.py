"""The service that resumes awaits whose deadline has passed."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Final

from ..._db import lease as leases
from ..._db.pool import Database
from ...telemetry import AwaitTimeout, Telemetry
from ..database_status import DatabaseStatus
from ..service import Service
from ..wake import Wakes

__all__ = ["Deadlines"]

# An await times out within a second of its deadline.
_INTERVAL: Final = timedelta(milliseconds=500)
_BATCH: Final = 500


class Deadlines(Service):
    """Makes instances runnable whose await deadline has passed."""

    name = "deadlines"

    def __init__(
        self, database: Database, telemetry: Telemetry, wakes: Wakes, database_status: DatabaseStatus
    ) -> None:
        super().__init__(database_status)
        self._database = database
        self._telemetry = telemetry
        self._wakes = wakes

    def first_pause(self) -> timedelta:
        """Return a random part of the interval: at startup, picks go first."""
        return _INTERVAL * random.random()

    async def tick(self) -> timedelta:
        expired = await self._database.run(leases.expire())
        for one in expired:
            self._telemetry.emit(AwaitTimeout(id=one.id, fsm=one.fsm, step=one.step))
        self._wakes.work({one.queue for one in expired})
        return timedelta(0) if len(expired) >= _BATCH else _INTERVAL
