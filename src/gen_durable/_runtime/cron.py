"""The service that fires schedules, also those of machines that run elsewhere."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Final

from .._db import schedules
from .._db.pool import Database
from .._db.schedules import Due, Fired, Owed
from ..config import Settings
from ..errors import UsageError
from ..telemetry import ScheduleFired, Telemetry
from .service import Contact, Service
from .wake import Wakes

__all__ = ["Cron"]

_log: Final = logging.getLogger("gen_durable.worker")
_BATCH: Final = 100
_SHORTEST_PAUSE: Final = timedelta(milliseconds=1)


class Cron(Service):
    """Fires what is due. Every worker has one; of a slot that several see, the database lets one through.

    Nothing is held between looking and firing: a process that stops there holds up nobody.
    """

    name = "cron"

    def __init__(
        self, database: Database, settings: Settings, telemetry: Telemetry, wakes: Wakes, contact: Contact
    ) -> None:
        super().__init__(contact)
        self._database = database
        self._settings = settings
        self._telemetry = telemetry
        self._wakes = wakes
        self._unreadable: set[int] = set()
        """Revisions of which this process cannot tell the next slot: cronsim or a time zone is missing here."""

    async def tick(self) -> timedelta:
        found = await self._database.run(schedules.due(_BATCH, self._unreadable))
        for due in found:
            await self._fire(due)
        if len(found) == _BATCH:
            return timedelta(0)
        next_slot = await self._database.run(schedules.until_next())
        pause = self._settings.poll_interval
        return pause if next_slot is None else max(min(pause, next_slot), _SHORTEST_PAUSE)

    async def _fire(self, due: Due) -> None:
        try:
            owed = due.owed()
        except UsageError as error:
            self._unreadable.add(due.revision)
            _log.error("schedule %s is left to other workers: %s", due.name, error)
            return
        fired = await self._database.run(schedules.fire(due, owed))
        if fired is not None:
            self._tell(due, owed, fired)

    def _tell(self, due: Due, owed: Owed, fired: Fired) -> None:
        if fired.reason == "error":
            _log.error("schedule %s inserted nothing at %s: %s", due.name, owed.passed_at, fired.problem)
        if fired.queue is not None:
            self._wakes.work({fired.queue})
        if not self._telemetry.is_wanted(ScheduleFired):
            return
        if fired.reason:
            self._emit(due, owed.passed_at, None, fired.reason)
        for slot, id, is_new in zip(owed.slots, fired.ids, fired.are_new, strict=False):
            self._emit(due, slot, id, "inserted" if is_new else "duplicate")

    def _emit(self, due: Due, slot: datetime, id: int | None, kind: str) -> None:
        self._telemetry.emit(
            ScheduleFired(schedule=due.name, fsm=due.fsm, slot=slot, lag=due.now - slot, id=id, kind=kind)
        )
