"""`ConcurrencyLimit` and `RateLimit`: limits across all workers, stored in the database.

A key is a name, `"crm"`, or a name and a partition, `("crm", tenant)`. The limit of a name applies to each of its keys
separately.
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
# The concurrency slot of a row is a smallint.
_MAX_SLOTS: Final = 2**15 - 1
_MIN_PERIOD: Final = timedelta(milliseconds=1)
_MAX_PERIOD: Final = timedelta(days=3650)
_MAX_FILL_TIME: Final = timedelta(days=36500)


class ConcurrencyLimit(msgspec.Struct, frozen=True):
    """At most `slots` executions at a time of each concurrency key with this name, across all workers.

        Worker([Import], limits=[ConcurrencyLimit("tenant", 3)])
        await client.insert(Import, state, concurrency_key=("tenant", 7))

    A concurrency key without a limit has one slot.
    """

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
    """At most `allowed` starts per period of each key with this name, across all workers: a token bucket.

        Worker([Sync], limits=[RateLimit("crm", 100, per=timedelta(minutes=1))])
        await client.insert(Sync, state, rate_limit=("crm", tenant))

    Within any time t at most `burst + allowed * t / per` tokens are taken. A start takes `weight=` tokens, by default
    1.
    """

    name: str
    allowed: int
    """Tokens per period."""
    per: timedelta = timedelta(seconds=1)
    """The period, 1 ms to 3650 days."""
    burst: int = 0
    """The size of the bucket: tokens available after a pause; default: `allowed`."""

    def __post_init__(self) -> None:
        limit_name(self.name)
        checked_int(self.allowed, f"allowed of limit '{self.name}'", 1, _MAX)
        per: object = self.per
        if not isinstance(per, timedelta) or not _MIN_PERIOD <= per <= _MAX_PERIOD:
            raise UsageError(
                f"the period of limit '{self.name}' is {self.per!r}", "give a timedelta of 1 ms to 3650 days"
            )
        if self.burst == 0:
            msgspec.structs.force_setattr(self, "burst", self.allowed)
        checked_int(self.burst, f"the burst of limit '{self.name}'", 1, _MAX)
        if self.burst * self.per.total_seconds() > self.allowed * _MAX_FILL_TIME.total_seconds():
            raise UsageError(
                f"a bucket of limit '{self.name}' takes more than 100 years to fill to its burst of {self.burst}",
                "lower burst, or raise allowed",
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
    """Check the name of a limit. The limit of a key is the part before its first colon, so a name has none."""
    if ":" in (checked := checked_name(name, "the name of a limit")):
        raise UsageError(
            "the name of a limit contains ':', which separates name and partition in a key",
            "use another name",
        )
    return checked


def checked_limits(given: object) -> tuple[Limit, ...]:
    """Check the `limits=` of a worker: one of each kind and name."""
    limits = tuple(given) if isinstance(given, list | tuple) else (given,)
    for limit in limits:
        if not isinstance(limit, ConcurrencyLimit | RateLimit):
            raise UsageError(
                f"a limit is of type {type(limit).__name__}", "give a list of RateLimit and ConcurrencyLimit"
            )
    if len({(limit.kind, limit.name) for limit in limits}) < len(limits):
        raise UsageError("two limits have the same kind and name", "remove one of them")
    return limits


def parse_limit(text: str) -> Limit:
    """Read `tenant=3` (slots), `crm=100/1m` (allowed per period) or `crm=100/1m/200` (with its burst).

    Raises:
        ValueError: the text has another form.
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
    raise ValueError(f"{text!r} is not a limit; write for example tenant=3, crm=100/1m or crm=100/1m/200")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise ValueError
    return int(text)


def _unit(text: str) -> str:
    """Return a duration for a bare unit: `1m` for `m`."""
    return text if text[:1].isdigit() else f"1{text}"
