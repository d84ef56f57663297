"""The loop that every service has: do a round, pause or be woken, back off while the database is away."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from .._db.failures import StatementError, is_outage, is_race

__all__ = ["Contact", "Outage", "Service"]

_log: Final = logging.getLogger("gen_durable.worker")
_FIRST_PAUSE: Final = 0.1
# Often enough that a worker is back within seconds of its database, seldom enough not to be in its way.
_LONGEST_PAUSE: Final = 5.0


class Contact:
    """Since when this process has been in touch with the database; shared by all services of a worker.

    An outage is one thing to people, however many services notice it: it is told once, and so is its end.
    """

    def __init__(self, on_lost: Callable[[], None] = lambda: None) -> None:
        self._since: float | None = time.monotonic()
        self._last = time.monotonic()
        self._on_lost = on_lost
        # The heartbeat has a thread of its own.
        self._lock = threading.Lock()
        # Who waits for the database. Weakly: an execution that ends meanwhile has nothing to wait for.
        self._waiting: weakref.WeakSet[Outage] = weakref.WeakSet()
        self._away_since: float | None = None

    def lost(self, outage: Outage, error: StatementError) -> None:
        """Somebody could not reach it. Whoever is not vital may have troubles of his own: the reaper works on."""
        with self._lock:
            if outage.is_vital:
                self._since = None
            self._waiting.add(outage)
            is_news, self._away_since = self._away_since is None, self._away_since or time.monotonic()
        if is_news:
            _log.warning("%s: the database is away (%s); trying again until it is back", outage.who, error)
        self._on_lost()

    def made(self, outage: Outage) -> None:
        """Somebody reached it."""
        self._last = time.monotonic()
        if self._since is not None and self._away_since is None:
            return
        with self._lock:
            self._since = self._since or time.monotonic()
            self._waiting.discard(outage)
            since = self._away_since
            if self._waiting or since is None:
                return  # those who have not tried again yet may find that it is not back for them
            self._away_since = None
        _log.info("the database is back after %.1f s", time.monotonic() - since)

    @property
    def seconds(self) -> float:
        """How long there has been no outage."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def silence(self) -> float:
        """How long nobody has reached it; services ask it something twice a second."""
        return time.monotonic() - self._last


class Outage:
    """One stretch of time without the database, for one service: pauses that grow."""

    def __init__(self, who: str, contact: Contact | None = None, *, is_vital: bool = False) -> None:
        self.who = who
        self.is_vital = is_vital
        self._contact = contact or Contact()
        self._tries = 0

    def pause(self, error: StatementError) -> float:
        """Seconds until the next try. An error that no waiting can mend is raised."""
        if not (is_outage(error) or is_race(error)):
            raise error
        self._tries += 1
        if is_outage(error):
            self._contact.lost(self, error)
        # With jitter: a fleet that lost its database at one moment must not come back at one moment.
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._tries, 10)) * random.uniform(0.5, 1)

    def is_over(self) -> None:
        """A round went well."""
        self._tries = 0
        self._contact.made(self)


class Service:
    """A named loop. Subclasses say what one round does."""

    name = "service"
    # Whether it counts as a loss of contact if this one cannot reach the database.
    is_vital = False

    def __init__(self, contact: Contact) -> None:
        self._contact = contact
        self._woken = asyncio.Event()
        self._is_stopping = False

    async def tick(self) -> timedelta | None:
        """Do one round; the pause until the next one, `None` to wait for a wake."""
        raise NotImplementedError

    def first_pause(self) -> timedelta:
        """How long after the start the first round begins."""
        return timedelta(0)

    def wake(self) -> None:
        """Let the next round begin now."""
        self._woken.set()

    def stop(self) -> None:
        """Let the current round be the last."""
        self._is_stopping = True
        self._woken.set()

    async def run(self) -> None:
        """Rounds until `stop`."""
        outage = Outage(self.name, self._contact, is_vital=self.is_vital)
        await self._wait(self.first_pause().total_seconds())
        while not self._is_stopping:
            # Cleared before the round: a wake during it means that the round may have looked too early.
            self._woken.clear()
            try:
                pause = await self.tick()
            except StatementError as error:
                await self._wait(outage.pause(error))
                continue
            outage.is_over()
            await self._wait(None if pause is None else pause.total_seconds())

    async def _wait(self, seconds: float | None) -> None:
        if self._is_stopping or seconds == 0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
