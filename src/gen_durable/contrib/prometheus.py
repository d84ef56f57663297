"""Prometheus metrics: telemetry events of a worker, counted, and the queues of the database.

Labels are names that code or operators define. A name that only rows contain (an unregistered machine, step or queue)
is counted as `(unknown)`, so producers cannot create time series.

    worker = Worker([Checkout])
    Metrics(worker).serve("0.0.0.0", 9000)        # on a thread; or mount metrics.asgi in an app
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

# From a short computation to a call of a slow service.
_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300)
_UNKNOWN: Final = "(unknown)"
# Seconds. A scrape times out after 10 s; without an answer of the database, the other metrics are returned alone.
_QUEUES_TIMEOUT: Final = 3.0
# Name → help text, value of one queue, and how to combine the values of several queues.
_Figure: TypeAlias = tuple[str, Callable[[QueueStatus], float], Callable[[Iterable[float]], float]]
_FIGURES: Final[Mapping[str, _Figure]] = {
    "gen_durable_queue_due": (
        "Instances that are due; at most 10,000 are counted.",
        lambda queue: queue.due,
        sum,
    ),
    "gen_durable_queue_future": (
        "Instances that are not due yet; at most 10,000 are counted.",
        lambda queue: queue.future,
        sum,
    ),
    "gen_durable_queue_gated": (
        "Instances that wait for a slot of their concurrency key; at most 10,000 are counted.",
        lambda queue: queue.gated,
        sum,
    ),
    "gen_durable_queue_executing": (
        "Instances that execute, on any worker; at most 10,000 are counted.",
        lambda queue: queue.executing,
        sum,
    ),
    "gen_durable_queue_oldest_seconds": (
        "How long the oldest due instance has waited.",
        lambda queue: 0.0 if queue.oldest is None else queue.oldest.total_seconds(),
        max,
    ),
}


class Metrics(Collector):
    """The metrics of one worker in one registry.

        worker = Worker([Checkout])
        Metrics(worker).serve("0.0.0.0", 9000)

    Args:
        worker: the worker.
        registry: the Prometheus registry; default: the global one.
    """

    def __init__(self, worker: Worker, registry: CollectorRegistry = REGISTRY) -> None:
        self._worker = worker
        self._registry = registry
        # The event loop of the worker; known from its first event.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: Sequence[QueueStatus] | None = None
        self._counts = _Counts(registry, worker.machines)
        registry.register(self)
        worker.telemetry.subscribe(self._on_event)

    def serve(self, host: str, port: int) -> Callable[[], None]:
        """Serve the metrics over HTTP at this address, on a thread.

        Returns:
            A function that stops the server.
        """
        server, thread = start_http_server(port, host, self._registry)

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return end

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve the metrics as an ASGI app: `app.mount("/metrics", metrics.asgi)`."""
        # On a thread: this may be the event loop of the worker, which must be free to query the database.
        body = await asyncio.to_thread(generate_latest, self._registry)
        headers = [(b"content-type", CONTENT_TYPE_LATEST.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def describe(self) -> Iterable[Metric]:
        """Return the metrics that come from the database, without values."""
        return self._families(())

    def collect(self) -> Iterable[Metric]:
        """Query the database.

        On the event loop of the worker itself, which cannot wait for itself, use the last answer.
        """
        if not self._is_on_loop():
            self._refresh_from_thread()
        return self._families(self._queues)

    def _families(self, queues: Sequence[QueueStatus] | None) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "gen_durable_database_up",
            "1 if the database answered this worker, else 0.",
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

    def _refresh_from_thread(self) -> None:
        self._queues = None
        if self._loop is None or not self._loop.is_running():
            return
        refreshing = asyncio.run_coroutine_threadsafe(self._refresh(), self._loop)
        try:
            refreshing.result(_QUEUES_TIMEOUT)
        except (TimeoutError, CancelledError):
            refreshing.cancel()

    async def _refresh(self) -> None:
        try:
            self._queues = await self._worker.queues()
        except DatabaseError:
            self._queues = None

    def _on_event(self, event: Event) -> None:
        if isinstance(event, PickStop):
            self._loop = asyncio.get_running_loop()
        self._counts.count(event)


class _Counts:
    """Counters, gauges and histograms of the telemetry events."""

    def __init__(self, registry: CollectorRegistry, machines: Iterable[MachineDef]) -> None:
        self._registered = {(machine.name, step) for machine in machines for step in machine.steps}
        self._machines = {name for name, _ in self._registered}

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"gen_durable_{name}", what, labels, registry=registry)

        def gauge(name: str, what: str) -> Gauge:
            return Gauge(f"gen_durable_{name}", what, ["queue"], registry=registry)

        self._steps = counter("steps", "Executed steps by outcome.", "machine", "step", "outcome")
        self._seconds = Histogram(
            "gen_durable_step_seconds",
            "Duration of steps.",
            ["machine", "step"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._picks = counter("picks", "Picks: queries for due instances.", "queue")
        self._picked = counter("picked", "Instances that picks leased.", "queue")
        self._wanted = counter("wanted", "Instances that picks asked for.", "queue")
        self._in_flight = gauge("in_flight", "Executions of this worker in flight.")
        self._concurrency = gauge("concurrency", "Maximum number of concurrent steps of this worker.")
        self._buffer = gauge("buffer", "Executions that are leased ahead and have not started.")
        self._prefetch = gauge("prefetch", "Maximum number of executions leased ahead.")
        self._released = counter("released", "Executions that a shutdown returned to the queue.", "queue")
        self._contended = counter("contended", "Due instances whose concurrency key was in use.", "machine")
        self._reaped = counter("reaped", "Executions whose lease expired.")
        self._poisoned = counter("poisoned", "Instances that failed after crash_limit lost executions.")
        self._stale = counter(
            "stale_outcomes", "Outcomes discarded because the lease was lost.", "machine", "step"
        )
        self._timeouts = counter("await_timeouts", "Awaits that reached their deadline.", "machine", "step")
        self._compensations = counter(
            "compensations", "Instances that started to run undo steps.", "machine", "step"
        )
        self._missing = counter(
            "handler_missing", "Instances that failed because their machine is not registered.", "machine"
        )
        self._missing_steps = counter(
            "step_missing", "Executions given back because this worker does not have their step.", "machine"
        )
        self._swept = counter("swept", "Ended instances removed by retention.")
        self._progress = counter("progress_stored", "Reports of progress that were stored.")
        self._loop_blocked = counter("loop_blocked", "Steps that blocked the event loop.", "machine", "step")
        self._throttled = counter("throttled", "Starts delayed by a rate limit.", "limit", "queue")
        self._unknown = counter(
            "unknown_limits", "Instances that name a rate limit that does not exist.", "limit"
        )
        self._published = counter("outbox_published", "Events that a sink accepted.", "sink")
        self._refused = counter("outbox_failed", "Failed deliveries of events.", "sink")
        self._dead = counter("outbox_dead", "Events that a sink rejected permanently.", "sink")
        self._expired = counter(
            "outbox_expired", "Events that no sink accepted within retention_pending.", "sink"
        )
        self._fired = counter("schedule_fired", "Fire times of schedules, by result.", "schedule", "kind")
        # By name, so this adapter works with other versions of the engine.
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
            # Not `_step`: any worker expires the awaits of all machines, and their names come from code.
            "await.timeout": lambda event: self._timeouts.labels(event.fsm, event.step).inc(),
            "compensation.started": lambda event: self._compensations.labels(*self._step(event)).inc(),
            "handler.missing": lambda event: self._missing.labels(self._machine(event)).inc(),
            "step.missing": lambda event: self._missing_steps.labels(self._machine(event)).inc(),
            "outbox.published": lambda event: self._published.labels(event.sink).inc(event.count),
            "outbox.failed": lambda event: self._refused.labels(event.sink).inc(event.count),
            "outbox.dead": lambda event: self._dead.labels(event.sink).inc(),
            "outbox.expired": lambda event: self._expired.labels(event.sink).inc(event.count),
            "schedule.fired": lambda event: self._fired.labels(event.schedule, event.kind).inc(),
            "progress.stored": lambda event: self._progress.inc(event.count),
            "loop.blocked": lambda event: self._loop_blocked.labels(*self._step(event)).inc(),
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
    """Return the name without the partition, because the number of partitions is unbounded."""
    return str(event.key).partition(":")[0]
