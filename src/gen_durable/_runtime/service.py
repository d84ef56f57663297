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

from .._db.failures import READ_ONLY, StatementError, is_outage, is_race, is_repairable, is_silence

__all__ = ["REPAIR_WITHIN", "Contact", "Outage", "Service"]

_log: Final = logging.getLogger("gen_durable.worker")
_FIRST_PAUSE: Final = 0.1
# Often enough that a worker is back within seconds of its database, seldom enough not to be in its way.
_LONGEST_PAUSE: Final = 5.0
# SQLSTATE classes: insufficient resources (a full disk, no memory), system errors.
_NO_RESOURCES: Final = ("53", "58")
# Seconds for which an error that an administrator can undo is retried before the worker stops.
REPAIR_WITHIN: Final = 300.0
# Seconds without a new failure after which an outage is over. A full disk lets some statements through.
_STEADY: Final = 1.0


class _Episode:
    """One stretch of trouble, from the first service that fails to the last one that works again.

    It is logged once, and so is its end. Guarded by the lock of its `Contact`.
    """

    def __init__(self, end: str) -> None:
        self._end = end
        self.since: float | None = None
        # Services that fail. Weakly: an execution that ends meanwhile has nothing to retry.
        self._failing: weakref.WeakSet[Outage] = weakref.WeakSet()
        # Since when no service fails.
        self._calm_since: float | None = None
        self._told: set[str] = set()

    def add(self, outage: Outage, kind: str) -> bool:
        """A service fails; whether that is worth a line in the log."""
        now = time.monotonic()
        self.since = self.since or now
        self._calm_since = None
        self._failing.add(outage)
        is_news = kind not in self._told
        self._told.add(kind)
        return is_news

    def discard(self, outage: Outage) -> str | None:
        """A service works; the line for the log if that was the last one."""
        self._failing.discard(outage)
        if self.since is None or self._failing:
            return None  # services that have not tried again may still fail
        now = time.monotonic()
        self._calm_since = self._calm_since or now
        if now - self._calm_since < _STEADY:
            return None
        seconds = self._calm_since - self.since
        self.since = self._calm_since = None
        self._told.clear()
        return f"{self._end} after {seconds:.1f} s"


class Contact:
    """Since when this process has been in touch with the database; shared by all services of a worker.

    An outage is one event to people, however many services notice it: it is logged once, and so is its end. The same
    holds while the database answers and refuses what the worker needs.
    """

    def __init__(self, server: str = "PostgreSQL", on_lost: Callable[[], None] = lambda: None) -> None:
        self._server = server
        self._since: float | None = time.monotonic()
        self._last = time.monotonic()
        self._on_lost = on_lost
        # The heartbeat has a thread of its own.
        self._lock = threading.Lock()
        self._away = _Episode("the database is back")
        self._refusing = _Episode("the database accepts statements again")
        self._refusal = ""

    def lost(self, outage: Outage, error: StatementError) -> None:
        """A service did not reach the database. Only vital services lose contact: the reaper works on."""
        if error.sqlstate.startswith(_NO_RESOURCES) or error.sqlstate == READ_ONLY:
            self.refused(outage, error)
            return
        with self._lock:
            if outage.is_vital:
                self._since = None
            is_news = self._away.add(outage, "")
            self._refusing.discard(outage)
        if is_news:
            _log.warning(
                "%s: the database is away: %s; retrying until it is back", outage.who, self._reason(error)
            )
        self._on_lost()

    def refused(self, outage: Outage, error: StatementError, until: str = "until it works") -> None:
        """The database answers a service, and refuses what it needs."""
        with self._lock:
            if outage.is_vital:
                self._since = None
            is_news = self._refusing.add(outage, error.sqlstate)
            self._away.discard(outage)
            self._refusal = f"{outage.who}: {error}"
        if is_news:
            _log.warning("%s: the database refuses a statement: %s; retrying %s", outage.who, error, until)

    def made(self, outage: Outage) -> None:
        """A service reached the database, and it did what it was asked."""
        self._last = time.monotonic()
        if self._since is not None and self._away.since is None and self._refusing.since is None:
            return
        with self._lock:
            self._since = self._since or time.monotonic()
            ends = (self._away.discard(outage), self._refusing.discard(outage))
        for end in filter(None, ends):
            _log.info(end)

    def _reason(self, error: StatementError) -> str:
        if is_silence(error):
            return f"no answer from {self._server} for {self.silence:.1f} s"
        return f"{error} ({self._server})"

    @property
    def seconds(self) -> float:
        """How long there has been no outage."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def silence(self) -> float:
        """How long no service has reached it; services ask it something twice a second."""
        return time.monotonic() - self._last

    @property
    def refusal(self) -> str | None:
        """What the database refuses at present, and to which service."""
        return None if self._refusing.since is None else self._refusal


class Outage:
    """One stretch of time without the database, for one service: pauses that grow."""

    def __init__(
        self,
        who: str,
        contact: Contact | None = None,
        *,
        is_vital: bool = False,
        repair_within: float | None = None,
    ) -> None:
        self.who = who
        self.is_vital = is_vital
        self._contact = contact or Contact()
        self._tries = 0
        self._repair_within = REPAIR_WITHIN if repair_within is None else repair_within
        # Since when the database refuses what an administrator can allow again.
        self._refused_since: float | None = None

    def pause(self, error: StatementError) -> float:
        """Seconds until the next try.

        An error that waiting cannot mend is raised. One that an administrator can undo is raised when it has lasted
        for `repair_within`.
        """
        if is_outage(error):
            self._contact.lost(self, error)
        elif is_repairable(error) and self._may_wait():
            self._contact.refused(self, error, f"for {self._repair_within:.0f} s, then the worker stops")
        elif not is_race(error):
            raise error
        self._tries += 1
        # With jitter: a fleet that lost its database at one moment must not come back at one moment.
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._tries, 10)) * random.uniform(0.5, 1)

    def _may_wait(self) -> bool:
        now = time.monotonic()
        self._refused_since = self._refused_since or now
        return now - self._refused_since < self._repair_within

    def is_over(self) -> None:
        """A round went well."""
        self._tries = 0
        self._refused_since = None
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
