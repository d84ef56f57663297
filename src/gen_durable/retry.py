"""How often a step is tried, and how long it waits in between."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec

from ._backoff import backoff_seconds
from ._checks import checked_duration
from .errors import OptionError

__all__ = ["Backoff", "backoff"]

# The powers of a larger factor overflow a float before `backoff_seconds` stops growing.
_MAX_FACTOR: Final = 100
_MAX_CAP: Final = timedelta(days=365)


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Exponential back-off: `min(cap, base * factor ** attempt)`, and up to `jitter` of that on top."""

    max_attempts: int = 3
    """Executions in all, the first one included."""
    base: timedelta = timedelta(seconds=1)
    """The wait after the first attempt."""
    cap: timedelta = timedelta(minutes=5)
    """No wait is longer, jitter aside."""
    factor: float = 2.0
    # Half of the delay tears a herd apart, and whoever reads the log still recognizes the policy.
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise OptionError(
                f"max_attempts of this Backoff is {self.max_attempts!r}", "give a whole number, 1 or more"
            )
        durations: dict[str, object] = {"base": self.base, "cap": self.cap}
        for name, value in durations.items():
            what = f"{name} of this Backoff"
            if not timedelta(0) <= checked_duration(value, what, OptionError) <= _MAX_CAP:
                raise OptionError(f"{what} is {value!r}", "give a timedelta of 0 to 365 days")
        if not 1 <= self.factor <= _MAX_FACTOR:
            raise OptionError(f"factor of this Backoff is {self.factor!r}", f"give 1 to {_MAX_FACTOR}")
        if not 0 <= self.jitter <= 1:
            raise OptionError(f"jitter of this Backoff is {self.jitter!r}", "give 0 to 1")

    def __call__(self, attempt: int) -> timedelta:
        """Choose how long to wait after attempt number `attempt`, counted from 0."""
        return timedelta(
            seconds=backoff_seconds(
                attempt,
                base=self.base.total_seconds(),
                cap=self.cap.total_seconds(),
                factor=self.factor,
                jitter=(1, 1 + self.jitter),
            )
        )


backoff: Final = Backoff()
"""The policy for those who do not care: 1 s, doubling up to 5 min, jitter up to half."""
