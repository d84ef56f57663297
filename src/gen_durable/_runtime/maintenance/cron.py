"""The service that fires schedules, also those of machines that run elsewhere."""

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
_MOMENT: Final = timedelta(milliseconds=250)


class Cron(Service):
    """Fires what is due. Every worker has one; of a slot that several see, the database lets one through.

    Nothing is held between looking and firing: a process that stops there holds up nobody.
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
        """Revisions of which this process cannot tell the next slot: cronsim or a time zone is missing here."""

    def first_pause(self) -> timedelta:
        """A moment, in which no two slots of a schedule come: a worker that starts has more urgent questions."""
        return _MOMENT

    async def tick(self) -> timedelta:
        pause = self._settings.poll_interval
        looked = time.monotonic()
        found = await self._database.run(schedules.due(_BATCH, self._unreadable, within=pause))
        upcoming = [one.wait for one in found if one.wait > timedelta(0)]
        fired = [await self._fire(due) for due in found[: len(found) - len(upcoming)]]
        if len(fired) == _BATCH and any(fired):
            return timedelta(0)
        passed = timedelta(seconds=time.monotonic() - looked)
        return max(min([pause, *upcoming]) - passed, _SHORTEST_PAUSE)

    async def _fire(self, due: Due) -> bool:
        """Fire what is firing; whether it was this worker that did."""
        try:
            firing = due.firing()
        except UsageError as error:
            self._unreadable.add(due.revision)
            _log.error("schedule %s is left to other workers: %s", due.name, error)
            return False
        fired = await self._database.run(schedules.fire(due, firing))
        if fired is not None:
            self._tell(due, firing, fired)
        return fired is not None

    def _tell(self, due: Due, firing: Firing, fired: Fired) -> None:
        if fired.reason == "error":
            _log.error("schedule %s inserted nothing at %s: %s", due.name, firing.passed_at, fired.problem)
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
