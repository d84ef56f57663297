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
from ...telemetry import CompensationStarted, ReaperReaped, Telemetry
from ..database_status import DatabaseStatus
from ..service import Service
from ..step_counts import StepCounts
from ..wake import Wakes

__all__ = ["Reaper"]

_log: Final = logging.getLogger("gen_durable.worker")
_BATCH: Final = 500
# How long a reap waits for a row that another transaction has locked before it skips the row.
_LOCK_TIMEOUT: Final = "100ms"


class Reaper(Service):
    """Returns executions with expired leases to their queue. This recovers the work of every crash.

    It reads expired leases twice, one heartbeat apart. The first read collects suspects: expired leases of rows that no
    transaction had locked. A lease that is still not renewed at the second read belongs to a dead worker. If the
    database, all workers, or one row were blocked, the live workers renew their leases in between.
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
        counts: StepCounts,
    ) -> None:
        super().__init__(database_status)
        self._database = database
        self._settings = settings
        self._telemetry = telemetry
        self._wakes = wakes
        self._counts = counts
        # Expired leases that could have been renewed, and when they were read (monotonic).
        self._suspects: list[leases.Suspect] = []
        self._suspected_at = 0.0
        # The next page of the search for COMMITTED executions that have nothing left to do.
        self._finish_page = commits.FIRST_PAGE

    def first_pause(self) -> timedelta:
        """Return a random pause: workers often start together. Nothing is reaped during the first lease anyway."""
        return min(self._settings.reap_interval, self._settings.lease) * random.random()

    async def tick(self) -> timedelta:
        settings = self._settings
        # During an outage live workers could not renew their leases either: give them one lease to do so.
        available = timedelta(seconds=self._database_status.seconds_available)
        if available < settings.lease:
            self._suspects = []
            await self._repair_rows()
            return min(settings.reap_interval, settings.lease - available)
        if self._suspects and self._is_confirmed():
            await self._reap(self._suspects[:_BATCH])
            del self._suspects[:_BATCH]
            if self._suspects:
                return timedelta(0)
        if not self._suspects:
            self._suspects = await self._database.run(leases.suspect())
            self._suspected_at = time.monotonic()
        _, self._finish_page = await self._database.run(
            commits.finish_abandoned(settings.lease, self._finish_page)
        )
        await self._repair_rows()
        return settings.renew_after() if self._suspects else settings.reap_interval

    def _is_confirmed(self) -> bool:
        return time.monotonic() - self._suspected_at >= self._settings.renew_after().total_seconds()

    async def _reap(self, suspects: list[leases.Suspect]) -> None:
        try:
            await self._reap_batch(suspects)
        except StatementError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            await self._reap_one_by_one(suspects)

    async def _reap_one_by_one(self, suspects: list[leases.Suspect]) -> None:
        """Skip the suspects that need a locked row: their parent, or the next row of their key."""
        locked = set[int | str]()
        for one in suspects:
            if one.touches & locked:
                continue
            try:
                await self._reap_batch([one])
            except StatementError as error:
                if error.sqlstate != LOCK_NOT_AVAILABLE:
                    raise
                locked |= one.touches

    async def _reap_batch(self, suspects: list[leases.Suspect]) -> None:
        settings = self._settings
        reaped = await self._database.run_in_transaction(
            leases.reap(settings.lease, leases.CrashPolicy.of(settings), suspects),
            lock_timeout=_LOCK_TIMEOUT,
        )
        if reaped.ids:
            self._counts.crashed(reaped.crashes)
            _log.warning(
                "expired leases reaped: %d, ids %s",
                len(reaped.ids),
                reaped.ids[:20],
            )
            self._telemetry.emit(
                ReaperReaped(count=len(reaped.ids), ids=tuple(reaped.ids), capped=tuple(reaped.capped))
            )
            for one in reaped.redirected:
                if one.redirect == "undo":
                    self._telemetry.emit(CompensationStarted(id=one.id, fsm=one.fsm, step=one.step))
            self._wakes.work(reaped.queues)
            self._wakes.ended_or_parked(reaped.ids)
            self._wakes.changed(reaped.ids)
            if reaped.capped and settings.alerts:
                self._wakes.events()

    async def _repair_rows(self) -> None:
        await self._end_deleted()
        self._wakes.work(await self._database.run(admission.pull_forward()))
        await self._database.run(admission.mark_unserved())
        keys, is_expected = await self._database.run(admission.stuck_keys())
        if keys:
            if not is_expected:
                _log.error(
                    "gated rows of free keys released: keys %s; this is a bug, please report it",
                    keys[:20],
                )
            try:
                queues = await self._database.run_in_transaction(
                    admission.ungate(keys), lock_timeout=_LOCK_TIMEOUT
                )
            except StatementError as error:
                if error.sqlstate != LOCK_NOT_AVAILABLE:
                    raise
                return  # another transaction has locked the next row of a key; retry in the next round
            self._wakes.work(queues)

    async def _end_deleted(self) -> None:
        """End live rows with `deleted_at` that the trigger has not seen: inserted so, or with triggers disabled."""
        if not await self._database.run(leases.has_deleted()):
            return
        try:
            queues = await self._database.run_in_transaction(
                leases.end_deleted(_BATCH), lock_timeout=_LOCK_TIMEOUT
            )
        except StatementError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            return  # another transaction has locked a parent, or the next row of a key; retry in the next round
        self._wakes.work(queues)
