"""The service that takes back executions whose lease has expired."""

from __future__ import annotations

import logging
import random
import time
from datetime import timedelta
from typing import Final

from ..._db import admission
from ..._db import commit as commits
from ..._db import lease as leases
from ..._db.failures import StatementError
from ..._db.pool import Database
from ..._db.sqlstates import LOCK_NOT_AVAILABLE
from ...config import Settings
from ...telemetry import ReaperReaped, Telemetry
from ..database_status import DatabaseStatus
from ..service import Service
from ..wake import Wakes

__all__ = ["Reaper"]

_log: Final = logging.getLogger("gen_durable.worker")
_BATCH: Final = 500
# How long a reap waits for a row that somebody's open transaction holds, before it goes on without.
_PATIENCE: Final = "100ms"


class Reaper(Service):
    """Returns executions whose lease ran out to their queue: the floor under every crash.

    It looks twice, one heartbeat apart: a lease that had run out at the first look, with nobody in the way of who would
    renew it, and is not renewed at the second was that of the dead. If everybody was held up, the database or all the
    workers, or one row by somebody's transaction, the living renew in between.
    """

    name = "reaper"
    is_vital = True

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
        # Leases that had run out and could have been renewed, and when that was seen (monotonic).
        self._suspects: list[leases.Suspect] = []
        self._seen = 0.0
        # Where the search for executions that are COMMITTED and have nothing left to do goes on.
        self._finished = commits.FIRST_PAGE

    def first_pause(self) -> timedelta:
        """Some time: workers often start together, and nothing is reaped before one lease without an outage."""
        return min(self._settings.reap_interval, self._settings.lease) * random.random()

    async def tick(self) -> timedelta:
        settings = self._settings
        # While the database was away the living could not renew either: give them one lease of time to do so.
        available = timedelta(seconds=self._database_status.seconds_available)
        if available < settings.lease:
            self._suspects = []
            await self._look_after_rows()
            return min(settings.reap_interval, settings.lease - available)
        if self._suspects and self._is_confirmed():
            await self._reap(self._suspects[:_BATCH])
            del self._suspects[:_BATCH]
            if self._suspects:
                return timedelta(0)
        if not self._suspects:
            self._suspects = await self._database.run(leases.suspect())
            self._seen = time.monotonic()
        _, self._finished = await self._database.run(commits.finish_abandoned(settings.lease, self._finished))
        await self._look_after_rows()
        return settings.renew_after() if self._suspects else settings.reap_interval

    def _is_confirmed(self) -> bool:
        return time.monotonic() - self._seen >= self._settings.renew_after().total_seconds()

    async def _reap(self, suspects: list[leases.Suspect]) -> None:
        try:
            await self._take_back(suspects)
        except StatementError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            await self._reap_around(suspects)

    async def _reap_around(self, suspects: list[leases.Suspect]) -> None:
        """Somebody holds the parent of one of them, or the next in line of its key: that one has to wait, no other."""
        held = set[int | str]()
        for one in suspects:
            if one.touches & held:
                continue
            try:
                await self._take_back([one])
            except StatementError as error:
                if error.sqlstate != LOCK_NOT_AVAILABLE:
                    raise
                held |= one.touches

    async def _take_back(self, suspects: list[leases.Suspect]) -> None:
        settings = self._settings
        reaped = await self._database.run_in_transaction(
            leases.reap(
                settings.lease,
                settings.crash_limit,
                settings.executions,
                suspects,
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

    async def _look_after_rows(self) -> None:
        await self._end_deleted()
        self._wakes.work(await self._database.run(admission.pull_forward()))
        if keys := await self._database.run(admission.stuck_keys()):
            _log.error(
                "keys %s were free with all of their rows gated; this should not happen, they go on now",
                keys[:20],
            )
            try:
                queues = await self._database.run_in_transaction(
                    admission.ungate(keys), lock_timeout=_PATIENCE
                )
            except StatementError as error:
                if error.sqlstate != LOCK_NOT_AVAILABLE:
                    raise
                return  # somebody holds the next in line: at the next look, and nothing else waits for that
            self._wakes.work(queues)

    async def _end_deleted(self) -> None:
        """End what was deleted past the trigger on `deleted_at`: inserted so, or updated with triggers disabled."""
        if not await self._database.run(leases.has_deleted()):
            return
        try:
            queues = await self._database.run_in_transaction(
                leases.end_deleted(_BATCH), lock_timeout=_PATIENCE
            )
        except StatementError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            return  # another transaction holds the parent of one, or the next row of its key: again at the next tick
        self._wakes.work(queues)
