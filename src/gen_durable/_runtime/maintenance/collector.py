"""The service that removes what has ended and been kept for long enough."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from ..._checks import duration_text
from ..._db import collect
from ..._db.pool import Database
from ...config import Settings
from ...telemetry import GcSwept, OutboxExpired, Telemetry
from ..database_status import DatabaseStatus
from ..service import Service

__all__ = ["Collector"]

_log: Final = logging.getLogger("gen_durable.worker")
_outbox_log: Final = logging.getLogger("gen_durable.outbox")


class Collector(Service):
    """Goes through what has ended, the oldest first, a page at a time.

    What cannot go yet (a child of a live parent) is passed over and looked at again in the next sweep, so it is in
    nobody's way. Any number of collectors may run; each row is taken by one of them.
    """

    name = "gc"

    def __init__(
        self, database: Database, settings: Settings, telemetry: Telemetry, database_status: DatabaseStatus
    ) -> None:
        super().__init__(database_status)
        self._database = database
        self._settings = settings
        self._telemetry = telemetry
        self._retentions: Mapping[collect.Ended, timedelta] = {
            "done": settings.retention_done,
            "cancelled": settings.retention_cancelled,
            "failed": settings.retention_failed,
            "deleted": settings.retention_deleted,
        }
        # What of the sweep that is under way is left to look at, and from where.
        self._left: dict[collect.Ended, collect.Cursor] = {}
        # What it has come to so far.
        self._deleted = self._stripped = 0
        # Where the walks through executions, signals, events, messages and buckets go on.
        self._executions_at = self._signals_at = self._pending_at = self._messages_at = self._buckets_at = 0

    def first_pause(self) -> timedelta:
        """Some part of the interval: workers often start together, and what is collected is in no hurry."""
        return self._settings.gc_interval * random.random()

    async def tick(self) -> timedelta:
        """One page of each kind; a sweep is as many rounds as the longest of them has pages."""
        if not self._left:  # a new sweep
            self._left = dict.fromkeys(self._retentions, collect.START)
        deleted = stripped = 0
        for ended, place in list(self._left.items()):
            swept = await self._database.run(collect.sweep(ended, self._retentions[ended], place))
            deleted += swept.deleted
            stripped += swept.stripped
            if swept.next is None:
                del self._left[ended]
            else:
                self._left[ended] = swept.next
        self._deleted += deleted
        self._stripped += stripped
        if not self._left:
            self._tell()
        if deleted:
            self._telemetry.emit(GcSwept(count=deleted))
        has_more_events = await self._database.run(collect.sweep_events(self._settings.retention_events))
        has_more_audit = await self._database.run(collect.sweep_audit(self._settings.retention_audit))
        if self._left or has_more_events or has_more_audit:
            return timedelta(0)
        await self._walk()
        return self._settings.gc_interval

    def _tell(self) -> None:
        """Once for a sweep: where much ends, it has hundreds of pages."""
        if self._deleted or self._stripped:
            _log.info("collected %d instances; %d more stay for their keys", self._deleted, self._stripped)
        self._deleted = self._stripped = 0

    async def _walk(self) -> None:
        retention = self._settings.retention_executions
        self._executions_at = await self._database.run(
            collect.walk_executions(retention, self._executions_at)
        )
        self._signals_at = await self._database.run(collect.walk_signals(self._signals_at))
        await self._expire()
        self._messages_at = await self._database.run(
            collect.walk_messages(self._settings.retention_events, self._messages_at)
        )
        buckets, self._buckets_at = await self._database.run(collect.walk_buckets(self._buckets_at))
        if buckets:
            self._telemetry.emit(GcSwept(count=0, buckets=buckets))

    async def _expire(self) -> None:
        retention = self._settings.retention_pending
        expired, self._pending_at = await self._database.run(
            collect.walk_pending(retention, self._pending_at)
        )
        for sink, count in expired.items():
            _outbox_log.error(
                "removed %d events for sink '%s': not accepted within %s (settings.retention_pending)",
                count,
                sink,
                duration_text(retention),
            )
            self._telemetry.emit(OutboxExpired(count=count, sink=sink))
