"""The service that removes rows whose retention is over."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from ..._checks import duration_text
from ..._db import collect, rollups
from ..._db.pool import Database
from ...config import Settings
from ...telemetry import GcSwept, OutboxExpired, Telemetry
from ..database_status import DatabaseStatus
from ..service import Service

__all__ = ["Collector"]

_log: Final = logging.getLogger("gen_durable.worker")
_outbox_log: Final = logging.getLogger("gen_durable.outbox")
# For how long a change with an Idempotency-Key can be sent again; docs/reference/dashboard.md names it.
_RETENTION_REQUESTS: Final = timedelta(days=1)


class Collector(Service):
    """Sweeps ended instances, oldest first, one page at a time.

    A row that cannot be removed yet (a child of a live parent) is skipped until the next sweep. Any number of
    collectors may run; each row is removed by one of them.
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
            "expired": timedelta(0),
            "deleted": settings.retention_deleted,
        }
        # The current sweep: kinds that are not finished, each with its next page.
        self._pages: dict[collect.Ended, collect.Cursor] = {}
        # Totals of the current sweep.
        self._deleted = self._stripped = 0
        # The next block of each table walk.
        self._executions_at = self._signals_at = self._items_at = 0
        self._pending_at = self._messages_at = self._buckets_at = 0

    def first_pause(self) -> timedelta:
        """Return a random part of the interval: workers often start together."""
        return self._settings.gc_interval * random.random()

    async def tick(self) -> timedelta:
        """Sweep one page of each kind. A sweep takes as many rounds as its longest kind has pages."""
        if not self._pages:  # a new sweep
            self._pages = dict.fromkeys(self._retentions, collect.START)
        deleted = stripped = 0
        for ended, page in list(self._pages.items()):
            swept = await self._database.run(collect.sweep(ended, self._retentions[ended], page))
            deleted += swept.deleted
            stripped += swept.stripped
            if swept.next is None:
                del self._pages[ended]
            else:
                self._pages[ended] = swept.next
        self._deleted += deleted
        self._stripped += stripped
        if not self._pages:
            self._log_sweep()
        if deleted:
            self._telemetry.emit(GcSwept(count=deleted))
        has_more = [
            await self._database.run(plan)
            for plan in (
                collect.sweep_events(self._settings.retention_events),
                collect.sweep_audit(self._settings.retention_audit),
                collect.sweep_batches(self._settings.retention_audit),
                collect.sweep_requests(_RETENTION_REQUESTS),
                rollups.fold(),
                rollups.sweep(),
            )
        ]
        if self._pages or any(has_more):
            return timedelta(0)
        await self._walk()
        return self._settings.gc_interval

    def _log_sweep(self) -> None:
        """Log once per sweep, which may have hundreds of pages."""
        if self._deleted or self._stripped:
            _log.info(
                "instances collected: %d deleted, %d reduced to their keys", self._deleted, self._stripped
            )
        self._deleted = self._stripped = 0

    async def _walk(self) -> None:
        retention = self._settings.retention_executions
        self._executions_at = await self._database.run(
            collect.walk_executions(retention, self._executions_at)
        )
        self._signals_at = await self._database.run(collect.walk_signals(self._signals_at))
        self._items_at = await self._database.run(collect.walk_items(self._items_at))
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
                "pending events removed: %d for sink '%s', not accepted within %s (settings.retention_pending)",
                count,
                sink,
                duration_text(retention),
            )
            self._telemetry.emit(OutboxExpired(count=count, sink=sink))
