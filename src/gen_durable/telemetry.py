"""Telemetry events of a worker, and subscribing to them.

    unsubscribe = worker.telemetry.subscribe(lambda event: print(event.step, event.duration), StepStop)

A subscriber runs on the thread or event loop of the engine: it must return quickly, and may be called from several
threads. The first exception of a subscriber is logged; it does not affect the engine.
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
    "CompensationStarted",
    "ConcurrencyContended",
    "Event",
    "GcSwept",
    "HandlerMissing",
    "LoopBlocked",
    "OutboxDead",
    "OutboxExpired",
    "OutboxFailed",
    "OutboxPublished",
    "OutcomeStale",
    "PickStop",
    "ProgressStored",
    "RateLimitThrottled",
    "RateLimitUnknown",
    "ReaperReaped",
    "ScheduleFired",
    "SchedulerDrain",
    "SchedulerSaturation",
    "StepMissing",
    "StepStop",
    "Telemetry",
]

_log: Final = logging.getLogger("gen_durable.telemetry")


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of telemetry events. `name` identifies the event in metrics and logs."""

    name: ClassVar[str] = ""


class StepStop(Event, frozen=True, kw_only=True):
    """A step ended, and its outcome is known."""

    name: ClassVar[str] = "step.stop"
    duration: timedelta
    id: int
    fsm: str
    step: str
    kind: str
    """The outcome: `next`, `retry`, `await`, `schedule_children`, `done` or `stop`.

    Or, without an outcome: `cancel`, the step raised `Cancel`; `release`, a cancel was requested and the step was
    interrupted or raised.
    """


class PickStop(Event, frozen=True, kw_only=True):
    """A pick leased `count` of at most `demand` instances; `count` may be 0."""

    name: ClassVar[str] = "pick.stop"
    count: int
    demand: int
    queue: str
    worker: str


class SchedulerSaturation(Event, frozen=True, kw_only=True):
    """The load of one queue of this worker, emitted on every poll."""

    name: ClassVar[str] = "scheduler.saturation"
    in_flight: int
    buffer: int
    concurrency: int
    prefetch: int
    queue: str


class SchedulerDrain(Event, frozen=True, kw_only=True):
    """A queue of this worker shuts down: `released` leases were returned, `in_flight` steps still run."""

    name: ClassVar[str] = "scheduler.drain"
    released: int
    in_flight: int
    queue: str


class ConcurrencyContended(Event, frozen=True, kw_only=True):
    """An instance was due, but all slots of its concurrency key are in use."""

    name: ClassVar[str] = "concurrency.contended"
    count: int
    id: int
    fsm: str
    concurrency_key: str


class RateLimitThrottled(Event, frozen=True, kw_only=True):
    """A rate limit granted fewer starts than a pick wanted."""

    name: ClassVar[str] = "rate_limit.throttled"
    wanted: int
    granted: int
    key: str
    queue: str


class RateLimitUnknown(Event, frozen=True, kw_only=True):
    """Instances name a rate limit that does not exist. They wait until the limit is set.

    Emitted when an instance starts to wait, and every 30 s as long as it waits.
    """

    name: ClassVar[str] = "rate_limit.unknown"
    count: int
    key: str
    limit: str
    """The name part of the key."""
    fsm: str
    step: str


class ReaperReaped(Event, frozen=True, kw_only=True):
    """Leases expired: these instances are runnable again, or have failed."""

    name: ClassVar[str] = "reaper.reaped"
    count: int
    ids: tuple[int, ...]
    capped: tuple[int, ...]
    """Those that reached `settings.crash_limit` and failed."""


class GcSwept(Event, frozen=True, kw_only=True):
    """Retention removed ended instances, or full buckets of rate limits."""

    name: ClassVar[str] = "gc.swept"
    count: int
    """Number of instances."""
    buckets: int = 0


class ProgressStored(Event, frozen=True, kw_only=True):
    """The progress of `count` running steps was stored."""

    name: ClassVar[str] = "progress.stored"
    count: int


class LoopBlocked(Event, frozen=True, kw_only=True):
    """A step blocked the event loop of the worker for longer than `loop_blocked_after`. Emitted when it has ended."""

    name: ClassVar[str] = "loop.blocked"
    duration: timedelta
    """How long the event loop was blocked; a block of several steps counts for each of them."""
    id: int | None
    """The instance; `None` if other code of the program blocked the event loop."""
    fsm: str
    step: str


class OutcomeStale(Event, frozen=True, kw_only=True):
    """An outcome was discarded, because its lease was lost. Nothing was written."""

    name: ClassVar[str] = "outcome.stale"
    id: int
    fsm: str
    step: str
    step_seq: int


class CompensationStarted(Event, frozen=True, kw_only=True):
    """An instance failed or was cancelled after steps with `undo=`: it runs their undo steps, and ends after them.

    Emitted by the worker whose commit or reap starts it. After a cancel of an instance that does not execute, by the
    worker that leases the first undo step. Clients and supervisors emit no telemetry.
    """

    name: ClassVar[str] = "compensation.started"
    id: int
    fsm: str
    step: str
    """The step at which it failed or was cancelled."""


class AwaitTimeout(Event, frozen=True, kw_only=True):
    """The deadline of an `Await` passed before a signal arrived; `step` runs now."""

    name: ClassVar[str] = "await.timeout"
    id: int
    fsm: str
    step: str


class HandlerMissing(Event, frozen=True, kw_only=True):
    """An instance failed, because the worker that serves its prefix has no such machine."""

    name: ClassVar[str] = "handler.missing"
    id: int
    fsm: str
    version: int


class StepMissing(Event, frozen=True, kw_only=True):
    """An instance is at a step that the machine of this worker does not have. It is left to other workers."""

    name: ClassVar[str] = "step.missing"
    id: int
    fsm: str
    version: int
    step: str


class OutboxPublished(Event, frozen=True, kw_only=True):
    """A sink accepted these events."""

    name: ClassVar[str] = "outbox.published"
    count: int
    sink: str


class OutboxFailed(Event, frozen=True, kw_only=True):
    """A sink did not accept these events; they are retried."""

    name: ClassVar[str] = "outbox.failed"
    count: int
    sink: str
    error: str


class OutboxDead(Event, frozen=True, kw_only=True):
    """A sink rejected an event permanently; it is a dead letter until it is replayed."""

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
    """A fire time of a schedule has come, and this worker handled it."""

    name: ClassVar[str] = "schedule.fired"
    schedule: str
    fsm: str
    fire_time: datetime
    lag: timedelta
    """Time between the fire time and the firing."""
    id: int | None = None
    """The inserted instance; for `duplicate`, the instance that has the key."""
    kind: str = "inserted"
    """`inserted`, `duplicate` (an instance has the key); or, if nothing was inserted, `overlap`, `missed`, `error`."""


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
        except Exception:  # noqa: BLE001 - user code must not stop the engine
            if not self.has_failed:
                self.has_failed = True
                _log.exception(
                    "telemetry subscriber failed: %r on %s; it stays subscribed, further failures are not logged",
                    self.callback,
                    event.name,
                )


class Telemetry:
    """Delivers events to subscribers. Every worker has one: `worker.telemetry`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: tuple[_Subscription, ...] = ()
        # Replaced as a whole under the lock and never changed in place, so emit() reads it without one.
        self._by_kind: dict[type[Event], tuple[_Subscription, ...]] = {}

    def is_wanted(self, kind: type[Event], /) -> bool:
        """Return whether this kind of event has a subscriber; check it before building an event on a hot path."""
        return kind in self._by_kind

    def emit(self, event: Event, /) -> None:
        """Call the subscribers of an event."""
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
        """Call `callback` with each event of these kinds; without kinds, with every event.

        Returns:
            A function that ends the subscription.

        Raises:
            UsageError: the callback is a coroutine function, or a kind is not an event class.
        """
        if inspect.iscoroutinefunction(callback):
            raise UsageError(
                "a telemetry subscriber is an async function, which is not supported",
                "give a plain function of one event",
            )
        for kind in kinds:
            if kind not in _KINDS:
                raise UsageError(f"{kind!r} is not a kind of event", f"the kinds are {_KIND_NAMES}")
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


# Only subclasses of this module are events of the engine.
_KINDS: Final[frozenset[type[Event]]] = frozenset(Event.__subclasses__())
_KIND_NAMES: Final = ", ".join(sorted(kind.__name__ for kind in _KINDS))
