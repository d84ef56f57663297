"""When a schedule fires, in words."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

__all__ = ["in_words"]

_DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_UNITS: Final = ((timedelta(days=1), "day"), (timedelta(hours=1), "hour"), (timedelta(minutes=1), "minute"))
_NUMBER: Final = re.compile(r"[0-9]{1,2}")
_STEP: Final = re.compile(r"(?:\*|0)/([0-9]{1,2})")


def in_words(cron: str | None, every: timedelta | None) -> str:
    """Describe the fire times of a schedule. A cron expression without a short description stays as it is."""
    if every is not None:
        return _interval(every)
    assert cron is not None  # noqa: S101 - a schedule has one of them
    fields = cron.split()
    return (_cron(fields) if len(fields) == 5 else None) or cron


def _interval(every: timedelta) -> str:
    for unit, word in _UNITS:
        if every >= unit and not every % unit:
            return _each(every // unit, word)
    return _each(every.total_seconds(), "second")


def _each(count: float, word: str) -> str:
    return f"every {word}" if count == 1 else f"every {count:g} {word}s"


def _cron(fields: list[str]) -> str | None:
    minute, hour, day, month, weekday = fields
    if (day, month, weekday) == ("*", "*", "*") and (often := _often(minute, hour)) is not None:
        return often
    times = [_numbers(minute, 59), _numbers(hour, 23)]
    if None in times or not times[0] or not times[1]:
        return None
    at = _and([f"{h:02}:{m:02}" for h in times[1] for m in times[0]])
    if (day, month) == ("*", "*"):
        return f"daily at {at}" if weekday == "*" else _weekly(weekday, at)
    days = _numbers(day, 31)
    if weekday != "*" or not days:
        return None
    if month == "*":
        return f"monthly on day {_and([str(one) for one in days])} at {at}"
    months = _numbers(month, 12)
    if not months or len(days) > 1:
        return None
    return f"yearly on {_and([f'{days[0]} {_MONTHS[one - 1]}' for one in months if one])} at {at}"


def _often(minute: str, hour: str) -> str | None:
    """Several times a day, at a distance."""
    if hour == "*" and (minute == "*" or (step := _STEP.fullmatch(minute))):
        return _each(1 if minute == "*" else int(step[1]), "minute")  # type: ignore[index]  # matched
    past = _numbers(minute, 59)
    step = _STEP.fullmatch(hour)
    if not past or len(past) > 1 or not (hour == "*" or step):
        return None
    return _each(int(step[1]) if step else 1, "hour") + (f", {past[0]} m past" if past[0] else "")


def _weekly(weekday: str, at: str) -> str | None:
    parts = weekday.upper().split("-")
    names = [_day(one) for one in (parts if len(parts) > 1 else weekday.upper().split(","))]
    found = [one for one in names if one]
    if len(found) < len(names):
        return None
    if len(parts) > 1:
        return f"{' to '.join(found)} at {at}"
    return f"{_and([f'{one}s' for one in found])} at {at}"


def _day(text: str) -> str | None:
    if _NUMBER.fullmatch(text):
        return _DAYS[int(text) % 7] if int(text) <= 7 else None
    return next((name for name in _DAYS if name[:3].upper() == text), None)


def _numbers(text: str, most: int) -> list[int] | None:
    parts = text.split(",")
    if len(parts) > 4 or not all(_NUMBER.fullmatch(one) and int(one) <= most for one in parts):
        return None
    return [int(one) for one in parts]


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
