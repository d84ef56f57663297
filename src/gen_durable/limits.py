"""Limits, as they are stored: how many executions of a key at once, and how many starts in a time.

A key or bucket is a name, `"crm"`, or a name and a part of it, `("crm", tenant)`: the limit of the name counts for
every part by itself.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Literal, TypeAlias

import msgspec

from ._checks import checked_int, checked_name
from .config import parse_duration
from .errors import UsageError

__all__ = [
    "ConcurrencyLimit",
    "Limit",
    "LimitKind",
    "RateLimit",
    "checked_limits",
    "limit_name",
    "parse_limit",
]

LimitKind: TypeAlias = Literal["concurrency", "rate"]

_MAX: Final = 2**31 - 1
# Slots are a smallint in the index that makes them unique.
_MAX_SLOTS: Final = 2**15 - 1
_MIN_PERIOD: Final = timedelta(milliseconds=1)
_MAX_PERIOD: Final = timedelta(days=3650)
_LONGEST_FILL: Final = timedelta(days=36500)


class ConcurrencyLimit(msgspec.Struct, frozen=True):
    """At most `slots` executions at once of each key with this name, over all workers. Without a limit: one."""

    name: str
    slots: int

    def __post_init__(self) -> None:
        limit_name(self.name)
        checked_int(self.slots, f"the slots of limit '{self.name}'", 1, _MAX_SLOTS)

    @property
    def kind(self) -> LimitKind:
        """`concurrency`."""
        return "concurrency"

    def __str__(self) -> str:
        return f"{self.name}={self.slots}"


class RateLimit(msgspec.Struct, frozen=True):
    """In any time t, at most `burst + allowed · t / per` starts of each bucket with this name, over all workers.

    A start that has a weight counts as so many.
    """

    name: str
    allowed: int
    per: timedelta = timedelta(seconds=1)
    burst: int = 0
    """How many at one moment, when nothing has started for long; left out, as many as are allowed per period."""

    def __post_init__(self) -> None:
        limit_name(self.name)
        checked_int(self.allowed, f"what limit '{self.name}' allows", 1, _MAX)
        per: object = self.per
        if not isinstance(per, timedelta) or not _MIN_PERIOD <= per <= _MAX_PERIOD:
            raise UsageError(
                f"the period of limit '{self.name}' is {self.per!r}", "give a timedelta of 1 ms to 3650 days"
            )
        if self.burst == 0:
            msgspec.structs.force_setattr(self, "burst", self.allowed)
        checked_int(self.burst, f"the burst of limit '{self.name}'", 1, _MAX)
        if self.burst * self.per.total_seconds() > self.allowed * _LONGEST_FILL.total_seconds():
            raise UsageError(
                f"a bucket of limit '{self.name}' takes more than a century until it holds its burst of {self.burst}",
                "lower the burst, or allow more per period",
            )

    @property
    def kind(self) -> LimitKind:
        """`rate`."""
        return "rate"

    def __str__(self) -> str:
        seconds = f"{self.per.total_seconds():f}".rstrip("0").rstrip(".")
        burst = "" if self.burst == self.allowed else f"/{self.burst}"
        return f"{self.name}={self.allowed}/{seconds}s{burst}"


Limit: TypeAlias = ConcurrencyLimit | RateLimit


def limit_name(name: object) -> str:
    """The name of a limit. A key goes by what is before its first colon, so there is none in a name."""
    if ":" in (checked := checked_name(name, "the name of a limit")):
        raise UsageError(
            "the name of a limit holds a ':'", "it separates name and part in a key; take another"
        )
    return checked


def checked_limits(given: object) -> tuple[Limit, ...]:
    """The limits that a worker brings along; one of each kind and name."""
    limits = tuple(given) if isinstance(given, list | tuple) else (given,)
    for limit in limits:
        if not isinstance(limit, ConcurrencyLimit | RateLimit):
            raise UsageError(
                f"a limit is of type {type(limit).__name__}", "give a list of RateLimit and ConcurrencyLimit"
            )
    if len({(limit.kind, limit.name) for limit in limits}) < len(limits):
        raise UsageError("two limits have the same kind and name", "give each of them once")
    return limits


def parse_limit(text: str) -> Limit:
    """Read `tenant=3` (slots), `crm=100/1m` (allowed per period) or `crm=100/1m/200` (with its burst).

    Raises:
        ValueError: it is not written like that.
    """
    name, _, value = text.partition("=")
    amount, *rest = value.split("/")
    try:
        if name and not rest:
            return ConcurrencyLimit(name, _count(amount))
        if name and len(rest) <= 2:
            return RateLimit(
                name, _count(amount), parse_duration(_unit(rest[0])), _count(rest[1]) if rest[1:] else 0
            )
    except ValueError:
        pass
    raise ValueError(f"{text!r} is no limit; write for example tenant=3, crm=100/1m or crm=100/1m/200")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise ValueError
    return int(text)


def _unit(text: str) -> str:
    """`m` for `1m`."""
    return text if text[:1].isdigit() else f"1{text}"
