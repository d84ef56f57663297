"""Slow down guessing: an address that sends wrong passwords is refused for a while."""

from __future__ import annotations

import time
from typing import Final

from .problems import ProblemError

__all__ = ["Throttle"]

_MOST: Final = 10
_SECONDS: Final = 60.0
# Addresses that are remembered. The oldest is forgotten first.
_MAX_ADDRESSES: Final = 10_000


class Throttle:
    """Counts wrong passwords by address."""

    def __init__(self) -> None:
        # The number of wrong passwords, and the time of the first.
        self._failures: dict[str, tuple[int, float]] = {}

    def check(self, address: str) -> None:
        """Refuse an address that has sent too many wrong passwords within a minute.

        Raises:
            ProblemError: 429.
        """
        count, since = self._failures.get(address, (0, 0.0))
        if count >= _MOST and time.monotonic() - since < _SECONDS:
            raise ProblemError(
                429, "Too many wrong logins", f"{count} from this address.", "Try again in a minute."
            )

    def failed(self, address: str) -> None:
        """Count a wrong password."""
        now = time.monotonic()
        count, since = self._failures.pop(address, (0, now))
        if now - since >= _SECONDS:
            count, since = 0, now
        if len(self._failures) >= _MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = count + 1, since
