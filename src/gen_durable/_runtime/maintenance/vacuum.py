"""The service that vacuums the pick index after many rows have been deferred."""

from __future__ import annotations

import logging
import random
import time
from datetime import timedelta
from typing import Final

from ..._db import collect
from ..._db.failures import StatementError
from ..._db.pool import Database
from ..database_status import DatabaseStatus
from ..service import Service

__all__ = ["Vacuum"]

_log: Final = logging.getLogger("gen_durable.worker")
# Picks skip fewer dead index entries than this in less time than a vacuum takes.
_MIN_DEFERRED: Final = 5000
# The pause after a vacuum, as a multiple of its duration: vacuums take at most one eleventh of the time.
_PAUSE_FACTOR: Final = 10
# Seconds after a failed vacuum. One that was too slow would be again, and would keep autovacuum from the table.
_PAUSE_AFTER_FAILURE: Final = 3600.0


class Vacuum(Service):
    """Vacuums the table of instances after many rows were gated or throttled.

    Until then every pick reads their dead index entries. Autovacuum would remove them too, but it starts once a minute
    at most. If it was faster, there is little left to do.
    """

    name = "vacuum"

    def __init__(self, database: Database, database_status: DatabaseStatus) -> None:
        super().__init__(database_status)
        self._database = database
        self._deferred = 0
        self._paused_until = 0.0

    def rows_deferred(self, count: int) -> None:
        """Count rows that have left the head of a queue."""
        self._deferred += count
        if self._deferred >= _MIN_DEFERRED:
            self.wake()

    async def tick(self) -> timedelta | None:
        """Vacuum if enough rows were deferred and the last vacuum is long enough ago."""
        if self._deferred < _MIN_DEFERRED:
            return None
        begun = time.monotonic()
        if begun < self._paused_until:
            return timedelta(seconds=self._paused_until - begun)
        self._deferred = 0
        pause = 0.0
        try:
            await self._database.run_bare(collect.vacuum())
        except StatementError as error:  # any error: no work depends on a vacuum
            _log.info("vacuum failed: %s; leaving the table to autovacuum for an hour", error)
            pause = _PAUSE_AFTER_FAILURE
        now = time.monotonic()
        self._paused_until = now + max(pause, _PAUSE_FACTOR * (now - begun)) * random.uniform(1, 1.5)
        return None
