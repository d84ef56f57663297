"""Slow down guessing: wrong passwords and tokens are refused for a while, by address and user."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, TypeAlias

from .problems import ProblemError

__all__ = ["Throttle"]

_Key: TypeAlias = tuple[str | None, str | None]

_SECONDS: Final = 60.0
# Wrong logins in that time: of one user from one address; from one address, which may be a proxy; of one user.
_MOST: Final = 10
_MOST_OF_ADDRESS: Final = 100
_MOST_OF_USER: Final = 100
# Counters that are remembered. The oldest is forgotten first.
_MAX_COUNTERS: Final = 10_000
_MAX_NAME: Final = 255


class Throttle:
    """Counts wrong logins. Bearer tokens have no user: they are counted by address, apart from passwords."""

    def __init__(self) -> None:
        # The number of wrong logins, and the time of the first.
        self._failures: dict[_Key, tuple[int, float]] = {}

    def check(self, address: str, name: str = "") -> None:
        """Refuse a login after too many wrong ones within a minute. `name`: empty for a token.

        Raises:
            ProblemError: 429.
        """
        if (count := self._excess(address, name)) is not None:
            raise ProblemError(
                429, "Too many wrong logins", f"{count} within a minute.", "Try again in a minute."
            )

    def is_blocked(self, address: str, name: str = "") -> bool:
        """Whether `check` would refuse."""
        return self._excess(address, name) is not None

    def failed(self, address: str, name: str = "") -> None:
        """Count a wrong login."""
        now = time.monotonic()
        for key, _ in _keys(address, name):
            count, since = self._failures.pop(key, (0, now))
            if now - since >= _SECONDS:
                count, since = 0, now
            if len(self._failures) >= _MAX_COUNTERS:
                del self._failures[next(iter(self._failures))]
            self._failures[key] = count + 1, since

    def _excess(self, address: str, name: str) -> int | None:
        now = time.monotonic()
        for key, most in _keys(address, name):
            count, since = self._failures.get(key, (0, 0.0))
            if count >= most and now - since < _SECONDS:
                return count
        return None


def _keys(address: str, name: str) -> Iterator[tuple[_Key, int]]:
    user = name[:_MAX_NAME]
    yield (address, user), _MOST
    if user:
        yield (address, None), _MOST_OF_ADDRESS
        yield (None, user), _MOST_OF_USER
