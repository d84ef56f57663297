"""`Backoff`: which exceptions are retried, how often, and the delays between attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

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
        @step(retry=Backoff(on=(TimeoutError, ConnectionError), never=CardDeclined))

    Calling it returns a delay, so a `handle` of your own can use it: `Retry(policy(ctx.attempt))`.

    `on` and `never` take an exception class or a tuple of classes, as `except` does. An exception group, for example of
    `asyncio.TaskGroup`, is retried if every exception in it is.

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
    on: type[Exception] | tuple[type[Exception], ...] = Exception
    """Retry only these exceptions; default: all."""
    never: type[Exception] | tuple[type[Exception], ...] = ()
    """Do not retry these exceptions, even if they match `on`."""

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
        _check_classes(self.on, "on")
        _check_classes(self.never, "never")
        if self.on == ():
            raise OptionError("on of this Backoff is empty", "name at least one exception class")

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

    def retries(self, error: BaseException) -> bool:
        """Whether the policy retries this exception, as long as it has attempts left."""
        return not _matches(error, self.never, any) and _matches(error, self.on, all)


def _matches(error: BaseException, classes: Any, quantifier: Callable[[Iterable[bool]], bool]) -> bool:
    if isinstance(error, BaseExceptionGroup) and not isinstance(error, classes):
        return quantifier(_matches(inner, classes, quantifier) for inner in error.exceptions)
    return isinstance(error, classes)


def _check_classes(given: object, name: str) -> None:
    for one in given if isinstance(given, tuple) else (given,):
        if not (isinstance(one, type) and issubclass(one, Exception)):
            raise OptionError(
                f"{name} of this Backoff contains {one!r}, which is not an exception class",
                "give a subclass of Exception, or a tuple of them",
            )


backoff: Final = Backoff()
"""The default policy of jobs: 3 executions, delays from 1 s doubling up to 5 min, 50% jitter."""
