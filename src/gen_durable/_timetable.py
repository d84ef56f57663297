"""When recurring work is due: the slots of a cron expression in a time zone, or of an interval."""

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
_SOME_MOMENT: Final = datetime(2024, 1, 1, tzinfo=UTC)


class Timetable(msgspec.Struct, frozen=True):
    """The slots of one schedule, as moments in UTC. Each is later than the one before, whatever local clocks do."""

    cron: str | None
    every: timedelta | None
    tz: str
    anchor: datetime
    """Slots of an interval lie whole intervals from here."""

    def after(self, moment: datetime) -> datetime | None:
        """The first slot after a moment; `None` if there is none in fifty years."""
        return next(self._forward(moment), None)

    def due(self, first: datetime, now: datetime, most: int) -> tuple[list[datetime], datetime | None]:
        """The slots from `first`, which is one, until now, but of many the latest `most` only; and the next one."""
        slots = [first]
        for slot in self._forward(first):
            if slot > now:
                return slots, slot
            if len(slots) == most:
                slots = self._latest(first, now, most)
                break
            slots.append(slot)
        return slots, self.after(max(now, slots[-1]))

    def _latest(self, first: datetime, now: datetime, most: int) -> list[datetime]:
        """Found from the end: nobody wants to walk through all the seconds of a month."""
        backward = takewhile(lambda slot: slot >= first, self._backward(now))
        slots = list(islice(backward, most))[::-1] or [first]
        # On a night when the clock is set back, the way back may miss what the way forward finds.
        slots += takewhile(lambda slot: slot <= now, self._forward(slots[-1]))
        return slots[-most:]

    def _forward(self, moment: datetime) -> Iterator[datetime]:
        if self.every is not None:
            slot = self.anchor + ((moment - self.anchor) // self.every + 1) * self.every
            while True:
                yield slot
                slot += self.every
        last = moment
        for local in _cronsim(self.cron or "", moment.astimezone(_zone(self.tz))):
            slot = local.astimezone(UTC)
            # Local times that come twice lead back to the first of the two.
            if slot > last:
                yield slot
                last = slot

    def _backward(self, now: datetime) -> Iterator[datetime]:
        if self.every is not None:
            slot = self.anchor + (now - self.anchor) // self.every * self.every
            while True:
                yield slot
                slot -= self.every
        last = now + _SECOND
        start = (now.replace(microsecond=0) + _SECOND).astimezone(_zone(self.tz))
        for local in _cronsim(self.cron or "", start, reverse=True):
            slot = local.astimezone(UTC)
            if slot <= now and slot < last:
                yield slot
                last = slot


def checked_cron(value: str, tz: str) -> str:
    """Check a cron expression: five fields, six with seconds before them, or a word like `@daily`."""
    expression = " ".join(checked_name(value, "cron").split())
    expression = _ALIASES.get(expression, expression)
    if Timetable(expression, None, checked_zone(tz), _SOME_MOMENT).after(_SOME_MOMENT) is None:
        raise UsageError(f"cron {value!r} never comes", "give days that exist")
    return expression


def checked_interval(value: object) -> timedelta:
    """Check the length of an interval."""
    every = checked_delay(value, "every")
    if every < _SHORTEST:
        raise UsageError(f"every is {every}", "give a second or more")
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
                f"tz is {name!r}, and this host knows no time zones", "pip install 'gen_durable[cron]'"
            ) from None
        raise UsageError(
            f"tz is {name!r}, which is no time zone{did_you_mean(name, tuple(known))}",
            "give a name like 'Europe/Vienna'",
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
            "give minute, hour, day of month, month and day of week: '0 3 * * *'",
        ) from None
