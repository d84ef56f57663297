"""Events for the world outside: what a step emits, and what a sink publishes.

They are committed with the outcome that emits them, and only with it; a dispatcher publishes them afterwards, at least
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
"""With one outcome."""


EventState: TypeAlias = Literal["pending", "published", "dead"]
"""`dead`: the sink rejected it for good; it can be replayed."""


class Event(msgspec.Struct, frozen=True):
    """Something that other systems shall hear of: `Event("order.paid.v1", {"order": 42})`."""

    type: str
    """What has happened, in the words of whoever receives it."""
    data: Any = None
    """JSON of any shape: plain values, a `msgspec.Struct`, a dataclass."""
    subject: str | None = None
    """What it is about; left out, the correlation key of the instance, or its id."""
    sink: str = "default"
    """Which of the dispatcher's sinks publishes it."""

    def __post_init__(self) -> None:
        checked_name(self.type, "the type of an event")
        checked_name(self.sink, "the sink of an event")
        if self.subject is not None:
            checked_name(self.subject, "the subject of an event")


Emit: TypeAlias = Event | Iterable[Event]
"""One event, or several in their order."""


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it is published: CloudEvents 1.0."""

    id: str
    """`instance:step_seq:n`, the same on every delivery."""
    source: str
    type: str
    subject: str
    time: datetime
    """When it was committed."""
    data: Any
    """What the step emitted, as JSON gives it back."""

    def attributes(self) -> dict[str, str]:
        """The context attributes, as text, in the words of the standard."""
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
        """The whole event in the JSON format of the standard."""
        return {**self.attributes(), "data": self.data}


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the outbox, and how far it has come."""

    number: int
    """Its place in the outbox, by which `replay` knows it."""
    id: str
    """`instance:step_seq:n`, the same on every delivery."""
    instance_id: int
    sink: str
    type: str
    subject: str
    data: Any
    state: EventState
    attempts: int
    """Deliveries that failed."""
    last_error: str | None
    created_at: datetime
    next_at: datetime | None
    """When a pending one is tried (again)."""
    published_at: datetime | None


class Rejected(Exception):  # noqa: N818 - an answer of the receiver, not a fault
    """Raise it in a sink: the receiver will never accept this event.

    The event becomes a dead letter at once, and the events behind it are published.
    """


class SinkUnavailable(Exception):  # noqa: N818 - as above
    """Raise it in a sink: the receiver accepts no event at all now.

    The dispatcher pauses the whole sink, at least for `retry_after`. `ConnectionError` and `socket.gaierror` mean the
    same.
    """

    retry_after: timedelta | None

    def __init__(self, reason: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


@runtime_checkable
class Sink(Protocol):
    """Where events go.

    An event is retried with back-off on every error but `Rejected`, which is final. `SinkUnavailable` pauses the sink;
    any other error delays the instance of the event only.
    """

    batch: int
    """How many events `publish` takes at once. If it raises, the events are sent again, in smaller batches."""

    async def publish(self, events: Sequence[CloudEvent]) -> None:
        """Publish these events, in order. It may be called again while an earlier call still runs."""
        ...


SinkLike: TypeAlias = Sink | Callable[[CloudEvent], Awaitable[object] | object]
"""A sink, or a function of one event: `async def` on the worker's loop, a plain `def` in a thread."""


def emitted(given: Emit | None) -> tuple[Event, ...]:
    """What `emit=` was given, as events."""
    if given is None:
        return ()
    events = (given,) if isinstance(given, Event) else tuple(given)
    for event in events:
        if not isinstance(event, Event):
            raise UsageError(
                f"emit got a value of type {type(event).__name__}",
                'give Event("order.paid", data), or several',
            )
    if len(events) > MAX_EVENTS:
        raise UsageError(f"emit got {len(events)} events", f"at most {MAX_EVENTS} with one outcome")
    return events
