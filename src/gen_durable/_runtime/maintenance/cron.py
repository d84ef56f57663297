"""The service that fires schedules, whichever workers run their machines."""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta
from typing import Final

from ..._db import schedules
from ..._db.pool import Database
from ..._db.schedules import Due, Fired, Firing
from ...config import Settings
from ...errors import UsageError
from ...telemetry import ScheduleFired, Telemetry
from ..database_status import DatabaseStatus
from ..service import Service
from ..wake import Wakes

__all__ = ["Cron"]

_log: Final = logging.getLogger("gen_durable.worker")
_BATCH: Final = 100
_SHORTEST_PAUSE: Final = timedelta(milliseconds=1)
_FIRST_PAUSE: Final = timedelta(milliseconds=250)


class Cron(Service):
    """Fires due schedules. Every worker runs one; the database lets one worker fire each fire time.

    No lock is held between reading and firing, so a process that stops in between blocks no other worker.
    """

    name = "cron"

    def __init__(
        self,
        database: Database,
        settings: Settings,
        telemetry: Telemetry,
        wakes: Wakes,
        database_status: DatabaseStatus,
    ) -> None:
        super().__init__(database_status)
        self._database = database
        self._settings = settings
        self._telemetry = telemetry
        self._wakes = wakes
        self._unreadable: set[int] = set()
        """Revisions whose fire times this process cannot compute: cronsim or a time zone is not installed."""

    def first_pause(self) -> timedelta:
        """Return a short pause: at startup, picks go first. It is below the shortest interval of a schedule."""
        return _FIRST_PAUSE

    async def tick(self) -> timedelta:
        pause = self._settings.poll_interval
        sent = time.monotonic()
        found = await self._database.run(schedules.due(_BATCH, self._unreadable, within=pause))
        upcoming = [one.wait for one in found if one.wait > timedelta(0)]
        fired = [await self._fire(due) for due in found[: len(found) - len(upcoming)]]
        if len(fired) == _BATCH and any(fired):
            return timedelta(0)
        passed = timedelta(seconds=time.monotonic() - sent)
        return max(min([pause, *upcoming]) - passed, _SHORTEST_PAUSE)

    async def _fire(self, due: Due) -> bool:
        """Fire a schedule. Returns whether this worker fired it."""
        try:
            firing = due.firing()
        except UsageError as error:
            self._unreadable.add(due.revision)
            _log.error("schedule skipped: %s cannot be computed on this worker: %s", due.name, error)
            return False
        fired = await self._database.run(schedules.fire(due, firing))
        if fired is not None:
            self._report(due, firing, fired)
        return fired is not None

    def _report(self, due: Due, firing: Firing, fired: Fired) -> None:
        if fired.reason == "error":
            _log.error(
                "schedule failed: %s inserted nothing at %s: %s", due.name, firing.passed_at, fired.problem
            )
        if fired.queue is not None:
            self._wakes.work({fired.queue})
        if not self._telemetry.is_wanted(ScheduleFired):
            return
        if fired.reason:
            self._emit(due, firing.passed_at, None, fired.reason)
        for fire_time, id, is_new in zip(firing.fire_times, fired.ids, fired.are_new, strict=False):
            self._emit(due, fire_time, id, "inserted" if is_new else "duplicate")

    def _emit(self, due: Due, fire_time: datetime, id: int | None, kind: str) -> None:
        self._telemetry.emit(
            ScheduleFired(
                schedule=due.name, fsm=due.fsm, fire_time=fire_time, lag=due.now - fire_time, id=id, kind=kind
            )
        )
