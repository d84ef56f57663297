"""Poll until instances have ended or parked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar, get_args

from .._db import snapshots
from .._db.plan import Plan
from .._polling import Pace
from ..errors import NoTargetError, UsageError
from ..instance import Instance, Until
from ..refs import Target
from .common import definition_of_target, read, resolve

__all__ = ["Poll", "Wait", "checked_until", "current"]

T_co = TypeVar("T_co", covariant=True)


class Poll(Protocol[T_co]):
    """A condition to poll."""

    def plan(self) -> Plan[tuple[T_co, float | None]]:
        """Poll once. Returns the value, and the seconds until the next poll; `None` ends the polling."""
        ...


def checked_until(until: object) -> bool:
    """Return whether a parked instance ends the wait."""
    if until not in get_args(Until):
        raise UsageError(f"until is {until!r}", "give 'finished' or 'parked'")
    return until == "parked"


def current(target: Target, id: int) -> Plan[Instance[Any, Any]]:
    """Read an instance after a wait for it has timed out."""
    row = yield from snapshots.get(id)
    if row is None:
        raise NoTargetError(id, "wait")
    return read(row, definition_of_target(target))


class Wait:
    """Polls instances until each has ended or, with `until="parked"`, is parked. For clients without an event loop."""

    def __init__(self, targets: Sequence[Target], until: Until, timeout: timedelta | None) -> None:
        self._pace = Pace(timeout)
        self._targets = targets
        self._until_parked = checked_until(until)
        self._ids: list[int] | None = None
        self._open: dict[int, bool] = {}
        self._found: dict[int, Mapping[str, Any]] = {}

    def plan(self) -> Plan[tuple[list[Instance[Any, Any]], float | None]]:
        """Poll once. Returns the instances, and the seconds until the next poll; `None`: the wait is over.

        Raises:
            NoTargetError: one of the instances does not exist.
        """
        if self._ids is None:
            self._ids = []
            for target in self._targets:
                self._ids.append((yield from resolve(target, "wait")))
            self._open = dict.fromkeys(self._ids, self._until_parked)
        if self._open:
            for id, row in (yield from snapshots.finished_or_parked(self._open)).items():
                if row is None:
                    raise NoTargetError(id, "wait")
                self._found[id] = row
                del self._open[id]
        if self._open and (pause := self._pace.pause()) is not None:
            return [], pause
        instances: list[Instance[Any, Any]] = []
        for target, id in zip(self._targets, self._ids, strict=True):
            row = self._found.get(id)
            definition = definition_of_target(target)
            instances.append((yield from current(target, id)) if row is None else read(row, definition))
        return instances, None
