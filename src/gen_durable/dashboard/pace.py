"""How often a figure is read: less often while reads are slow, so that the dashboard does not slow a busy database."""

from __future__ import annotations

from typing import Final

__all__ = ["Pace", "pause_after"]

# Reads of one figure may take this part of the time.
_MAX_LOAD: Final = 0.005
# Seconds. After a longer pause, pages would show old figures.
_MAX_PAUSE: Final = 5.0


def pause_after(took: float, every: float) -> float:
    """Return the seconds from a read that took `took` seconds to the next one: at least `every`."""
    return max(every, min(took / _MAX_LOAD, _MAX_PAUSE))


class Pace:
    """The pauses of a figure that is polled."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._previous = 0.0

    def next(self, took: float) -> float:
        """Return the seconds until the next read. A single slow read does not count: it may have waited for a lock."""
        previous, self._previous = self._previous, took
        return pause_after(min(took, previous), self._every)
