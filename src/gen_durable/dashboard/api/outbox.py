"""The outbox: sinks, and events that are pending, published or dead."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from ... import _verbs
from ..._db import dashboard, snapshots
from ..._db.plan import Plan
from ...events import EventRecord, EventState
from ..access import User
from ..board import Board
from ..endpoints import Reason, get, post
from ..live import topic
from .batches import BatchRow, row_of, run_started

__all__ = ["events", "outbox"]

_PERIOD: Final = timedelta(minutes=15)


class SinkRow(msgspec.Struct, frozen=True, kw_only=True):
    """The events of a sink. A count of 10,000 means "at least"."""

    sink: str
    pending: int = 0
    oldest: datetime | None = None
    """When the oldest pending event was committed."""
    attempts: int = 0
    """The most failed deliveries of a pending event."""
    dead: int = 0
    dead_at: datetime | None = None
    last_error: str | None = None
    published: int = 0
    """In the last 15 minutes; 10,000 of all sinks: at least."""
    p50: timedelta | None = None
    """Between commit and publication, in the last 15 minutes."""
    p95: timedelta | None = None


class OutboxPage(msgspec.Struct, frozen=True, kw_only=True):
    """All sinks with pending or dead events, or events that were published in the last 15 minutes."""

    at: datetime
    period: timedelta
    """Of `published`."""
    sinks: Sequence[SinkRow]


class EventsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events, newest first."""

    items: Sequence[EventRecord]
    next: int | None
    """Give it as `before` for the next page."""


class ReplayBody(Reason, frozen=True, kw_only=True):
    """Events to publish again."""

    numbers: list[int]


class ReplayDeadBody(Reason, frozen=True, kw_only=True):
    """Which dead letters to publish again."""

    sink: str | None = None
    """Otherwise those of all sinks."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """How many events are published again."""

    count: int


@get("/outbox", summary="Sinks with pending and dead events")
async def outbox(board: Board) -> OutboxPage:
    """Return the sinks."""
    return await board.cached("outbox", 1.0, _outbox)


@topic("outbox", every=2.0)
def _outbox() -> Plan[OutboxPage]:
    at = yield from snapshots.now()
    pending = {row["sink"]: row for row in (yield from dashboard.sinks())}
    dead = {row["sink"]: row for row in (yield from dashboard.dead_sinks())}
    speed = {row["sink"]: row for row in (yield from dashboard.published(_PERIOD))}
    rows = []
    for sink in sorted(pending.keys() | dead.keys() | speed.keys()):
        waiting, lost, fast = pending.get(sink, {}), dead.get(sink, {}), speed.get(sink, {})
        rows.append(
            SinkRow(
                sink=sink,
                pending=waiting.get("count", 0),
                oldest=waiting.get("oldest"),
                attempts=waiting.get("attempts") or 0,
                dead=lost.get("count", 0),
                dead_at=lost.get("last_at"),
                last_error=lost.get("last_error") or waiting.get("last_error"),
                published=fast.get("count", 0),
                p50=_duration(fast.get("p50")),
                p95=_duration(fast.get("p95")),
            )
        )
    return OutboxPage(at=at, period=_PERIOD, sinks=rows)


def _duration(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


@get("/outbox/events", every=5, summary="Events of the outbox, newest first")
async def events(
    board: Board,
    *,
    sink: str | None = None,
    state: EventState | None = None,
    type: str | None = None,
    instance: int | None = None,
    before: int | None = None,
    limit: int = 50,
) -> EventsPage:
    """Return a page of events. It reads at most 100,000 of them, so it may be short although `next` is set."""
    found, after = await board.read(
        _verbs.event_page(
            instance_id=instance, sink=sink, type_=type, state=state, before=before, limit=limit
        )
    )
    items = [msgspec.structs.replace(one, data=board.redact(one.data)) for one in found]
    return EventsPage(items=items, next=after)


@post("/outbox/replay", role="operate", summary="Publish events again that are dead or published")
async def replay(board: Board, user: User, body: ReplayBody) -> Replayed:
    """Replay events."""
    count = await board.client.replay(body.numbers, reason=body.reason or None, actor=user.name)
    return Replayed(count=count)


@post(
    "/outbox/replay-dead",
    role="operate",
    summary="Publish all dead letters again, or those of one sink",
    then=run_started,
)
async def replay_dead(board: Board, user: User, body: ReplayDeadBody) -> BatchRow:
    """Start a batch that replays dead letters, each once."""
    started = await board.client.start_replay(sink=body.sink, reason=body.reason or None, actor=user.name)
    return row_of(started)
