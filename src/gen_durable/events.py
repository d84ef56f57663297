"""Events of the outbox: `Event`, which a step emits, and `Sink`, which publishes it.

Events commit in the same transaction as the outcome that emits them. Dispatchers publish them afterwards, at least
once, in order per instance and sink. The id of an event is the same on every delivery.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from ._checks import checked_name
from .errors import UsageError

__all__ = [
    "MAX_EVENTS",
    "CloudEvent",
    "Emit",
    "Event",
    "EventRecord",
    "EventState",
    "Rejected",
    "Sink",
    "SinkLike",
    "SinkUnavailable",
    "emitted",
]

MAX_EVENTS: Final = 1000
"""Maximum number of events of one outcome."""


EventState: TypeAlias = Literal["pending", "published", "dead"]
"""`dead`: the sink rejected the event permanently; it can be replayed."""


class Event(msgspec.Struct, frozen=True):
    """An event for other systems.

        return Next(self.ship, emit=Event("order.paid.v1", {"order": 42}))

    It commits with the outcome that emits it, and a sink publishes it afterwards.
    """

    type: str
    """The CloudEvents type, for example `order.paid.v1`."""
    data: Any = None
    """Any JSON value, a `msgspec.Struct` or a dataclass."""
    subject: str | None = None
    """The CloudEvents subject; default: the correlation key of the instance, or its id."""
    sink: str = "default"
    """The name of the sink that publishes it, a key of `Worker(…, sinks={…})`."""

    def __post_init__(self) -> None:
        checked_name(self.type, "the type of an event")
        checked_name(self.sink, "the sink of an event")
        if self.subject is not None:
            checked_name(self.subject, "the subject of an event")


Emit: TypeAlias = Event | Iterable[Event]
"""One event, or several in order."""


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the form of CloudEvents 1.0, as a sink gets it."""

    id: str
    """`instance:step_seq:n`, the same on every delivery."""
    source: str
    type: str
    subject: str
    time: datetime
    """When it was committed."""
    data: Any
    """The data that the step emitted, as plain JSON values."""

    def attributes(self) -> dict[str, str]:
        """Return the CloudEvents context attributes as text."""
        return {
            "specversion": "1.0",
            "id": self.id,
            "source": self.source,
            "type": self.type,
            "subject": self.subject,
            "time": self.time.astimezone(UTC).isoformat().replace("+00:00", "Z"),
            "datacontenttype": "application/json",
        }

    def structured(self) -> dict[str, Any]:
        """Return the event in the JSON format of CloudEvents."""
        return {**self.attributes(), "data": self.data}


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the outbox, as `client.events` returns it."""

    number: int
    """The number of the event in the outbox; `client.replay` takes it."""
    id: str
    """`instance:step_seq:n`, the same on every delivery."""
    instance_id: int
    sink: str
    type: str
    subject: str
    data: Any
    state: EventState
    attempts: int
    """Number of failed deliveries."""
    last_error: str | None
    created_at: datetime
    next_at: datetime | None
    """When a pending event is tried next."""
    published_at: datetime | None


class Rejected(Exception):  # noqa: N818 - an answer of the receiver, not an error
    """Raise it in a sink if the receiver will never accept this event.

    The event becomes a dead letter at once. Later events of its instance are published.
    """


class SinkUnavailable(Exception):  # noqa: N818 - as above
    """Raise it in a sink if the receiver accepts no events at present.

    The dispatcher pauses the whole sink, at least for `retry_after`. It treats `ConnectionError` and `socket.gaierror`
    the same way.
    """

    retry_after: timedelta | None

    def __init__(self, reason: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


@runtime_checkable
class Sink(Protocol):
    """Publishes events. Implement it, or use one of `gen_durable.sinks`, or pass a function of one event.

        class QueueSink:
            batch = 100

            async def publish(self, events: Sequence[CloudEvent]) -> None:
                await queue.send([event.structured() for event in events])

        Worker([Checkout], sinks=QueueSink())

    `Rejected` makes an event a dead letter. `SinkUnavailable` pauses the sink. After any other exception the event is
    retried with back-off, and only later events of the same instance wait for it.
    """

    batch: int
    """Maximum number of events per call of `publish`.

    If `publish` raises, the events are sent again in smaller batches.
    """

    async def publish(self, events: Sequence[CloudEvent]) -> None:
        """Publish these events in order. Calls may overlap."""
        ...


SinkLike: TypeAlias = Sink | Callable[[CloudEvent], Awaitable[object] | object]
"""A sink, or a function of one event: an `async def` runs on the event loop of the worker, a `def` in a thread."""


def emitted(given: Emit) -> tuple[Event, ...]:
    """Return the events of an `emit=` argument."""
    events = (given,) if isinstance(given, Event) else tuple(given)
    for event in events:
        if not isinstance(event, Event):
            raise UsageError(
                f"emit got a value of type {type(event).__name__}",
                'give Event("order.paid", data), or several',
            )
    if len(events) > MAX_EVENTS:
        raise UsageError(f"emit got {len(events)} events", f"emit at most {MAX_EVENTS} with one outcome")
    return events
