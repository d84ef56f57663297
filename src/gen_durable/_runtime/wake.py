"""Wake-ups within one process: a queue has work, an instance has changed, the outbox or a stream has grown.

A wake-up is a hint: it may be lost or wrong, and its receiver reads the database. Work of other processes is found by
polling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

__all__ = ["HeldWakes", "Wakes"]


class Wakes:
    """The subscribers, and the calls that wake them."""

    def __init__(self) -> None:
        # Written only while the worker starts.
        self._queues: dict[str, Callable[[], None]] = {}
        self._any: list[Callable[[], None]] = []
        self._ended_or_parked: list[Callable[[Sequence[int]], None]] = []
        self._events: list[Callable[[], None]] = []
        self._items: list[Callable[[], None]] = []
        self.is_awaited: Callable[[int], bool] = lambda _: False
        """Whether the client waits for an instance. It then reads the instance and deletes it if it is not kept."""
        self.is_watching: Callable[[], bool] = lambda: False
        """Whether the client watches instances. Only then `changed` is called."""
        self.changed: Callable[[Sequence[int]], None] = lambda _: None
        """Wake those that watch these instances."""

    def on_work(self, queue: str, wake: Callable[[], None]) -> None:
        """Call `wake` when this queue may have work."""
        self._queues[queue] = wake

    def on_any_work(self, wake: Callable[[], None]) -> None:
        """Call `wake` when any queue may have work."""
        self._any.append(wake)

    def on_ended_or_parked(self, wake: Callable[[Sequence[int]], None]) -> None:
        """Call `wake` with the ids of a commit in which instances have ended or parked."""
        self._ended_or_parked.append(wake)

    def on_events(self, wake: Callable[[], None]) -> None:
        """Call `wake` when an outcome has written events to the outbox."""
        self._events.append(wake)

    def on_items(self, wake: Callable[[], None]) -> None:
        """Call `wake` when items were appended to streams."""
        self._items.append(wake)

    def items(self) -> None:
        """Wake the readers of streams: there are new items."""
        for wake in self._items:
            wake()

    def events(self) -> None:
        """Wake the dispatchers: the outbox has new events."""
        for wake in self._events:
            wake()

    def work(self, queues: Iterable[str]) -> None:
        """Wake the pickers of these queues, and those of prefixes."""
        for queue in queues:
            if (wake := self._queues.get(queue)) is not None:
                wake()
            for wake in self._any:
                wake()

    def ended_or_parked(self, ids: Sequence[int]) -> None:
        """Wake the waiting clients: some of these instances have ended or parked."""
        for wake in self._ended_or_parked:
            wake(ids)


class HeldWakes(Wakes):
    """Collects the queues that have work once a transaction has committed."""

    def __init__(self) -> None:
        super().__init__()
        self.queues: set[str] = set()

    def work(self, queues: Iterable[str]) -> None:
        self.queues.update(queues)
