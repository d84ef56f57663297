"""The registration of a worker and its machines: their rows in the tables `workers` and `machines`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import msgspec

from .._db import machines, workers
from .._db.failures import StatementError
from .._db.plan import Plan
from .._db.pool import Database
from ..config import Settings
from .database_status import DatabaseStatus
from .service import Service

__all__ = ["Registration", "alive_for", "registration_interval"]

_MIN_INTERVAL: Final = timedelta(seconds=1)


def registration_interval(settings: Settings) -> timedelta:
    """Return the time between two registrations of a worker."""
    return max(settings.renew_after(), _MIN_INTERVAL)


def alive_for(settings: Settings) -> timedelta:
    """Return how long a worker counts as live after a registration."""
    return 3 * registration_interval(settings)


class Registration(Service):
    """Registers the worker once per heartbeat. A worker counts as live for three heartbeats.

    It registers its machines at its start, and again when the last worker that ran other code of them has ended.
    """

    name = "registration"

    def __init__(
        self,
        database: Database,
        settings: Settings,
        database_status: DatabaseStatus,
        worker_row: workers.WorkerRow,
        registered: machines.Machines,
        histories: Collection[str],
        in_flight: Callable[[], int],
    ) -> None:
        super().__init__(database_status)
        self._database = database
        self._interval = registration_interval(settings)
        self._alive_for = alive_for(settings)
        self._machines = registered
        self._histories = histories
        digests = machines.digests(registered, histories)
        self._worker_row = msgspec.structs.replace(worker_row, fsm_digests=digests)
        self._in_flight = in_flight
        self._is_draining = False
        # One statement at a time: an older one that arrives late would withdraw what a newer one confirms.
        self._lock = asyncio.Lock()
        # By queue and paused_at: the pauses that this worker has applied, and those that are stored.
        self._paused: Mapping[str, datetime] = {}
        self._confirmed: Mapping[str, datetime] = {}

    def first_pause(self) -> timedelta:
        """Return one interval: the worker registers before it starts its services."""
        return self._interval

    async def tick(self) -> timedelta:
        async with self._lock:
            paused = self._paused
            foreign = await self._database.run(self.announce())
            self._confirmed = paused
            if foreign.is_orphaned and not self._is_draining:
                await self._database.run_in_transaction(self.take_over())
        return self._interval

    async def confirm(self, paused: Mapping[str, datetime]) -> None:
        """Confirm that this worker starts nothing of these queues. Runs no statement if that is already stored."""
        self._paused = paused
        if paused != self._confirmed:
            await self.tick()

    def begin(self) -> Plan[None]:
        """Register the machines and the worker, in one transaction: others see both or neither."""
        yield from machines.register(self._machines, self._histories)
        if (yield from self.announce()).differs:
            # Another worker has inserted a registration after this one had looked for it.
            yield from machines.register(self._machines, self._histories)

    def take_over(self) -> Plan[None]:
        """Register the machines whose registered code no live worker has, in a transaction."""
        yield from machines.register(self._machines, self._histories, renews=True)

    def announce(self) -> Plan[workers.Foreign]:
        """Register the worker, or renew its registration."""
        return workers.announce(
            self._worker_row,
            self._alive_for,
            in_flight=self._in_flight(),
            is_draining=self._is_draining,
            paused=self._paused,
        )

    def drain(self) -> None:
        """Register that the worker takes no more work."""
        self._is_draining = True
        self.wake()

    async def withdraw(self) -> None:
        """Deregister the worker. If that fails, its registration expires."""
        with suppress(StatementError):
            await self._database.run(workers.withdraw(self._worker_row.name))
