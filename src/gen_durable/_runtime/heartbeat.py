"""Renew the leases of running executions, in a thread of its own and on a connection of its own.

A step that blocks the event loop must not cost any lease. So the heartbeat shares nothing with the event loop but a
table of leases.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import msgspec

from .._core.model import Lease
from .._db.failures import StatementError
from .._db.lease import mark_started, renew, watch
from .._db.pool import Database
from .._db.reply_timeouts import ReplyTimeouts
from ..connections import Dsn
from .database_status import REPAIR_WITHIN, DatabaseRetry
from .worker_context import WorkerContext

__all__ = ["Heartbeat"]

# Seconds after which a running or waiting step is watched: its start is recorded, and a cancel reaches it. Most steps
# end before. So a start is recorded, and a cancel noticed, within a second.
_WATCH_AFTER: Final = 0.5
_WATCH_INTERVAL: Final = 0.5


class _RunningStep(msgspec.Struct, gc=False):
    """A step that runs, and whether its start is recorded in the database."""

    step_seq: int
    started: float
    """By the monotonic clock."""
    started_at: datetime | None
    """By the database's clock."""
    is_recorded: bool = False


class Heartbeat:
    """Renews leases before they expire, and reports lost leases and cancel requests to the event loop."""

    def __init__(
        self,
        context: WorkerContext,
        dsn: Dsn,
        *,
        on_lease_lost: Callable[[Lease], None],
        on_cancel: Callable[[Lease], None],
        on_failure: Callable[[BaseException], None],
        on_silence: Callable[[], object],
    ) -> None:
        self._dsn = dsn
        self._settings = context.settings
        self._shortest = context.shortest_lease
        self._database_status = context.database_status
        self._on_lease_lost = on_lease_lost
        self._on_cancel = on_cancel
        self._on_failure = on_failure
        self._on_silence = on_silence
        self._lock = threading.Lock()
        # Lease → when it was last renewed (monotonic), and its length. Guarded by the lock.
        self._leases: dict[Lease, tuple[float, timedelta]] = {}
        # The running step of each lease. Guarded by the lock.
        self._running: dict[Lease, _RunningStep] = {}
        # Lease → since when its next step waits for capacity. Guarded by the lock.
        self._waiting: dict[Lease, float] = {}
        self._loop = asyncio.get_running_loop()
        self._thread_loop: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="gen_durable heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Stop the thread. Does not wait for it."""
        if self._thread_loop is not None:
            loop, stop = self._thread_loop
            loop.call_soon_threadsafe(stop.set)

    def keep(self, lease: Lease, length: timedelta) -> None:
        """Renew this lease from now on, by `length`."""
        with self._lock:
            self._leases[lease] = (time.monotonic(), length)

    def forget(self, lease: Lease) -> None:
        """Stop renewing this lease."""
        with self._lock:
            self._leases.pop(lease, None)
            self._running.pop(lease, None)
            self._waiting.pop(lease, None)

    def step_waits(self, lease: Lease) -> None:
        """Record that the next step of this lease waits for capacity."""
        with self._lock:
            self._waiting[lease] = time.monotonic()

    def step_begins(self, lease: Lease, step_seq: int, started: float, started_at: datetime | None) -> None:
        """Record that a step starts: `started` is monotonic, `started_at` by the database's clock."""
        with self._lock:
            self._waiting.pop(lease, None)
            self._running[lease] = _RunningStep(step_seq, started, started_at)

    def step_ends(self, lease: Lease) -> None:
        """Record that the step has ended, or no longer waits."""
        with self._lock:
            self._waiting.pop(lease, None)
            self._running.pop(lease, None)

    def _serve(self) -> None:
        try:
            asyncio.run(self._beat())
        except BaseException as error:  # noqa: BLE001 - after any error the worker must stop: it has no heartbeat
            self._thread_loop = None
            self._ready.set()
            with suppress(RuntimeError):  # the worker's loop is closed
                self._loop.call_soon_threadsafe(self._on_failure, error)

    async def _beat(self) -> None:
        stop = asyncio.Event()
        self._thread_loop = (asyncio.get_running_loop(), stop)
        self._ready.set()
        # A pool of one connection: opened with the first lease, and again after it breaks.
        settings = self._settings
        database = await Database.open(
            self._dsn,
            settings.schema,
            connect_now=False,
            size=1,
            name="the heartbeat",
            reply_timeouts=ReplyTimeouts.of_heartbeat(self._shortest),
            pooler=settings.pooler,
        )
        database.watchdog.on_silence = self._report_silence
        # Retry for one lease at most: a worker that cannot renew its leases must stop.
        retry = DatabaseRetry(
            "heartbeat",
            self._database_status,
            is_vital=True,
            repair_within=min(REPAIR_WITHIN, self._shortest.total_seconds()),
        )
        # Twice per renewal interval, renew the leases that are half an interval old: none gets older than one interval.
        pause = interval = min(settings.renew_after(self._shortest).total_seconds() / 2, _WATCH_INTERVAL)
        while not await _is_set_within(stop, pause):
            pause = interval
            try:
                await self._beat_once(database)
            except StatementError as error:
                pause = min(interval, retry.pause(error))
            else:
                retry.succeeded()
        self._thread_loop = None
        await database.close()

    def _report_silence(self) -> None:
        """Let the worker check its connections: the same fault has probably broken them."""
        with suppress(RuntimeError):  # the worker's loop is closed
            self._loop.call_soon_threadsafe(self._on_silence)

    async def _beat_once(self, database: Database) -> None:
        if due := self._due():
            sent = time.monotonic()
            lost, locked = await database.run(renew(due))
            self._renewed(due.keys() - locked, lost, sent)
            self._call(self._on_lease_lost, lost)
        running, waiting = self._long_running(), self._long_waiting()
        if not running and not waiting:
            return
        if unrecorded := {
            key: started_at for key, (started_at, is_recorded) in running.items() if not is_recorded
        }:
            self._recorded(await database.run(mark_started(unrecorded)))
        lost, cancelled = await database.run(watch([*waiting, *(lease for lease, _ in running)]))
        self._call(self._on_lease_lost, lost)
        self._call(self._on_cancel, cancelled)

    def _long_running(self) -> dict[tuple[Lease, int], tuple[datetime | None, bool]]:
        """Return the steps that have run for `_WATCH_AFTER`."""
        now = time.monotonic()
        with self._lock:
            return {
                (lease, step.step_seq): (step.started_at, step.is_recorded)
                for lease, step in self._running.items()
                if now - step.started >= _WATCH_AFTER
            }

    def _long_waiting(self) -> list[Lease]:
        """Return the leases whose step has waited for `_WATCH_AFTER`: a cancel or a lost lease ends the wait, too."""
        now = time.monotonic()
        with self._lock:
            return [lease for lease, since in self._waiting.items() if now - since >= _WATCH_AFTER]

    def _recorded(self, recorded: set[tuple[Lease, int]]) -> None:
        with self._lock:
            for lease, step_seq in recorded:
                step = self._running.get(lease)
                if step is not None and step.step_seq == step_seq:
                    step.is_recorded = True

    def _call(self, callback: Callable[[Lease], None], leases: set[Lease]) -> None:
        for lease in leases:
            try:
                self._loop.call_soon_threadsafe(callback, lease)
            except RuntimeError:
                return  # the worker's loop is closed

    def _due(self) -> dict[Lease, timedelta]:
        now = time.monotonic()
        with self._lock:
            held = list(self._leases.items())
        lengths = {length for _, (_, length) in held}
        half = {length: self._settings.renew_after(length).total_seconds() / 2 for length in lengths}
        return {lease: length for lease, (renewed, length) in held if now - renewed >= half[length]}

    def _renewed(self, due: Iterable[Lease], lost: set[Lease], sent: float) -> None:
        with self._lock:
            for lease in due:
                if lease in lost:
                    self._leases.pop(lease, None)
                elif lease in self._leases:
                    self._leases[lease] = (sent, self._leases[lease][1])


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, at most `seconds`. Returns whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
