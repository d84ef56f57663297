"""Events for the world outside: what a step emits, and what a sink publishes.

They are committed with the outcome that emits them, and only with it; a dispatcher publishes them afterwards, at least
once, in order per instance and sink. The id of an event is the same on every delivery.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
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
    "emitted",
]

MAX_EVENTS: Final = 1000
"""With one outcome."""


EventState: TypeAlias = Literal["pending", "published", "dead"]
"""`dead`: given up, until it is replayed."""


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


class Rejected(Exception):  # noqa: N818 - a decision of the receiver, told by the sink
    """Raise it in a sink: this event will never be accepted. It is put aside at once, and the ones behind it go on."""


@runtime_checkable
class Sink(Protocol):
    """Where events go. Anything that it raises but `Rejected` means: not now, try again."""

    batch: int
    """How many events it takes at once. It takes all of them or, if it raises, none that it will not take again."""

    async def publish(self, events: Sequence[CloudEvent]) -> None: ...


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
