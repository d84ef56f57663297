"""The service that stores how much there is to do, for charts."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Final

from ..._db import rollups
from ..._db.pool import Database
from ..database_status import DatabaseStatus
from ..service import Service

__all__ = ["Backlog"]

_INTERVAL: Final = timedelta(seconds=15)


class Backlog(Service):
    """Counts due, executing and waiting instances every 15 seconds. Of any number of workers, one counts."""

    name = "backlog"

    def __init__(self, database: Database, database_status: DatabaseStatus) -> None:
        super().__init__(database_status)
        self._database = database

    def first_pause(self) -> timedelta:
        """Return a random part of the interval: workers often start together."""
        return _INTERVAL * random.random()

    async def tick(self) -> timedelta:
        await self._database.run(rollups.write_backlog())
        return _INTERVAL
