"""The queues that a worker must not start work from."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["PausedQueues"]


class PausedQueues:
    """Paused queues as last read from the database.

    A pick reads pauses itself. So if a pick leases rows of a queue, and no newer list of pauses has arrived since that
    pick was sent, the queue has been resumed.
    """

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        """Read by each step, so no call."""
        self.version = 0
        """Increases with every list that arrives."""

    def replace(self, names: Iterable[str]) -> bool:
        """Set the list. Returns whether a queue was resumed."""
        previous, self.names = self.names, frozenset(names)
        self.version += 1
        return bool(previous - self.names)

    def picked(self, queues: Iterable[str], version: int) -> None:
        """Record that a pick, sent when the list had this version, leased rows of these queues."""
        if version == self.version:
            self.names -= frozenset(queues)
