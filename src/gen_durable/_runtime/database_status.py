"""Whether the database answers: shared by all services of a worker, with the retries of each."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

from .._backoff import backoff_seconds
from .._db.failures import StatementError, is_no_reply, is_outage, is_race, is_repairable
from .._db.sqlstates import INSUFFICIENT_RESOURCES, READ_ONLY, SYSTEM_ERROR

__all__ = ["REPAIR_WITHIN", "DatabaseRetry", "DatabaseStatus"]

_log: Final = logging.getLogger("gen_durable.worker")
_FIRST_PAUSE: Final = 0.1
# A worker resumes within seconds after its database is back, and retries do not load the server.
_LONGEST_PAUSE: Final = 5.0
# SQLSTATE classes: insufficient resources (a full disk, no memory), system errors.
_NO_RESOURCES: Final = (INSUFFICIENT_RESOURCES, SYSTEM_ERROR)
# Seconds for which an error that an administrator can fix is retried before the worker stops.
REPAIR_WITHIN: Final = 300.0
# Seconds without a new failure after which an episode ends. A full disk lets some statements through.
_STABLE_AFTER: Final = 1.0


class _Episode:
    """Consecutive failures of any services, from the first failure to the last recovery.

    Its start and its end are logged once each. Guarded by the lock of its `DatabaseStatus`.
    """

    def __init__(self, end: str) -> None:
        self._end = end
        self.since: float | None = None
        # Weak references: an execution that ends during the episode does not retry, so it never recovers.
        self._failing: weakref.WeakSet[DatabaseRetry] = weakref.WeakSet()
        self._recovered_at: float | None = None
        self._logged_kinds: set[str] = set()

    def add(self, failing: DatabaseRetry, kind: str) -> bool:
        """Record a failing service. Returns whether to log this kind of failure: once per episode."""
        self.since = self.since or time.monotonic()
        self._recovered_at = None
        self._failing.add(failing)
        is_new = kind not in self._logged_kinds
        self._logged_kinds.add(kind)
        return is_new

    def discard(self, recovered: DatabaseRetry) -> str | None:
        """Record a recovered service. Returns the log line for the end of the episode, if it ends."""
        self._failing.discard(recovered)
        if self.since is None or self._failing:
            return None
        now = time.monotonic()
        self._recovered_at = self._recovered_at or now
        if now - self._recovered_at < _STABLE_AFTER:
            return None
        seconds = self._recovered_at - self.since
        self.since = self._recovered_at = None
        self._logged_kinds.clear()
        return f"{self._end} after {seconds:.1f} s"


class DatabaseStatus:
    """Whether this process reaches the database; shared by all services of a worker.

    Many services notice the same outage; its start and its end are logged once. The same applies while the database
    answers but refuses statements.
    """

    def __init__(self, server: str = "PostgreSQL", on_unreachable: Callable[[], None] = lambda: None) -> None:
        self._server = server
        # `None` during an outage of a vital service.
        self._available_since: float | None = time.monotonic()
        self._last_reply = time.monotonic()
        self._on_unreachable = on_unreachable
        # The heartbeat runs in its own thread.
        self._lock = threading.Lock()
        self._unreachable = _Episode("database reachable again")
        self._refusing = _Episode("database accepts statements again")
        self._refusal = ""

    def unreachable(self, failing: DatabaseRetry, error: StatementError) -> None:
        """Record that a service failed to reach the database. Only vital services count as an outage."""
        if error.sqlstate.startswith(_NO_RESOURCES) or error.sqlstate == READ_ONLY:
            self.refused(failing, error)
            return
        with self._lock:
            if failing.is_vital:
                self._available_since = None
            is_new = self._unreachable.add(failing, "")
            self._refusing.discard(failing)
        if is_new:
            _log.warning(
                "database unreachable: %s: %s; retrying until it is back",
                failing.service,
                self._reason(error),
            )
        self._on_unreachable()

    def refused(
        self, failing: DatabaseRetry, error: StatementError, until: str = "until it succeeds"
    ) -> None:
        """Record that the database answered a service with an error that retries may outlast."""
        with self._lock:
            if failing.is_vital:
                self._available_since = None
            is_new = self._refusing.add(failing, error.sqlstate)
            self._unreachable.discard(failing)
            self._refusal = f"{failing.service}: {error}"
        if is_new:
            _log.warning("database refuses a statement: %s: %s; retrying %s", failing.service, error, until)

    def reached(self, recovered: DatabaseRetry) -> None:
        """Record that a statement of a service succeeded."""
        self._last_reply = time.monotonic()
        if (
            self._available_since is not None
            and self._unreachable.since is None
            and self._refusing.since is None
        ):
            return
        with self._lock:
            self._available_since = self._available_since or time.monotonic()
            ends = (self._unreachable.discard(recovered), self._refusing.discard(recovered))
        for end in filter(None, ends):
            _log.info(end)

    def _reason(self, error: StatementError) -> str:
        if is_no_reply(error):
            return f"no reply from {self._server} for {self.seconds_since_reply:.1f} s"
        return f"{error} ({self._server})"

    @property
    def seconds_available(self) -> float:
        """Time since the last outage of a vital service; 0 during one."""
        since = self._available_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def seconds_since_reply(self) -> float:
        """Time since any service reached the database. Services send statements at least twice a second."""
        return time.monotonic() - self._last_reply

    @property
    def refusal(self) -> str | None:
        """The statement error that the database answers at present, with the service it affects."""
        return None if self._refusing.since is None else self._refusal


class DatabaseRetry:
    """Retries of one service: exponential backoff, and reports to the shared status."""

    def __init__(
        self,
        service: str,
        database_status: DatabaseStatus | None = None,
        *,
        is_vital: bool = False,
        repair_within: float | None = None,
    ) -> None:
        self.service = service
        self.is_vital = is_vital
        self._database_status = database_status or DatabaseStatus()
        self._tries = 0
        self._repair_within = REPAIR_WITHIN if repair_within is None else repair_within
        self._refused_since: float | None = None

    def pause(self, error: StatementError) -> float:
        """Return the seconds until the next try.

        Raises the error if a retry cannot succeed, or if an administrator has not fixed its cause within
        `repair_within` seconds.
        """
        if is_outage(error):
            self._database_status.unreachable(self, error)
        elif is_repairable(error) and self._may_wait():
            self._database_status.refused(
                self, error, f"for {self._repair_within:.0f} s, then the worker stops"
            )
        elif not is_race(error):
            raise error
        self._tries += 1
        return backoff_seconds(self._tries, base=_FIRST_PAUSE, cap=_LONGEST_PAUSE)

    def _may_wait(self) -> bool:
        now = time.monotonic()
        self._refused_since = self._refused_since or now
        return now - self._refused_since < self._repair_within

    def succeeded(self) -> None:
        """Reset the backoff and report that the database answers."""
        self._tries = 0
        self._refused_since = None
        self._database_status.reached(self)
