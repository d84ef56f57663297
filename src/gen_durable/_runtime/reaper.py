"""The services that serve everybody: taking leases back from the dead, and waking those whose deadline has passed."""

from __future__ import annotations

import logging
import random
import time
from datetime import datetime, timedelta
from typing import Final

from .._db import commit as commits
from .._db import lease as leases
from .._db import pick
from .._db.failures import StatementError
from .._db.pool import Database
from ..config import Settings
from ..telemetry import AwaitTimeout, ReaperReaped, Telemetry
from .service import Contact, Service
from .wake import Wakes

__all__ = ["Reaper", "Timekeeper"]

_log: Final = logging.getLogger("gen_durable.worker")
# A deadline is met within a second of its time.
_DEADLINES_EVERY: Final = timedelta(milliseconds=500)
_BATCH: Final = 500
# How long a reap waits for a row that somebody's open transaction holds, before it goes on without.
_PATIENCE: Final = "100ms"
_LOCKED: Final = "55P03"


class Reaper(Service):
    """Returns executions whose lease ran out to their queue: the floor under every crash.

    It looks twice, one heartbeat apart: a lease that had run out at the first look and is not renewed at the second was
    that of the dead. If everybody was held up, the database or all the workers, the living renew in between.
    """

    name = "reaper"
    is_vital = True

    def __init__(
        self, database: Database, settings: Settings, telemetry: Telemetry, wakes: Wakes, contact: Contact
    ) -> None:
        super().__init__(contact)
        self._database = database
        self._settings = settings
        self._telemetry = telemetry
        self._wakes = wakes
        # When leases that had run out were seen first: by our clock (monotonic), and by that of the database.
        self._suspected: tuple[float, datetime] | None = None

    def first_pause(self) -> timedelta:
        """Some time: workers often start together, and nothing is reaped before one lease of contact."""
        return min(self._settings.reap_interval, self._settings.lease) * random.random()

    async def tick(self) -> timedelta:
        settings = self._settings
        # While the database was away the living could not renew either: give them one lease of time to do so.
        in_contact = timedelta(seconds=self._contact.seconds)
        if in_contact < settings.lease:
            self._suspected = None
            await self._look_after_limits()
            return min(settings.reap_interval, settings.lease - in_contact)
        if self._suspected is not None and self._is_confirmed(self._suspected[0]):
            if await self._reap(self._suspected[1]) >= _BATCH:
                return timedelta(0)
            self._suspected = None
        if self._suspected is None and (now := await self._database.run(leases.suspect())) is not None:
            self._suspected = (time.monotonic(), now)
        await self._database.run(commits.finish_abandoned(settings.lease))
        await self._look_after_limits()
        return settings.reap_interval if self._suspected is None else settings.heartbeat

    def _is_confirmed(self, seen: float) -> bool:
        return time.monotonic() - seen >= self._settings.heartbeat.total_seconds()

    async def _reap(self, suspected_at: datetime) -> int:
        try:
            return await self._take_back(suspected_at)
        except StatementError as error:
            if error.sqlstate != _LOCKED:
                raise
            return await self._reap_around(suspected_at)

    async def _reap_around(self, suspected_at: datetime) -> int:
        """Somebody holds the parent of one of them, or the next in line of its key: that one has to wait, no other."""
        count, held = 0, set[int | str]()
        overdue = await self._database.run(leases.overdue(suspected_at))
        for one in overdue:
            if one.touches & held:
                continue
            try:
                count += await self._take_back(suspected_at, [one.id])
            except StatementError as error:
                if error.sqlstate != _LOCKED:
                    raise
                held |= one.touches
        return len(overdue) if count else 0

    async def _take_back(self, suspected_at: datetime, ids: list[int] | None = None) -> int:
        settings = self._settings
        reaped = await self._database.run_in_transaction(
            leases.reap(
                settings.lease,
                settings.crash_limit,
                settings.executions,
                suspected_at,
                ids,
                settings.alerts or None,
            ),
            lock_timeout=_PATIENCE,
        )
        if reaped.ids:
            _log.warning(
                "took back the leases of dead executions (%d): %s",
                len(reaped.ids),
                reaped.ids[:20],
            )
            self._telemetry.emit(
                ReaperReaped(count=len(reaped.ids), ids=tuple(reaped.ids), capped=tuple(reaped.capped))
            )
            self._wakes.work(reaped.queues)
            self._wakes.rest()
            if reaped.capped and settings.alerts:
                self._wakes.events()
        return len(reaped.ids)

    async def _look_after_limits(self) -> None:
        self._wakes.work(await self._database.run(pick.hurry()))
        if keys := await self._database.run(pick.stuck_keys()):
            _log.error(
                "keys %s were free with all of their rows gated; this should not happen, they go on now",
                keys[:20],
            )
            self._wakes.work(
                await self._database.run_in_transaction(pick.ungate(keys), lock_timeout=_PATIENCE)
            )


class Timekeeper(Service):
    """Wakes the awaits whose deadline has passed."""

    name = "timekeeper"

    def __init__(self, database: Database, telemetry: Telemetry, wakes: Wakes, contact: Contact) -> None:
        super().__init__(contact)
        self._database = database
        self._telemetry = telemetry
        self._wakes = wakes

    def first_pause(self) -> timedelta:
        """Some part of the interval: a worker that starts has more urgent things to ask for."""
        return _DEADLINES_EVERY * random.random()

    async def tick(self) -> timedelta:
        expired = await self._database.run(leases.expire())
        for one in expired:
            self._telemetry.emit(AwaitTimeout(id=one.id, fsm=one.fsm, step=one.step))
        self._wakes.work({one.queue for one in expired})
        return timedelta(0) if len(expired) >= _BATCH else _DEADLINES_EVERY
