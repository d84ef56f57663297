"""The database's clock, read without asking the database."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["DatabaseClock"]


class DatabaseClock:
    """Converts times of this process's monotonic clock to times of the database's.

    A statement reads the database's clock after it was sent and before it was answered, which bounds the offset between
    the two clocks. The estimate moves only as far as the latest bounds require. So a slow statement does not spoil it,
    a clock that drifts or is set is followed, and the error is at most the round trip of the latest statement.
    """

    def __init__(self) -> None:
        # Seconds from monotonic to database time. Written on the event loop, read by the heartbeat's thread as well.
        self._offset: float | None = None

    def observe(self, moment: datetime, sent: float, answered: float) -> None:
        """Take in that a statement, sent and answered at these monotonic times, found this time in the database."""
        seconds = moment.timestamp()
        least, most = seconds - answered, seconds - sent
        self._offset = least if self._offset is None else min(max(self._offset, least), most)

    def at(self, monotonic: float, not_before: datetime | None = None) -> datetime | None:
        """The database's time at this monotonic time. `None`: no statement has been observed yet."""
        if self._offset is None:
            return None
        found = datetime.fromtimestamp(monotonic + self._offset, UTC)
        return found if not_before is None else max(found, not_before)
