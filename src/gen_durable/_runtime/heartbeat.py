"""Renew the leases of running executions, in a thread of its own and on a connection of its own.

A step that blocks the event loop must not cost any lease. So the heartbeat shares nothing with the event loop but a
table of leases.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from .._core.model import Execution, Lease
from .._db.failures import StatementError
from .._db.lease import mark_started, renew, watch
from .._db.pool import Database
from .._db.reply_timeouts import ReplyTimeouts
from .._db.workers import blocked as register_blocked
from .._db.workers import unblocked
from .._running import Running
from ..connections import Dsn
from .database_status import REPAIR_WITHIN, DatabaseRetry
from .in_flight import InFlight
from .loop_watch import LoopWatch
from .progress_writer import ProgressWriter
from .registration import alive_for, registration_interval
from .worker_context import WorkerContext

__all__ = ["Heartbeat"]

# Seconds after which a running or waiting step is watched: its start is recorded, and a cancel reaches it. Most steps
# end before. So a start is recorded, and a cancel noticed, within a second.
_WATCH_AFTER: Final = 0.5
_WATCH_INTERVAL: Final = 0.5
# Seconds between two batches of progress.
_PROGRESS_INTERVAL: Final = 1.0
# Seconds between two writes of what was executed.
_COUNTS_INTERVAL: Final = 2.0

_log: Final = logging.getLogger("gen_durable.worker")


class Heartbeat:
    """Renews leases before they expire, and reports lost leases and cancel requests to the event loop."""

    def __init__(
        self,
        context: WorkerContext,
        dsn: Dsn,
        progress: ProgressWriter,
        *,
        on_lease_lost: Callable[[Lease], None],
        on_cancel: Callable[[Lease], None],
        on_failure: Callable[[BaseException], None],
        on_silence: Callable[[], object],
    ) -> None:
        self._dsn = dsn
        self._progress = progress
        self._loop_watch = LoopWatch(context)
        self._name = context.name
        self._counts = context.counts
        # What `workers` says about the event loop, and since when.
        self._registered: tuple[Running | None, float] | None = None
        self._registered_at = 0.0
        self._settings = context.settings
        self._shortest = context.shortest_lease
        self._database_status = context.database_status
        self._on_lease_lost = on_lease_lost
        self._on_cancel = on_cancel
        self._on_failure = on_failure
        self._on_silence = on_silence
        self._lock = threading.Lock()
        # The executions whose leases are renewed. Guarded by the lock.
        self._kept: dict[Lease, InFlight] = {}
        self._clock = context.clock
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

    def keep(self, executions: Iterable[InFlight]) -> None:
        """Renew the leases of these executions from now on."""
        with self._lock:
            self._kept.update((one.lease, one) for one in executions)

    def forget(self, executions: Iterable[InFlight]) -> None:
        """Stop renewing the leases of these executions."""
        with self._lock:
            for one in executions:
                self._kept.pop(one.lease, None)

    def step_ended(self, execution: Execution, seconds: float) -> None:
        """Note a step that has ended, on the event loop: it may have blocked the event loop and this thread."""
        self._loop_watch.ended(execution, seconds)

    def _all_kept(self) -> list[InFlight]:
        with self._lock:
            return list(self._kept.values())

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
        # Two connections, so that no renewal waits for a write of progress. One is opened with the first lease, and
        # again after it breaks; the other one only if both are used at once.
        settings = self._settings
        database = await Database.open(
            self._dsn,
            settings.schema,
            connect_now=False,
            size=2,
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
        side_tasks = [asyncio.get_running_loop().create_task(self._write_progress(database))]
        if (watch_interval := self._loop_watch.interval) is not None:
            side_tasks.append(asyncio.get_running_loop().create_task(self._watch_event_loop(watch_interval)))
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
        for task in side_tasks:
            task.cancel()
        await database.close()

    def _report_silence(self) -> None:
        """Let the worker check its connections: the same fault has probably broken them."""
        with suppress(RuntimeError):  # the worker's loop is closed
            self._loop.call_soon_threadsafe(self._on_silence)

    async def _write_progress(self, database: Database) -> None:
        counted_at = time.monotonic()
        while True:
            await asyncio.sleep(_PROGRESS_INTERVAL)
            try:
                await self._progress.write(database, self._is_running)
                await self._write_blocked(database)
                if time.monotonic() - counted_at >= _COUNTS_INTERVAL:
                    counted_at = time.monotonic()
                    await self._counts.write(database, self._name, self._clock)
            except Exception:  # noqa: BLE001 - a bug in it must not end the renewals
                _log.exception("progress and counts not stored")

    async def _write_blocked(self, database: Database) -> None:
        """Register which step blocks the event loop: on a change, and as often as the event loop would register."""
        blocked = self._loop_watch.blocked
        step = None if blocked is None else blocked[0]
        is_same = (blocked is None) == (self._registered is None)
        now = time.monotonic()
        is_due = now - self._registered_at >= registration_interval(self._settings).total_seconds()
        if is_same and (self._registered is None or (self._registered[0] is step and not is_due)):
            return
        length = alive_for(self._settings)
        plan = (
            unblocked(self._name, length)
            if blocked is None
            else register_blocked(self._name, length, step, timedelta(seconds=blocked[1]))
        )
        with suppress(StatementError):  # repeated by the next round
            await database.run(plan)
            self._registered, self._registered_at = blocked, now

    async def _watch_event_loop(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            self._loop_watch.check(self._all_kept())

    def _is_running(self, execution: Execution) -> bool:
        one = self._kept.get(execution.lease)
        return one is not None and one.execution.step_seq == execution.step_seq

    async def _beat_once(self, database: Database) -> None:
        if due := self._due():
            sent = time.monotonic()
            lost, locked = await database.run(renew({one.lease: one.lease_length for one in due}))
            self._renewed([one for one in due if one.lease not in locked], lost, sent)
            self._call(self._on_lease_lost, lost)
        running, waiting = self._long_running(), self._long_waiting()
        if not running and not waiting:
            return
        if unrecorded := {
            (one.lease, step_seq): self._clock.at(started, one.execution.leased_at)
            for one, step_seq, started in running
            if one.recorded != step_seq
        }:
            recorded = await database.run(mark_started(unrecorded))
            for one, step_seq, _ in running:
                if (one.lease, step_seq) in recorded:
                    one.recorded = step_seq
        lost, cancelled = await database.run(watch([*waiting, *(one.lease for one, _, _ in running)]))
        self._call(self._on_lease_lost, lost)
        self._call(self._on_cancel, cancelled)

    def _long_running(self) -> list[tuple[InFlight, int, float]]:
        """Return the executions whose step has run for `_WATCH_AFTER`, with its step_seq and start."""
        latest = time.monotonic() - _WATCH_AFTER
        return [
            (one, *running)
            for one in self._all_kept()
            if (running := one.running) is not None and running[1] <= latest
        ]

    def _long_waiting(self) -> list[Lease]:
        """Return the leases whose step has waited for `_WATCH_AFTER`: a cancel or a lost lease ends the wait, too."""
        latest = time.monotonic() - _WATCH_AFTER
        return [
            one.lease
            for one in self._all_kept()
            if (since := one.waiting_since) is not None and since <= latest
        ]

    def _call(self, callback: Callable[[Lease], None], leases: set[Lease]) -> None:
        for lease in leases:
            try:
                self._loop.call_soon_threadsafe(callback, lease)
            except RuntimeError:
                return  # the worker's loop is closed

    def _due(self) -> list[InFlight]:
        now = time.monotonic()
        kept = self._all_kept()
        half = {
            length: self._settings.renew_after(length).total_seconds() / 2
            for length in {one.lease_length for one in kept}
        }
        return [one for one in kept if now - one.renewed >= half[one.lease_length]]

    def _renewed(self, due: Iterable[InFlight], lost: set[Lease], sent: float) -> None:
        for one in due:
            one.renewed = sent
        with self._lock:
            for lease in lost:
                self._kept.pop(lease, None)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, at most `seconds`. Returns whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
