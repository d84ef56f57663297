"""Events about what the engine does, and their subscribers.

    unsubscribe = telemetry.subscribe(lambda event: print(event.step, event.duration), StepStop)

A subscriber is called where the event happens, on the engine's own thread or event loop: it should be quick,
and may be called from several threads. What it raises is logged once and goes no further.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, overload

import msgspec

from .errors import UsageError

__all__ = [
    "AwaitTimeout",
    "ConcurrencyContended",
    "Event",
    "GcSwept",
    "HandlerMissing",
    "OutboxDead",
    "OutboxExpired",
    "OutboxFailed",
    "OutboxPublished",
    "OutcomeStale",
    "PickStop",
    "RateLimitThrottled",
    "RateLimitUnknown",
    "ReaperReaped",
    "ScheduleFired",
    "SchedulerDrain",
    "SchedulerSaturation",
    "StepStop",
    "Telemetry",
]

_log: Final = logging.getLogger("gen_durable.telemetry")


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened. `name` is the same in every program that reads our events."""

    name: ClassVar[str] = ""


class StepStop(Event, frozen=True, kw_only=True):
    """A step has run, and its outcome is known."""

    name: ClassVar[str] = "step.stop"
    duration: timedelta
    id: int
    fsm: str
    step: str
    kind: str
    """`next`, `retry`, `await`, `schedule_children`, `done` or `stop`: what the step decided.

    Two have no outcome: `cancel`, it raised `Cancel`; `release`, a cancel was asked for, and it was cut off or raised.
    """


class PickStop(Event, frozen=True, kw_only=True):
    """A look for work has come back, perhaps with none."""

    name: ClassVar[str] = "pick.stop"
    count: int
    demand: int
    queue: str
    worker: str


class SchedulerSaturation(Event, frozen=True, kw_only=True):
    """How busy a queue of this worker is."""

    name: ClassVar[str] = "scheduler.saturation"
    in_flight: int
    buffer: int
    concurrency: int
    prefetch: int
    queue: str


class SchedulerDrain(Event, frozen=True, kw_only=True):
    """A queue of this worker is shutting down."""

    name: ClassVar[str] = "scheduler.drain"
    released: int
    in_flight: int
    queue: str


class ConcurrencyContended(Event, frozen=True, kw_only=True):
    """Work was there, but another execution has its concurrency key."""

    name: ClassVar[str] = "concurrency.contended"
    count: int
    id: int
    fsm: str
    concurrency_key: str


class RateLimitThrottled(Event, frozen=True, kw_only=True):
    """Work was there, but its rate limit let fewer of it start than a pick wanted."""

    name: ClassVar[str] = "rate_limit.throttled"
    wanted: int
    granted: int
    key: str
    queue: str


class RateLimitUnknown(Event, frozen=True, kw_only=True):
    """A step names a rate limit that does not exist. It stalls, and starts when the limit is set.

    Emitted when rows stall, and every half minute as long as they do.
    """

    name: ClassVar[str] = "rate_limit.unknown"
    count: int
    key: str
    limit: str
    """The name in the key."""
    fsm: str
    step: str


class ReaperReaped(Event, frozen=True, kw_only=True):
    """Leases ran out: these instances are runnable again, or have failed."""

    name: ClassVar[str] = "reaper.reaped"
    count: int
    ids: tuple[int, ...]
    capped: tuple[int, ...]
    """Those of them that were lost once too often and have failed."""


class GcSwept(Event, frozen=True, kw_only=True):
    """Instances that had ended were kept for long enough and are removed, or buckets of rate limits that are full."""

    name: ClassVar[str] = "gc.swept"
    count: int
    """Of instances."""
    buckets: int = 0


class OutcomeStale(Event, frozen=True, kw_only=True):
    """An outcome came too late: the lease is gone, and nothing of it was written."""

    name: ClassVar[str] = "outcome.stale"
    id: int
    fsm: str
    step: str
    step_seq: int


class AwaitTimeout(Event, frozen=True, kw_only=True):
    """A deadline passed before a signal came; `step` runs now."""

    name: ClassVar[str] = "await.timeout"
    id: int
    fsm: str
    step: str


class HandlerMissing(Event, frozen=True, kw_only=True):
    """A worker owns the namespace of this machine and does not know the machine: the instance has failed."""

    name: ClassVar[str] = "handler.missing"
    id: int
    fsm: str
    version: int


class OutboxPublished(Event, frozen=True, kw_only=True):
    """A sink has taken these events."""

    name: ClassVar[str] = "outbox.published"
    count: int
    sink: str


class OutboxFailed(Event, frozen=True, kw_only=True):
    """A sink did not take these events; they are tried again."""

    name: ClassVar[str] = "outbox.failed"
    count: int
    sink: str
    error: str


class OutboxDead(Event, frozen=True, kw_only=True):
    """A sink has rejected an event for good; it is a dead letter until it is replayed."""

    name: ClassVar[str] = "outbox.dead"
    id: str
    sink: str
    type: str
    error: str


class OutboxExpired(Event, frozen=True, kw_only=True):
    """No sink accepted these events within `retention_pending`; they are removed."""

    name: ClassVar[str] = "outbox.expired"
    count: int
    sink: str


class ScheduleFired(Event, frozen=True, kw_only=True):
    """A slot of a schedule has come, and this worker has seen to it."""

    name: ClassVar[str] = "schedule.fired"
    schedule: str
    fsm: str
    fire_time: datetime
    lag: timedelta
    """How late it was."""
    id: int | None = None
    """The instance; of a `duplicate`, the one that has the key."""
    kind: str = "inserted"
    """`inserted`, `duplicate` (an instance has its key), `overlap`, `missed`, or `error`: nothing was inserted."""


EventT = TypeVar("EventT", bound=Event)
Unsubscribe: TypeAlias = Callable[[], None]


class _Subscription:
    __slots__ = ("callback", "has_failed", "kinds")

    def __init__(self, callback: Callable[[Any], object], kinds: frozenset[type[Event]]) -> None:
        self.callback = callback
        self.kinds = kinds
        self.has_failed = False

    def deliver(self, event: Event) -> None:
        try:
            self.callback(event)
        except Exception:  # noqa: BLE001 - foreign code, and the engine has to go on
            if not self.has_failed:
                self.has_failed = True
                _log.exception(
                    "telemetry subscriber %r failed on %s; it stays subscribed, but this is logged only once",
                    self.callback,
                    event.name,
                )


class Telemetry:
    """Takes events and hands them to whoever subscribed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: tuple[_Subscription, ...] = ()
        # Replaced as a whole under the lock and never changed in place, so emit() reads it without one.
        self._by_kind: dict[type[Event], tuple[_Subscription, ...]] = {}

    def is_wanted(self, kind: type[Event], /) -> bool:
        """Whether anybody would get such an event; ask before building one on a hot path."""
        return kind in self._by_kind

    def emit(self, event: Event, /) -> None:
        """Hand an event to its subscribers."""
        for subscription in self._by_kind.get(type(event), ()):
            subscription.deliver(event)

    @overload
    def subscribe(self, callback: Callable[[Event], object], /) -> Unsubscribe: ...
    @overload
    def subscribe(self, callback: Callable[[EventT], object], kind: type[EventT], /) -> Unsubscribe: ...
    @overload
    def subscribe(
        self,
        callback: Callable[[Any], object],
        first: type[Event],
        second: type[Event],
        /,
        *more: type[Event],
    ) -> Unsubscribe: ...
    def subscribe(self, callback: Callable[[Any], object], /, *kinds: type[Event]) -> Unsubscribe:
        """Call `callback` with each event of these kinds, or of every kind if none is named.

        Returns:
            A function that ends the subscription; calling it twice does no harm.
        """
        if inspect.iscoroutinefunction(callback):
            raise UsageError(
                "a telemetry subscriber is an async function, which nobody would await",
                "give a plain function of one event",
            )
        for kind in kinds:
            if kind not in _KINDS:
                raise UsageError(f"{kind!r} is no kind of event", f"the kinds are {_KIND_NAMES}")
        subscription = _Subscription(callback, frozenset(kinds) or _KINDS)
        with self._lock:
            self._replace((*self._subscriptions, subscription))

        def unsubscribe() -> None:
            with self._lock:
                self._replace(tuple(one for one in self._subscriptions if one is not subscription))

        return unsubscribe

    def _replace(self, subscriptions: tuple[_Subscription, ...]) -> None:
        self._subscriptions = subscriptions
        wanted = {kind for one in subscriptions for kind in one.kinds}
        self._by_kind = {kind: tuple(one for one in subscriptions if kind in one.kinds) for kind in wanted}


# Whoever derives from Event later than this module is no event of the engine.
_KINDS: Final[frozenset[type[Event]]] = frozenset(Event.__subclasses__())
_KIND_NAMES: Final = ", ".join(sorted(kind.__name__ for kind in _KINDS))
