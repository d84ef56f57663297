"""Read the events of the outbox in the order of their numbers, without gaps.

Events do not become visible in that order: a transaction takes the number of its event before it commits. So a reader
goes to the newest visible event first, waits for the transactions that may commit an earlier one, and then reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from .._checks import checked_int
from .._db import outbox
from .._db.plan import Plan
from .._polling import Pace
from ..errors import UsageError
from ..events import EventRecord, EventState
from ..refs import Target
from .common import resolve
from .history import check_events, event_of

__all__ = ["EventFollow", "EventPage", "events_after"]

_PAGE: Final = 500
# How long one page waits for transactions that may commit earlier events.
_PATIENCE: Final = timedelta(seconds=1)


class EventTail:
    """Where a reader of events is."""

    def __init__(
        self,
        target: Target | None,
        sink: str | None,
        state: EventState | None,
        after: EventRecord | int,
        limit: int,
    ) -> None:
        check_events(sink, state, limit)
        self._target = target
        self._instance_id: int | None = None
        self._sink, self._state, self._limit = sink, state, limit
        self.after = after.number if isinstance(after, EventRecord) else after
        checked_int(self.after, "after", 0, 2**63 - 1)
        # The newest event that was visible, and the xid at that time: the events up to it are complete once earlier
        # transactions have ended.
        self._newest: tuple[int, int] | None = None
        self._is_complete = False

    @property
    def is_waiting(self) -> bool:
        """Whether it has seen events that it does not return yet: earlier ones may appear."""
        return self._newest is not None and not self._is_complete

    def next(self) -> Plan[list[EventRecord]]:
        """Read the next events; none if there are none, or if earlier ones may appear."""
        if self._target is not None and self._instance_id is None:
            self._instance_id = yield from resolve(self._target, "list events")
        if self._newest is None:
            self._newest = yield from outbox.newest(self.after)
            self._is_complete = False
            if self._newest is None:
                return []
        until, xid = self._newest
        self._is_complete = self._is_complete or (yield from outbox.are_earlier_complete(xid))
        if not self._is_complete:
            return []
        wanted = {"instance_id": self._instance_id, "sink": self._sink, "state": self._state}
        rows = yield from outbox.tail(wanted, self.after, until, self._limit)
        self.after = rows[-1]["id"] if len(rows) == self._limit else until
        if self.after == until:
            self._newest = None
        return [event_of(row) for row in rows]


class EventPage:
    """Polls for one page of events."""

    def __init__(self, tail: EventTail) -> None:
        self._tail = tail
        self._pace = Pace(_PATIENCE)

    def plan(self) -> Plan[tuple[list[EventRecord], float | None]]:
        """Poll once. Returns the events, and the seconds until the next poll; `None`: the page is read."""
        found = yield from self._tail.next()
        return found, self._pace.pause() if self._tail.is_waiting else None


class EventFollow:
    """Reads events without end."""

    name = "events"
    is_over = False

    def __init__(self, target: Target | None, sink: str | None, after: EventRecord | int) -> None:
        self._tail = EventTail(target, sink, None, after, _PAGE)

    def plan(self) -> Plan[Iterator[EventRecord]]:
        """Read the next events, possibly none."""
        return iter((yield from self._tail.next()))


def events_after(
    target: Target | None,
    sink: str | None,
    state: EventState | None,
    before: EventRecord | int | None,
    after: EventRecord | int,
    limit: int,
) -> EventPage:
    """Return a page of events after another one, oldest first."""
    if before is not None:
        raise UsageError(
            "events got before= and after=", "give one: after= lists oldest first, before= newest first"
        )
    return EventPage(EventTail(target, sink, state, after, limit))
