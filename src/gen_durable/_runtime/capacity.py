"""Capacity: how many steps of one queue run at once in this worker.

An execution holds capacity while its step runs, but not during its commit: another step runs meanwhile. Queues that
share a budget get it by weighted fair queueing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["Budget", "Capacity", "SharedCapacity"]


class Capacity:
    """A semaphore of `limit` steps with a FIFO of waiters. It does not block: a waiter gets its capacity by a call."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.on_offer: Callable[[], None] = lambda: None
        """Called when shared capacity is free and no execution waits for it: time to pick."""
        self.on_granted: Callable[[Any], None] = lambda waiter: None
        """Called with a waiter of `acquire` that has got its capacity."""
        self._busy = 0
        self._waiting: deque[object] = deque()

    @property
    def waiting(self) -> int:
        """The number of executions that wait for capacity."""
        return len(self._waiting)

    @property
    def available(self) -> int:
        """The number of steps that could start now without waiting."""
        return max(0, self.limit - self._busy)

    def reserve(self) -> int:
        """Reserve all capacity that new executions may use now. Returns how much."""
        return max(0, self.limit - self._busy - len(self._waiting))

    def unreserve(self, count: int) -> None:
        """Return reserved capacity that no execution uses."""

    def withdraw(self) -> None:
        """Stop competing for shared capacity: this queue has no more work."""

    def acquire(self, waiter: object) -> bool:
        """Take capacity for one step. If none is free, return False; `on_granted` is called when the waiter gets it."""
        if self._try_acquire():
            return True
        self._waiting.append(waiter)
        return False

    def leave(self, waiter: object) -> None:
        """Stop waiting."""
        self._waiting.remove(waiter)

    def release(self) -> None:
        """Return the capacity of one step. The longest waiter gets it."""
        self._busy -= 1
        if self._waiting:
            self._serve()

    def resize(self, limit: int) -> None:
        """Change the limit. Steps that already run beyond a lower limit continue."""
        self.limit = limit
        self._serve()

    def _try_acquire(self) -> bool:
        if self._busy >= self.limit:
            return False
        self._busy += 1
        return True

    def _serve(self) -> None:
        while self._waiting and self._try_acquire():
            self.on_granted(self._waiting.popleft())


class Budget:
    """Capacity that several queues share by weighted fair queueing. Bound to one event loop.

    Each queue has a virtual time, which advances by 1 / weight per step. Free capacity goes to the queue with the
    lowest virtual time among those that were denied.
    """

    def __init__(self, limit: int) -> None:
        self.free = limit
        self._members: list[SharedCapacity] = []
        # The virtual time of the last grant. A queue that was idle continues from here, so it saves up no credit.
        self._now = 0.0

    def join(self, member: SharedCapacity) -> None:
        """Add a queue."""
        self._members.append(member)

    def grant(self, member: SharedCapacity) -> bool:
        """Grant one step to this queue, unless no capacity is free or a denied queue has a lower virtual time."""
        time = max(member.virtual_time, self._now)
        denied = (other.virtual_time for other in self._members if other.is_denied and other is not member)
        member.is_denied = self.free <= 0 or any(max(other, self._now) < time for other in denied)
        member.virtual_time = time
        if member.is_denied:
            return False
        self.free -= 1
        self._now = time
        member.virtual_time = time + 1 / member.weight
        return True

    def give_back(self, count: int) -> None:
        """Return capacity and offer it to denied queues."""
        self.free += count
        self.offer()

    def offer(self) -> None:
        """Offer free capacity to denied queues, lowest virtual time first."""
        while self.free > 0 and (denied := [member for member in self._members if member.is_denied]):
            # A queue that picks first offers what it leaves when its pick returns.
            if not min(denied, key=lambda member: member.virtual_time).accept():
                return


class SharedCapacity(Capacity):
    """The capacity of one queue within a budget."""

    def __init__(self, limit: int, budget: Budget, weight: int) -> None:
        super().__init__(limit)
        self.weight = weight
        # Both are written by the budget.
        self.virtual_time = 0.0
        self.is_denied = False
        self._budget = budget
        # Granted for executions that are being picked. Each execution uses one of these when it starts.
        self._reserved = 0
        budget.join(self)

    @property
    def available(self) -> int:
        return self._reserved

    def reserve(self) -> int:
        self.is_denied = False
        self._serve()
        granted = 0
        while not self._waiting and self._is_below_limit and self._budget.grant(self):
            self._reserved += 1
            granted += 1
        # Denied queues do not poll: offer what this queue leaves.
        self._budget.offer()
        return granted

    def unreserve(self, count: int) -> None:
        # Steps that were chained during the pick may have used some of it.
        count = min(count, self._reserved)
        if count:
            # Not denied: otherwise the budget would offer the same capacity to this queue again.
            self.is_denied = False
            self._reserved -= count
            self._budget.give_back(count)

    def withdraw(self) -> None:
        self.is_denied = False
        self._serve()
        self._budget.offer()

    def accept(self) -> bool:
        """Use an offer for a waiting execution; otherwise request a pick. Returns whether it was used now."""
        if self._waiting:
            self._serve()
            return True
        self.on_offer()
        return False

    def release(self) -> None:
        self._busy -= 1
        self._budget.free += 1
        self._serve()
        self._budget.offer()

    @property
    def _is_below_limit(self) -> bool:
        return self._busy + self._reserved < self.limit

    def _try_acquire(self) -> bool:
        if self._reserved:
            self._reserved -= 1
        elif not self._is_below_limit:
            # A queue at its own limit must not block queues that can use the capacity.
            self.is_denied = False
            return False
        elif not self._budget.grant(self):
            return False
        self._busy += 1
        return True
