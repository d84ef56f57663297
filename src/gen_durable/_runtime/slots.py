"""How many steps of one queue run at once. Whoever commits holds no slot: the next step runs meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Slots"]


class Slots:
    """At most `limit` steps; those that must wait go first come, first served. For one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._busy = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def free(self) -> int:
        """How many more could begin now, those that wait already served first."""
        return self.limit - self._busy - len(self._waiting)

    async def take(self) -> None:
        """Wait for a slot."""
        if self._busy < self.limit:
            self._busy += 1
            return
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

    def give(self) -> None:
        """The step is over: its slot goes to whoever waits longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._busy -= 1
