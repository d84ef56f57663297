"""The service that clears up behind a crowd: what has left the head of a queue is taken out of the index as well."""

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
# Fewer are passed by in less time than it takes to look for them in every index.
_CROWD: Final = 5000
# Of the time, at most so much goes into it: one part in eleven.
_REST: Final = 10
# Whoever was too slow once will be again, and must not keep autovacuum from the table meanwhile.
_LONG_REST: Final = 3600.0


class Vacuum(Service):
    """Vacuums the table of instances when a crowd of them was gated or put off.

    What is left of them in the index is read by every pick until then. Autovacuum comes around once a minute, and
    sooner or later it would do this too; where it is the quicker one, there is nothing left to do.
    """

    name = "vacuum"

    def __init__(self, database: Database, database_status: DatabaseStatus) -> None:
        super().__init__(database_status)
        self._database = database
        self._left = 0
        self._rests_until = 0.0

    def rows_deferred(self, count: int) -> None:
        """So many rows have left the head of a queue."""
        self._left += count
        if self._left >= _CROWD:
            self.wake()

    async def tick(self) -> timedelta | None:
        """Vacuum, if a crowd has left and the last time is long enough ago."""
        if self._left < _CROWD:
            return None
        begun = time.monotonic()
        if begun < self._rests_until:
            return timedelta(seconds=self._rests_until - begun)
        self._left = 0
        rest = 0.0
        try:
            await self._database.run_bare(collect.vacuum())
        except StatementError as error:  # whatever it is: no work depends on this
            _log.info("the table of instances is left to autovacuum for an hour: %s", error)
            rest = _LONG_REST
        now = time.monotonic()
        self._rests_until = now + max(rest, _REST * (now - begun)) * random.uniform(1, 1.5)
        return None
