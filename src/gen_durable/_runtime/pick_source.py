"""Where a picker takes its work from: a queue, or all machines under a prefix."""

from __future__ import annotations

from typing import Final, Protocol

from .._db import pick as picks
from .._db.plan import Plan

__all__ = ["FromPrefix", "FromQueue", "Source"]

# The most rows that a pick considers, to find rows that no other transaction has locked.
_MAX_REACH: Final = 1000


class Source(Protocol):
    """Where a picker takes its work from."""

    @property
    def name(self) -> str:
        """The name for log lines."""

    @property
    def label(self) -> str:
        """The queue or prefix, for telemetry."""

    def pick(self, request: picks.PickRequest) -> Plan[picks.Picked]:
        """Lease rows."""

    def known(self, machines: picks.Machines) -> picks.Machines | None:
        """Return the machines whose rows it leases; `None`: all."""


class FromQueue:
    """Instances of one queue whose machines are registered here."""

    def __init__(self, queue: str) -> None:
        self.name = f"queue {queue}"
        self.label = queue
        # Whether the last pick found rows of unregistered machines at the head of the queue.
        self._has_foreign_head = False
        # Whether it found rows with a concurrency key or a rate limit.
        self._needs_admission = False
        self._reach = Reach()

    def pick(self, request: picks.PickRequest) -> Plan[picks.Picked]:
        """Lease rows."""
        if self._has_foreign_head:
            picked = yield from picks.pick_by_machine(self.label, request, self._reach.of(request.demand))
            self._reach.learn(picked, request.demand)
        elif self._needs_admission:
            picked = yield from picks.pick_with_admission(self.label, request)
        else:
            picked = yield from picks.pick(self.label, request)
        self._has_foreign_head = picked.has_foreign_head
        self._needs_admission = picked.needs_admission or bool(request.passed)
        return picked

    def known(self, machines: picks.Machines) -> picks.Machines | None:
        """Return the machines whose rows it leases."""
        return machines


class FromPrefix:
    """Instances of all machines under one prefix; with `leaves_unknown`, only of those registered here."""

    def __init__(self, prefix: str, *, leaves_unknown: bool) -> None:
        self.name = f"prefix {prefix}"
        self.label = prefix
        self._leaves_unknown = leaves_unknown
        self._reach = Reach()

    def pick(self, request: picks.PickRequest) -> Plan[picks.Picked]:
        """Lease rows."""
        picked = yield from picks.pick_by_prefix(self.label, request, self._reach.of(request.demand))
        self._reach.learn(picked, request.demand)
        return picked

    def known(self, machines: picks.Machines) -> picks.Machines | None:
        """Return the machines whose rows it leases; `None`: all."""
        return machines if self._leaves_unknown else None


class Reach:
    """How many rows a pick considers. Grows while picks return too few: others may have locked the first rows."""

    def __init__(self) -> None:
        self._least = 0
        self._last = 0

    def of(self, demand: int) -> int:
        """Return the reach of the next pick."""
        self._last = max(2 * demand, self._least)
        return self._last

    def learn(self, picked: picks.Picked, demand: int) -> None:
        """Adapt to what the last pick returned."""
        is_short = len(picked.executions) + len(picked.denied) < demand
        self._least = min(4 * self._last, _MAX_REACH) if is_short else 0
