"""Checks of names, keys, numbers, durations and times: the bounds of what the database stores.

Each function `checked_…` returns the normalized value or raises: `OptionError` for definitions of machines,
`UsageError` for calls.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from .errors import OptionError, UsageError

__all__ = [
    "MAX_AWAITED",
    "MAX_DELAY",
    "MAX_KEY_BYTES",
    "MAX_NAME_BYTES",
    "checked_delay",
    "checked_duration",
    "checked_id",
    "checked_int",
    "checked_key",
    "checked_moment",
    "checked_name",
    "checked_number",
    "checked_traceparent",
    "duration_text",
    "timedelta_of",
]

MAX_NAME_BYTES: Final = 255
# About a third of the maximum size of a B-tree entry (2,704 bytes), so a key fits next to other columns.
MAX_KEY_BYTES: Final = 1024
MAX_AWAITED: Final = 64
# now() plus this is far below the maximum timestamptz, so no delay makes a commit fail.
MAX_DELAY: Final = timedelta(days=36525)
# asyncpg stores Python's first and last datetime as infinity and returns them without a time zone. One day of distance
# keeps a time within the calendar in every time zone.
_FIRST_MOMENT: Final = datetime(1, 1, 2, tzinfo=UTC)
_LAST_MOMENT: Final = datetime(9999, 12, 30, tzinfo=UTC)

# W3C trace context: version, trace, span, flags.
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

# Of an integer in a message: 128 bits have 39 digits. Python refuses to print more than 4300 digits.
_MAX_BITS_SHOWN: Final = 128

_Raises: TypeAlias = type[UsageError] | type[OptionError]


def checked_name(value: object, what: str, error: _Raises = UsageError) -> str:
    """Check the name of a machine, step, queue or signal: 1 to 255 bytes of text."""
    return _text(value, what, MAX_NAME_BYTES, error)


def checked_key(value: object, what: str) -> str:
    """Check a key: 1 to 1024 bytes of text."""
    return _text(value, what, MAX_KEY_BYTES, UsageError)


def checked_int(value: object, what: str, least: int, most: int, error: _Raises = UsageError) -> int:
    """Check a whole number and its range; bool is refused."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise error(f"{what} is of type {type(value).__name__}", "give a whole number")
    if not least <= value <= most:
        raise error(f"{what} is {_short(value)}", f"give a number from {least} to {most}")
    return value


def checked_number(value: object, what: str) -> int | float:
    """Check a number: at least 0 and below 2^63, whole or not; bool is refused."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{what} is of type {type(value).__name__}", "give a number")
    if not 0 <= value < 2**63:
        raise UsageError(f"{what} is {_short(value)}", "give a number of at least 0 and below 2^63")
    return value


def _short(value: int | float) -> str:
    """Format a number; of an integer with many digits, only the power of ten."""
    if isinstance(value, float) or value.bit_length() <= _MAX_BITS_SHOWN:
        return str(value)
    return f"about {'-' if value < 0 else ''}10^{math.log10(abs(value)):.0f}"


def checked_id(value: int) -> int:
    """Check the id of an instance."""
    return checked_int(value, "the id", 1, 2**63 - 1)


def checked_delay(value: object, what: str) -> timedelta:
    """Check a duration: not negative, at most 100 years."""
    duration = checked_duration(value, what)
    if duration < timedelta(0):
        raise UsageError(f"{what} is negative ({duration_text(duration)})", "give zero or more")
    if duration > MAX_DELAY:
        raise UsageError(f"{what} is longer than 100 years ({duration_text(duration)})", "give less")
    return duration


def checked_duration(value: object, what: str, error: _Raises = UsageError) -> timedelta:
    """Check that a value is a timedelta."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise error(f"{what} is a number without a unit, got {value}", timedelta_of(value))
    raise error(f"{what} is of type {type(value).__name__}", timedelta_of("…"))


def timedelta_of(number: object) -> str:
    """Return advice for a number given as a duration; its unit is unknown."""
    return f"use timedelta(seconds={number}) or timedelta(milliseconds={number})"


def checked_moment(value: object, what: str) -> datetime:
    """Check a time and convert it to UTC. A time without a time zone would differ between hosts."""
    if not isinstance(value, datetime):
        raise UsageError(f"{what} is of type {type(value).__name__}", "write datetime(…, tzinfo=UTC)")
    if value.utcoffset() is None:
        raise UsageError(f"{what} has no time zone ({value})", "write datetime(…, tzinfo=UTC)")
    try:
        moment = value.astimezone(UTC)
    except OverflowError:
        moment = datetime.max.replace(tzinfo=UTC)
    if not _FIRST_MOMENT <= moment <= _LAST_MOMENT:
        raise UsageError(f"{what} is out of range ({value})", "give a time from year 1 to 9999")
    return moment


def checked_traceparent(value: object) -> str:
    """Check a W3C trace context."""
    if not isinstance(value, str) or not _TRACEPARENT.fullmatch(value):
        raise UsageError(f"traceparent is {value!r}", "give 00-<32 hex digits>-<16>-<2>, or leave it out")
    return value


def duration_text(duration: timedelta) -> str:
    """Return a duration as text: `66ms`, `10s`, `1m30s`. Fractions of a millisecond show only in shorter durations."""
    length, millisecond = abs(duration), timedelta(milliseconds=1)
    sign = "-" if duration < timedelta(0) else ""
    if length < millisecond:
        return f"{sign}{length / millisecond:g}ms" if length else "0s"
    rest = round(length / millisecond)
    if rest < 1000:
        return f"{sign}{rest}ms"
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    if rest:
        parts.append(f"{rest / 1000:g}s")
    return sign + "".join(parts)


def _text(value: object, what: str, most: int, error: _Raises) -> str:
    if not isinstance(value, str):
        raise error(f"{what} is of type {type(value).__name__}", "give a str")
    if not value:
        raise error(f"{what} is empty", f"give 1 to {most} bytes")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise error(f"{what} contains a lone surrogate", "give valid Unicode text") from None
    if size > most:
        raise error(f"{what} is {size} bytes long", f"give at most {most} bytes")
    if "\0" in value:
        raise error(f"{what} contains a NUL character", "remove it: PostgreSQL cannot store it")
    return value
