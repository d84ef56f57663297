"""Hints within one process: this queue has work, this instance has come to rest.

A hint may be lost and may be wrong; whoever gets one looks into the database. What other processes do is found by
polling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = ["Wakes"]


class Wakes:
    """Who wants to know about which queue, and about instances that came to rest."""

    def __init__(self) -> None:
        # Written at start and stop only, read by the event loop.
        self._queues: dict[str, Callable[[], None]] = {}
        self._any: list[Callable[[], None]] = []
        self._rests: list[Callable[[], None]] = []
        self._events: list[Callable[[], None]] = []

    def on_work(self, queue: str, wake: Callable[[], None]) -> None:
        """Call `wake` when this queue may have work."""
        self._queues[queue] = wake

    def on_any_work(self, wake: Callable[[], None]) -> None:
        """Call `wake` when any queue may have work."""
        self._any.append(wake)

    def on_rest(self, wake: Callable[[], None]) -> None:
        """Call `wake` when some instance has ended or parked."""
        self._rests.append(wake)

    def on_events(self, wake: Callable[[], None]) -> None:
        """Call `wake` when some outcome has put events into the outbox."""
        self._events.append(wake)

    def events(self) -> None:
        """There are new events in the outbox."""
        for wake in self._events:
            wake()

    def work(self, queues: Iterable[str]) -> None:
        """These queues may have work."""
        for queue in queues:
            if (wake := self._queues.get(queue)) is not None:
                wake()
            for wake in self._any:
                wake()

    def rest(self) -> None:
        """Some instance has ended or parked."""
        for wake in self._rests:
            wake()
