"""`Backoff`: how often a step is executed, and the delays between attempts."""

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
    """A retry policy with exponential back-off: the delay is `min(cap, base * factor ** attempt)` plus random jitter.

        @step(retry=Backoff(max_attempts=5, base=timedelta(seconds=10)))

    Calling it returns a delay, so a `handle` of your own can use it: `Retry(policy(ctx.attempt))`.

    Raises:
        OptionError: a value is out of range.
    """

    max_attempts: int = 3
    """Maximum number of executions, the first included."""
    base: timedelta = timedelta(seconds=1)
    """The delay after the first attempt."""
    cap: timedelta = timedelta(minutes=5)
    """The longest delay, before jitter."""
    factor: float = 2.0
    """By how much each delay is longer than the one before, 1 to 100."""
    jitter: float = 0.5
    """Random share of the delay that is added, 0 to 1. It spreads retries that failed at the same time."""

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
        """Return the delay after attempt number `attempt`, counted from 0, with random jitter."""
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
"""The default policy of jobs: 3 executions, delays from 1 s doubling up to 5 min, 50% jitter."""
