"""Where a scheduler takes its work from: a queue, or all that lies under a prefix."""

from __future__ import annotations

from typing import Final, Protocol

from .._db import pick as picks
from .._db.plan import Plan

__all__ = ["FromPrefix", "FromQueue", "Source"]

# How far a pick by prefix looks for rows that nobody else holds. Where there are fewer, looking farther costs nothing.
_MAX_REACH: Final = 1000


class Source(Protocol):
    """Where a scheduler takes its work from."""

    @property
    def name(self) -> str:
        """For the log."""

    @property
    def label(self) -> str:
        """For telemetry, in the place of the queue."""

    def pick(
        self,
        machines: picks.Machines,
        demand: int,
        room: int,
        lease_token: int,
        worker: str,
        leases: picks.Leases,
    ) -> Plan[picks.Picked]:
        """The plan of one pick; `room` of what it brings can begin at once."""

    def known(self, machines: picks.Machines) -> picks.Machines | None:
        """The machines whose rows it takes; `None`: of all."""


class FromQueue:
    """The instances of one queue that belong to machines registered here: others are left to those who know them."""

    def __init__(self, queue: str) -> None:
        self.name = f"queue {queue}"
        self.label = queue
        # Whether rows that are not for us stood at its head when we looked last.
        self._is_crowded = False
        self._reach = Reach()

    def pick(
        self,
        machines: picks.Machines,
        demand: int,
        room: int,
        lease_token: int,
        worker: str,
        leases: picks.Leases,
    ) -> Plan[picks.Picked]:
        """The plan of one pick; `room` of what it brings can begin at once."""
        if self._is_crowded:
            reach = self._reach.of(demand)
            picked = yield from picks.pick_by_machine(
                self.label, machines, demand, reach, lease_token, worker, leases, room
            )
            self._reach.learn(picked, demand)
        else:
            picked = yield from picks.pick(self.label, machines, demand, lease_token, worker, leases, room)
        self._is_crowded = picked.is_crowded
        return picked

    def known(self, machines: picks.Machines) -> picks.Machines | None:
        """The machines whose rows it takes."""
        return machines


class FromPrefix:
    """All instances of machines under one prefix; `leaves_unknown` leaves those that are not registered here."""

    def __init__(self, prefix: str, *, leaves_unknown: bool) -> None:
        self.name = f"prefix {prefix}"
        self.label = prefix
        self._leaves_unknown = leaves_unknown
        self._reach = Reach()

    def pick(
        self,
        machines: picks.Machines,
        demand: int,
        room: int,
        lease_token: int,
        worker: str,
        leases: picks.Leases,
    ) -> Plan[picks.Picked]:
        """The plan of one pick; `room` of what it brings can begin at once."""
        reach = self._reach.of(demand)
        picked = yield from picks.pick_by_prefix(
            self.label, self.known(machines), demand, reach, lease_token, worker, leases, room
        )
        self._reach.learn(picked, demand)
        return picked

    def known(self, machines: picks.Machines) -> picks.Machines | None:
        """The machines whose rows it takes; `None`: of all."""
        return machines if self._leaves_unknown else None


class Reach:
    """How many rows a pick considers; grows while picks come back short, because others may hold the first ones."""

    def __init__(self) -> None:
        self._least = 0
        self._last = 0

    def of(self, demand: int) -> int:
        """For the next pick."""
        self._last = max(2 * demand, self._least)
        return self._last

    def learn(self, picked: picks.Picked, demand: int) -> None:
        """From what the last one brought."""
        is_short = len(picked.executions) + len(picked.denied) < demand
        self._least = min(4 * self._last, _MAX_REACH) if is_short else 0
