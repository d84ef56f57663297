"""Fire times of schedules: of a cron expression in a time zone, or of an interval."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from ._checks import checked_delay, checked_name
from ._dictionary import did_you_mean
from .errors import UsageError

if TYPE_CHECKING:
    from cronsim import CronSim

__all__ = ["Timetable", "checked_cron", "checked_interval", "checked_zone"]

_ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_SHORTEST: Final = timedelta(seconds=1)
_SECOND: Final = timedelta(seconds=1)
_ANY_TIME: Final = datetime(2024, 1, 1, tzinfo=UTC)


class Timetable(msgspec.Struct, frozen=True):
    """The fire times of one schedule, in UTC. They increase strictly, also when local clocks are set back."""

    cron: str | None
    every: timedelta | None
    tz: str
    anchor: datetime
    """Fire times of an interval are whole intervals away from this time."""

    def after(self, moment: datetime) -> datetime | None:
        """Return the first fire time after a moment; `None` if there is none in fifty years."""
        return next(self._forward(moment), None)

    def due(self, first: datetime, now: datetime, most: int) -> tuple[list[datetime], datetime | None]:
        """Return the fire times from `first` until now, at most the latest `most`; and the next fire time."""
        times = [first]
        for time in self._forward(first):
            if time > now:
                return times, time
            if len(times) == most:
                times = self._latest(first, now, most)
                break
            times.append(time)
        return times, self.after(max(now, times[-1]))

    def _latest(self, first: datetime, now: datetime, most: int) -> list[datetime]:
        """Search backwards: a forward search could pass millions of fire times."""
        backward = takewhile(lambda time: time >= first, self._backward(now))
        times = list(islice(backward, most))[::-1] or [first]
        # When the local clock is set back, the backward search may miss times that the forward search finds.
        times += takewhile(lambda time: time <= now, self._forward(times[-1]))
        return times[-most:]

    def _forward(self, moment: datetime) -> Iterator[datetime]:
        if self.every is not None:
            time = self.anchor + ((moment - self.anchor) // self.every + 1) * self.every
            while True:
                yield time
                time += self.every
        last = moment
        for local in _cronsim(self.cron or "", moment.astimezone(_zone(self.tz))):
            time = local.astimezone(UTC)
            # A repeated local time converts to the first of its two moments.
            if time > last:
                yield time
                last = time

    def _backward(self, now: datetime) -> Iterator[datetime]:
        if self.every is not None:
            time = self.anchor + (now - self.anchor) // self.every * self.every
            while True:
                yield time
                time -= self.every
        last = now + _SECOND
        start = (now.replace(microsecond=0) + _SECOND).astimezone(_zone(self.tz))
        for local in _cronsim(self.cron or "", start, reverse=True):
            time = local.astimezone(UTC)
            if time <= now and time < last:
                yield time
                last = time


def checked_cron(value: str, tz: str) -> str:
    """Check a cron expression: five fields, six with leading seconds, or an alias like `@daily`."""
    expression = " ".join(checked_name(value, "cron").split())
    expression = _ALIASES.get(expression, expression)
    if Timetable(expression, None, checked_zone(tz), _ANY_TIME).after(_ANY_TIME) is None:
        raise UsageError(f"cron {value!r} never fires", "use days that exist")
    return expression


def checked_interval(value: object) -> timedelta:
    """Check the length of an interval."""
    every = checked_delay(value, "every")
    if every < _SHORTEST:
        raise UsageError(f"every is {every}", "use at least 1 second")
    return every


def checked_zone(name: str) -> str:
    """Check the name of a time zone."""
    _zone(checked_name(name, "tz"))
    return name


@cache
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        known = available_timezones()
        if not known:
            raise UsageError(
                f"tz is {name!r}, but this host has no time zone database", "pip install 'gen_durable[cron]'"
            ) from None
        raise UsageError(
            f"tz is {name!r}, which is not a time zone{did_you_mean(name, tuple(known))}",
            "use a name like 'Europe/Vienna'",
        ) from None


def _cronsim(expression: str, start: datetime, *, reverse: bool = False) -> CronSim:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise UsageError(
            "cron expressions need the package cronsim, which is not installed",
            "pip install 'gen_durable[cron]'; intervals (every=…) work without it",
        ) from None
    try:
        return CronSim(expression, start, reverse=reverse)
    except CronSimError as error:
        raise UsageError(
            f"cron is {expression!r} ({str(error)[:1].lower()}{str(error)[1:]})",
            "use minute, hour, day of month, month and day of week: '0 3 * * *'",
        ) from None
