"""The database's clock, estimated without a statement."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["DatabaseClock"]


class DatabaseClock:
    """Converts this process's monotonic time to the database's time.

    A statement reads the database's clock between its request and its reply, which bounds the offset between the two
    clocks. The estimate moves only as far as the latest bounds require. So a slow statement does not degrade it, it
    follows a clock that drifts or is set, and its error is at most the round trip of the latest statement.
    """

    def __init__(self) -> None:
        # Seconds from monotonic to database time. Written on the event loop, read by the heartbeat's thread as well.
        self._offset: float | None = None

    def observe(self, moment: datetime, sent: float, answered: float) -> None:
        """Record the database time that a statement has read, with its monotonic times of request and reply."""
        seconds = moment.timestamp()
        least, most = seconds - answered, seconds - sent
        self._offset = least if self._offset is None else min(max(self._offset, least), most)

    def seconds_at(self, monotonic: float) -> float | None:
        """Convert a monotonic time to seconds since 1970; `None` before the first `observe`."""
        return None if self._offset is None else monotonic + self._offset

    def at(self, monotonic: float, not_before: datetime | None = None) -> datetime | None:
        """Convert a monotonic time, to `not_before` at the earliest; `None` before the first `observe`."""
        seconds = self.seconds_at(monotonic)
        if seconds is None:
            return None
        found = datetime.fromtimestamp(seconds, UTC)
        return found if not_before is None else max(found, not_before)
