"""Poll with pauses: short at first, longer while nothing changes, never past the deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

from ._checks import checked_delay

__all__ = ["Pace", "poll"]

T = TypeVar("T")

_SHORTEST: Final = 0.01
_LONGEST: Final = 0.25
_GROWTH: Final = 1.5


class Pace:
    """Pauses between two polls, and an optional deadline."""

    def __init__(self, timeout: timedelta | None = None) -> None:
        self._deadline = (
            None if timeout is None else time.monotonic() + checked_delay(timeout, "timeout").total_seconds()
        )
        self._next = _SHORTEST

    def reset(self) -> None:
        """Start again with the shortest pause."""
        self._next = _SHORTEST

    def pause(self) -> float | None:
        """Return the seconds until the next poll; `None` once the deadline has passed."""
        pause, self._next = self._next, min(_LONGEST, self._next * _GROWTH)
        if self._deadline is None:
            return pause
        left = self._deadline - time.monotonic()
        return min(pause, left) if left > 0 else None


async def poll(ask: Callable[[], Awaitable[tuple[T, float | None]]]) -> T:
    """Call `ask` until it returns no pause; return its last value."""
    value, pause = await ask()
    while pause is not None:
        await asyncio.sleep(pause)
        value, pause = await ask()
    return value
