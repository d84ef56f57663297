"""Keeps the leases of live executions, on a thread and a connection of its own.

A step that blocks the event loop must not lose its lease, and neither must the steps beside it: so the heartbeat shares
nothing with them but a table of leases.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from .._core.model import Lease
from .._db.failures import StatementError
from .._db.lease import mark_started, renew, watch
from .._db.pool import Database
from .._db.reply_timeouts import ReplyTimeouts
from ..connections import Dsn
from .database_status import REPAIR_WITHIN, DatabaseRetry
from .worker_context import WorkerContext

__all__ = ["Heartbeat"]

# A step that runs for half a second is noted as begun within the next half, and hears of a cancel within a second.
_LONG: Final = 0.5
_NOTE_EVERY: Final = 0.5


class Heartbeat:
    """Renews every lease that is half of its interval old, and tells the event loop which ones are lost."""

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
        # Lease → when it was last known to be good (monotonic), and its length. Guarded by the lock.
        self._leases: dict[Lease, tuple[float, timedelta]] = {}
        # Lease → the step_seq of the step that runs on it, when it began (monotonic, and by the database's clock), and
        # whether that is noted. Guarded by the lock.
        self._begun: dict[Lease, tuple[int, float, datetime | None, bool]] = {}
        # Lease → since when its next step waits for its turn. Guarded by the lock.
        self._waiting: dict[Lease, float] = {}
        self._loop = asyncio.get_running_loop()
        self._beating: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="gen_durable heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Stop beating; does not wait for the thread."""
        if self._beating is not None:
            loop, stop = self._beating
            loop.call_soon_threadsafe(stop.set)

    def keep(self, lease: Lease, length: timedelta) -> None:
        """Keep this lease from now on, renewing it by so much."""
        with self._lock:
            self._leases[lease] = (time.monotonic(), length)

    def forget(self, lease: Lease) -> None:
        """Keep it no longer."""
        with self._lock:
            self._leases.pop(lease, None)
            self._begun.pop(lease, None)
            self._waiting.pop(lease, None)

    def step_waits(self, lease: Lease) -> None:
        """The next step on this lease has to wait for its turn."""
        with self._lock:
            self._waiting[lease] = time.monotonic()

    def step_begins(self, lease: Lease, step_seq: int, at: float, moment: datetime | None) -> None:
        """Note that a step begins on this lease, at this time (monotonic), at this moment of the database."""
        with self._lock:
            self._waiting.pop(lease, None)
            self._begun[lease] = (step_seq, at, moment, False)

    def step_ends(self, lease: Lease) -> None:
        """It has ended, or waits no longer."""
        with self._lock:
            self._waiting.pop(lease, None)
            self._begun.pop(lease, None)

    def _serve(self) -> None:
        try:
            asyncio.run(self._beat())
        except BaseException as error:  # noqa: BLE001 - whatever it is, the worker must not go on without a heartbeat
            self._beating = None
            self._ready.set()
            with suppress(RuntimeError):  # the worker's loop is closed
                self._loop.call_soon_threadsafe(self._on_failure, error)

    async def _beat(self) -> None:
        stop = asyncio.Event()
        self._beating = (asyncio.get_running_loop(), stop)
        self._ready.set()
        # A pool of one: it connects when there is something to keep, and again when the connection broke.
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
        database.watchdog.on_silence = self._tell_of_silence
        # For one lease at most: a worker that cannot renew must not go on leasing.
        outage = DatabaseRetry(
            "heartbeat",
            self._database_status,
            is_vital=True,
            repair_within=min(REPAIR_WITHIN, self._shortest.total_seconds()),
        )
        # Twice per interval, at leases that are half of their interval old: none gets older than one interval.
        pause = rhythm = min(settings.renew_after(self._shortest).total_seconds() / 2, _NOTE_EVERY)
        while not await _within(stop, pause):
            pause = rhythm
            try:
                await self._keep(database)
            except StatementError as error:
                pause = min(rhythm, outage.pause(error))
            else:
                outage.succeeded()
        self._beating = None
        await database.close()

    def _tell_of_silence(self) -> None:
        """What cut this connection has probably cut those of the worker."""
        with suppress(RuntimeError):  # the worker's loop is closed
            self._loop.call_soon_threadsafe(self._on_silence)

    async def _keep(self, database: Database) -> None:
        if due := self._due():
            asked = time.monotonic()
            lost, held = await database.run(renew(due))
            self._note(due.keys() - held, lost, asked)
            self._tell(self._on_lease_lost, lost)
        running, waiting = self._long_running(), self._long_waiting()
        if not running and not waiting:
            return
        if fresh := {key: moment for key, (moment, is_noted) in running.items() if not is_noted}:
            self._noted(await database.run(mark_started(fresh)))
        lost, cancelled = await database.run(watch([*waiting, *(lease for lease, _ in running)]))
        self._tell(self._on_lease_lost, lost)
        self._tell(self._on_cancel, cancelled)

    def _long_running(self) -> dict[tuple[Lease, int], tuple[datetime | None, bool]]:
        """Steps that have run for a while: most are over before anybody could look."""
        now = time.monotonic()
        with self._lock:
            return {
                (lease, step_seq): (moment, is_noted)
                for lease, (step_seq, since, moment, is_noted) in self._begun.items()
                if now - since >= _LONG
            }

    def _long_waiting(self) -> list[Lease]:
        """Those that have waited for their turn for a while: a cancel or the loss of the lease ends that, too."""
        now = time.monotonic()
        with self._lock:
            return [lease for lease, since in self._waiting.items() if now - since >= _LONG]

    def _noted(self, noted: set[tuple[Lease, int]]) -> None:
        with self._lock:
            for lease, step_seq in noted:
                begun = self._begun.get(lease)
                if begun is not None and begun[0] == step_seq:
                    self._begun[lease] = (step_seq, begun[1], begun[2], True)

    def _tell(self, whom: Callable[[Lease], None], leases: set[Lease]) -> None:
        for lease in leases:
            try:
                self._loop.call_soon_threadsafe(whom, lease)
            except RuntimeError:
                return  # the worker's loop is closed

    def _due(self) -> dict[Lease, timedelta]:
        now = time.monotonic()
        with self._lock:
            held = list(self._leases.items())
        lengths = {length for _, (_, length) in held}
        half = {length: self._settings.renew_after(length).total_seconds() / 2 for length in lengths}
        return {lease: length for lease, (renewed, length) in held if now - renewed >= half[length]}

    def _note(self, due: Iterable[Lease], lost: set[Lease], begun: float) -> None:
        with self._lock:
            for lease in due:
                if lease in lost:
                    self._leases.pop(lease, None)
                elif lease in self._leases:
                    self._leases[lease] = (begun, self._leases[lease][1])


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Whether it happens within so long."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
