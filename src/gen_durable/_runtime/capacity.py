"""How many steps of one queue run at once. Whoever commits holds no slot: the next step runs meanwhile.

Queues with a budget in common share it by weight: each slot that comes free goes to the queue that has had the least
of them, measured by its weight, among those that have work for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["Budget", "Capacity", "SharedCapacity"]


class Capacity:
    """At most `limit` steps; those that must wait go first come, first served. For one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for one."""
        return len(self._waiting)

    def claim(self) -> int:
        """How many new steps may begin now."""
        return max(0, self.limit - self._busy - len(self._waiting))

    def unclaim(self, count: int) -> None:
        """There is not that much to do: so many that were claimed are free again."""

    def rest(self) -> None:
        """Nothing is left to do here."""

    @property
    def room(self) -> int:
        """How many could begin now, without waiting."""
        return max(0, self.limit - self._busy)

    async def take(self, on_wait: Callable[[], None] = lambda: None) -> None:
        """Wait for a slot, and say so if it has to be waited for."""
        if self._take_now():
            return
        on_wait()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give()  # it was our turn at the very moment: pass it on
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def resize(self, limit: int) -> None:
        """Another limit from now on; what runs beyond a lower one comes to its end."""
        self.limit = limit
        self._serve()

    def give(self) -> None:
        """The step is over: its slot goes to whoever waits longest."""
        self._busy -= 1
        self._serve()

    def _take_now(self) -> bool:
        if self._busy >= self.limit:
            return False
        self._busy += 1
        return True

    def _serve(self) -> None:
        while self._waiting:
            if self._waiting[0].done():
                del self._waiting[0]  # cancelled meanwhile
            elif self._take_now():
                self._waiting.popleft().set_result(None)
            else:
                return


class Budget:
    """Slots that several queues share. For one event loop."""

    def __init__(self, limit: int) -> None:
        self.free = limit
        self._members: list[SharedCapacity] = []
        # The turn of whoever was served last: a queue that was silent begins here, and has nothing saved up.
        self._now = 0.0

    def join(self, member: SharedCapacity) -> None:
        """One more queue has a part in it."""
        self._members.append(member)

    def grant(self, member: SharedCapacity) -> bool:
        """One slot for this queue, if there is one and nobody who wants it has had less."""
        turn = max(member.turn, self._now)
        hungry = (other.turn for other in self._members if other.is_hungry and other is not member)
        member.is_hungry = self.free <= 0 or any(max(other, self._now) < turn for other in hungry)
        member.turn = turn
        if member.is_hungry:
            return False
        self.free -= 1
        self._now = turn
        member.turn = turn + 1 / member.weight
        return True

    def back(self, count: int) -> None:
        """So many are free again."""
        self.free += count
        self.offer()

    def offer(self) -> None:
        """Tell the next in turn of those who were refused. Whoever it leaves something to hears of it from there."""
        while self.free > 0 and (hungry := [member for member in self._members if member.is_hungry]):
            if not min(hungry, key=lambda member: member.turn).accept():
                return


class SharedCapacity(Capacity):
    """The slots of one queue within a budget."""

    def __init__(self, limit: int, budget: Budget, weight: int, wake: Callable[[], None]) -> None:
        super().__init__(limit)
        self.weight = weight
        # Both belong to the budget: when this queue is next in turn, and whether it was refused.
        self.turn = 0.0
        self.is_hungry = False
        self._budget = budget
        self._wake = wake
        # Granted for executions that are being picked; each of them takes one when it begins.
        self._claimed = 0
        budget.join(self)

    def claim(self) -> int:
        self.is_hungry = False
        self._serve()
        granted = 0
        while not self._waiting and self._has_room and self._budget.grant(self):
            self._claimed += 1
            granted += 1
        # What is left is for somebody else, who may not know.
        self._budget.offer()
        return granted

    def unclaim(self, count: int) -> None:
        if count:
            # Whoever gives some back wants no more; it must not be woken for these very ones.
            self.is_hungry = False
            self._claimed -= count
            self._budget.back(count)

    def rest(self) -> None:
        self.is_hungry = False
        self._serve()
        self._budget.offer()

    def accept(self) -> bool:
        """There is a free slot: for whoever waits, now, else for new work, soon."""
        if self._waiting:
            self._serve()
            return True
        self._wake()
        return False

    def give(self) -> None:
        self._busy -= 1
        self._budget.free += 1
        self._serve()
        self._budget.offer()

    @property
    def room(self) -> int:
        return self._claimed

    @property
    def _has_room(self) -> bool:
        return self._busy + self._claimed < self.limit

    def _take_now(self) -> bool:
        if self._claimed:
            self._claimed -= 1
        elif not self._has_room:
            # Whoever could not use a slot must not be in the way of those who can.
            self.is_hungry = False
            return False
        elif not self._budget.grant(self):
            return False
        self._busy += 1
        return True
