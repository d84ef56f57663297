"""Metrics for Prometheus: what a worker tells, counted, and how much waits in the database.

Labels are names that code and operators have chosen. A name that only rows have (an unregistered machine, step or
queue) is counted as `(unknown)`: each value of a label is a time series, and producers must not create them.

    worker = Worker([Checkout])
    Metrics(worker).serve("0.0.0.0", 9000)        # on a thread; or metrics.asgi, to be mounted in an app
    worker.run()

`gen-durable worker shop.py --metrics 0.0.0.0:9000` does the same. Needs the extra `prometheus`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, Final, TypeAlias

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    start_http_server,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..definition import MachineDef
from ..errors import DatabaseError
from ..operations import QueueStatus
from ..telemetry import Event, PickStop
from ..worker import Worker

__all__ = ["Metrics"]

# From a step that only computes to one that calls a slow service.
_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300)
_UNKNOWN: Final = "(unknown)"
# Prometheus itself gives up after 10 s; without an answer by then the other metrics come alone.
_ANSWER_WITHIN: Final = 3.0
# Name → what it is, the figure of one queue, and how those of several become one.
_Figure: TypeAlias = tuple[str, Callable[[QueueStatus], float], Callable[[Iterable[float]], float]]
_FIGURES: Final[Mapping[str, _Figure]] = {
    "gen_durable_queue_due": (
        "Instances that could run now; at most 10,000 are counted.",
        lambda queue: queue.due,
        sum,
    ),
    "gen_durable_queue_future": (
        "Instances whose time has yet to come; at most 10,000 are counted.",
        lambda queue: queue.future,
        sum,
    ),
    "gen_durable_queue_gated": (
        "Instances that wait for their concurrency key; at most 10,000 are counted.",
        lambda queue: queue.gated,
        sum,
    ),
    "gen_durable_queue_executing": (
        "Instances that execute, in any process; at most 10,000 are counted.",
        lambda queue: queue.executing,
        sum,
    ),
    "gen_durable_queue_oldest_seconds": (
        "How long the one that has been due for longest has waited.",
        lambda queue: 0.0 if queue.oldest is None else queue.oldest.total_seconds(),
        max,
    ),
}


class Metrics(Collector):
    """The metrics of one worker, in one registry."""

    def __init__(self, worker: Worker, registry: CollectorRegistry = REGISTRY) -> None:
        self._worker = worker
        self._registry = registry
        # Where the worker runs; known from the first event that comes from there.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: Sequence[QueueStatus] | None = None
        self._counts = _Counts(registry, worker.machines)
        registry.register(self)
        worker.telemetry.subscribe(self._on_event)

    def serve(self, host: str, port: int) -> Callable[[], None]:
        """Answer Prometheus at this address, on a thread.

        Returns:
            A function that ends it.
        """
        server, thread = start_http_server(port, host, self._registry)

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return end

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        """The same as an ASGI app: `app.mount("/metrics", metrics.asgi)`."""
        # On a thread: the loop of this app may be the worker's, which has to be free to ask the database.
        body = await asyncio.to_thread(generate_latest, self._registry)
        headers = [(b"content-type", CONTENT_TYPE_LATEST.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def describe(self) -> Iterable[Metric]:
        """The metrics that the database is asked for."""
        return self._families(())

    def collect(self) -> Iterable[Metric]:
        """Ask the database. Whoever asks from the worker's own loop would wait for himself: he gets the last answer."""
        if not self._is_on_loop():
            self._look_from_thread()
        return self._families(self._queues)

    def _families(self, queues: Sequence[QueueStatus] | None) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "gen_durable_database_up",
            "Whether the database answered this worker.",
            value=queues is not None,
        )
        by_label: dict[str, list[QueueStatus]] = defaultdict(list)
        for queue in queues or ():
            by_label[queue.name if queue.is_registered else _UNKNOWN].append(queue)
        for name, (what, figure, together) in _FIGURES.items():
            family = GaugeMetricFamily(name, what, labels=["queue"])
            for label, named in by_label.items():
                family.add_metric([label], together(map(figure, named)))
            yield family

    def _is_on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _look_from_thread(self) -> None:
        self._queues = None
        if self._loop is None or not self._loop.is_running():
            return
        looking = asyncio.run_coroutine_threadsafe(self._look(), self._loop)
        try:
            looking.result(_ANSWER_WITHIN)
        except (TimeoutError, CancelledError):
            looking.cancel()

    async def _look(self) -> None:
        try:
            self._queues = await self._worker.queues()
        except DatabaseError:
            self._queues = None

    def _on_event(self, event: Event) -> None:
        if isinstance(event, PickStop):
            self._loop = asyncio.get_running_loop()
        self._counts.count(event)


class _Counts:
    """One metric or more for each kind of event."""

    def __init__(self, registry: CollectorRegistry, machines: Iterable[MachineDef]) -> None:
        self._registered = {(machine.name, step) for machine in machines for step in machine.steps}
        self._machines = {name for name, _ in self._registered}

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"gen_durable_{name}", what, labels, registry=registry)

        def gauge(name: str, what: str) -> Gauge:
            return Gauge(f"gen_durable_{name}", what, ["queue"], registry=registry)

        self._steps = counter("steps", "Outcomes that were committed.", "machine", "step", "outcome")
        self._seconds = Histogram(
            "gen_durable_step_seconds",
            "How long steps ran.",
            ["machine", "step"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._picks = counter("picks", "Looks for work.", "queue")
        self._picked = counter("picked", "Instances that looks for work have brought.", "queue")
        self._wanted = counter("wanted", "Instances that looks for work could have brought.", "queue")
        self._in_flight = gauge("in_flight", "Executions of this worker that are under way.")
        self._concurrency = gauge("concurrency", "How many steps may run here at once.")
        self._buffer = gauge("buffer", "Executions that are leased ahead and wait for their turn.")
        self._prefetch = gauge("prefetch", "How many may be leased ahead.")
        self._released = counter("released", "Executions that a shutdown gave back.", "queue")
        self._contended = counter("contended", "Instances set aside: their key was busy.", "machine")
        self._reaped = counter("reaped", "Executions whose lease ran out.")
        self._poisoned = counter("poisoned", "Instances that failed: lost once too often.")
        self._stale = counter("stale_outcomes", "Outcomes that came too late.", "machine", "step")
        self._timeouts = counter(
            "await_timeouts", "Deadlines that passed before a signal.", "machine", "step"
        )
        self._missing = counter("handler_missing", "Instances that failed: no such machine.", "machine")
        self._swept = counter("swept", "Ended instances that were deleted.")
        self._throttled = counter("throttled", "Starts that a rate limit put off.", "limit", "queue")
        self._unknown = counter("unknown_limits", "Instances that name a rate limit that is none.", "limit")
        self._published = counter("outbox_published", "Events that a sink has taken.", "sink")
        self._refused = counter("outbox_failed", "Events that a sink did not take, try by try.", "sink")
        self._dead = counter("outbox_dead", "Events that a sink rejected for good.", "sink")
        self._expired = counter(
            "outbox_expired", "Events that no sink accepted within retention_pending.", "sink"
        )
        self._fired = counter(
            "schedule_fired", "Slots of schedules, by what became of them.", "schedule", "kind"
        )
        # By name: an adapter counts what it knows, whichever events this version of the engine has.
        self.handlers: Mapping[str, Callable[[Any], None]] = {
            "step.stop": self._step_stop,
            "pick.stop": self._pick_stop,
            "scheduler.saturation": self._saturation,
            "scheduler.drain": lambda event: self._released.labels(event.queue).inc(event.released),
            "concurrency.contended": lambda event: self._contended.labels(self._machine(event)).inc(
                event.count
            ),
            "reaper.reaped": self._reaper_reaped,
            "outcome.stale": lambda event: self._stale.labels(*self._step(event)).inc(),
            # Of any worker's machine, whichever worker watches the clock: an await is named by the code that made it.
            "await.timeout": lambda event: self._timeouts.labels(event.fsm, event.step).inc(),
            "handler.missing": lambda event: self._missing.labels(self._machine(event)).inc(),
            "outbox.published": lambda event: self._published.labels(event.sink).inc(event.count),
            "outbox.failed": lambda event: self._refused.labels(event.sink).inc(event.count),
            "outbox.dead": lambda event: self._dead.labels(event.sink).inc(),
            "outbox.expired": lambda event: self._expired.labels(event.sink).inc(event.count),
            "schedule.fired": lambda event: self._fired.labels(event.schedule, event.kind).inc(),
            "gc.swept": lambda event: self._swept.inc(event.count),
            "rate_limit.throttled": self._rate_limit_throttled,
            "rate_limit.unknown": lambda event: self._unknown.labels(_limit_of(event)).inc(event.count),
        }

    def count(self, event: Event) -> None:
        if (handler := self.handlers.get(event.name)) is not None:
            handler(event)

    def _machine(self, event: Any) -> str:
        return event.fsm if event.fsm in self._machines else _UNKNOWN

    def _step(self, event: Any) -> tuple[str, str]:
        is_registered = (event.fsm, event.step) in self._registered
        return self._machine(event), event.step if is_registered else _UNKNOWN

    def _step_stop(self, event: Any) -> None:
        machine, step = self._step(event)
        self._steps.labels(machine, step, event.kind).inc()
        self._seconds.labels(machine, step).observe(event.duration.total_seconds())

    def _pick_stop(self, event: Any) -> None:
        self._picks.labels(event.queue).inc()
        self._picked.labels(event.queue).inc(event.count)
        self._wanted.labels(event.queue).inc(event.demand)

    def _saturation(self, event: Any) -> None:
        self._in_flight.labels(event.queue).set(event.in_flight)
        self._concurrency.labels(event.queue).set(event.concurrency)
        self._buffer.labels(event.queue).set(event.buffer)
        self._prefetch.labels(event.queue).set(event.prefetch)

    def _reaper_reaped(self, event: Any) -> None:
        self._reaped.inc(event.count)
        self._poisoned.inc(len(event.capped))

    def _rate_limit_throttled(self, event: Any) -> None:
        self._throttled.labels(_limit_of(event), event.queue).inc(event.wanted - event.granted)


def _limit_of(event: Any) -> str:
    """The name before the partition: there are few of these, and any number of partitions."""
    return str(event.key).partition(":")[0]
