"""Compose the services of a worker, start them, watch them, and drain them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from .._checks import duration_text
from .._core.model import Lease
from .._core.settle import Bounds
from .._db import audit as audits
from .._db import schedules, workers
from .._db.commit import Recorder
from .._db.pool import Database
from ..config import Queue
from ..errors import WorkerStoppedError
from ..events import Sink
from . import shutdown_timeouts
from .admission import Admission
from .capacity import Budget, Capacity, SharedCapacity
from .compatibility_report import report_incompatible
from .dispatcher import Dispatcher
from .execution_runner import ExecutionRunner
from .executor import Executor
from .flusher import Flusher
from .heartbeat import Heartbeat
from .maintenance.backlog import Backlog
from .maintenance.collector import Collector
from .maintenance.cron import Cron
from .maintenance.deadlines import Deadlines
from .maintenance.reaper import Reaper
from .maintenance.vacuum import Vacuum
from .middleware import Middleware
from .override_poller import OverridePoller
from .pick_source import FromQueue, Source
from .picker import Picker
from .processes.process_pool import ProcessPool, hello_for
from .progress_writer import ProgressWriter
from .registration import Registration
from .service import Service
from .startup import run_at_start
from .step_channel import WorkerChannel
from .stream_writer import StreamWriter
from .threads import Threads
from .worker_connections import Connections
from .worker_context import WorkerContext

__all__ = ["Engine"]

_log: Final = logging.getLogger("gen_durable.worker")
# A logger of its own, so that a program with its own start message can turn this one off.
_start_log: Final = logging.getLogger("gen_durable.worker.start")
# Seconds without a reply from the database after which the worker is not ready.
_MAX_SILENCE: Final = 5.0


class Engine:
    """Composes the services of a worker, starts them, watches them, and drains them in order."""

    def __init__(
        self,
        context: WorkerContext,
        connections: Connections,
        *,
        sources: Sequence[tuple[Source, Queue]],
        sinks: Mapping[str, Sink],
        schedules: Sequence[schedules.Definition],
        worker_row: workers.WorkerRow,
        middleware: Sequence[Middleware],
        resources: Any,
        on_failure: Callable[[WorkerStoppedError], None],
    ) -> None:
        settings, status = context.settings, context.database_status
        self._context = context
        self._settings = settings
        self._database_status = status
        self._connections = connections
        self._sources = sources
        self._sinks = sinks
        self._schedules = schedules
        self._on_failure = on_failure
        self._is_failed = False
        self._is_draining = False
        self._is_drain_skipped = asyncio.Event()
        self.is_signalled = False
        """Whether a signal has stopped the worker; if so, a second one skips the drain."""
        # A chained commit leaves at least this much of the lease: enough until the next heartbeat, and never more than
        # the shortest lease.
        grace = settings.renew_after(context.shortest_lease)
        recorder = Recorder(
            context.name,
            settings.executions,
            grace,
            settings.alerts or None,
            keeps_done=settings.retention_done > timedelta(0),
            is_awaited=context.wakes.is_awaited,
            histories=context.registry.histories(settings.history),
        )
        self._flusher = Flusher(
            connections.commits,
            connections.slow_commits,
            connections.effects,
            recorder,
            context.wakes,
            status,
        )
        progress = ProgressWriter(context.telemetry)
        self._stream_writer = StreamWriter(connections.commits.run, context.wakes, status)
        self._heartbeat = Heartbeat(
            context,
            connections.dsn,
            progress,
            on_lease_lost=self._on_lease_lost,
            on_cancel=self._on_cancel,
            on_failure=self._on_heartbeat_failure,
            on_silence=connections.client.watchdog.replace_all,
        )
        self._threads = Threads(settings.threads)
        bounds = Bounds(settings.max_payload, settings.max_children)
        hello = hello_for(context.registry, bounds)
        size = settings.pool_processes or os.cpu_count() or 1
        self._processes = None if hello is None else ProcessPool(size, hello)
        self._executor = Executor(
            context.registry,
            bounds,
            self._threads,
            processes=self._processes,
            middleware=middleware,
            resources=resources,
            channel=WorkerChannel(
                context.registry,
                bounds,
                connections.client.run,
                progress.report,
                self._stream_writer,
                status,
            ),
        )
        # On the client's pool: a vacuum may take half a minute, and the pool for services has two connections.
        vacuum = Vacuum(connections.client, status)
        admission = Admission(connections.picks, connections.commits, context.telemetry, vacuum.rows_deferred)
        budget = Budget(settings.concurrency) if settings.concurrency else None
        self._runners: list[ExecutionRunner] = []
        self._pickers = [self._picker(source, queue, admission, budget) for source, queue in sources]
        self._dispatchers = [self._dispatcher(name, sink) for name, sink in sinks.items()]
        self._services: list[Service] = [
            *self._pickers,
            *self._dispatchers,
            vacuum,
            *_maintenance(context, connections.services),
        ]
        self._registration = Registration(
            connections.services,
            settings,
            status,
            worker_row,
            context.registry.descriptions,
            recorder.histories,
            in_flight=lambda: sum(runner.in_flight for runner in self._runners),
        )
        self._override_poller = OverridePoller(
            connections.services, settings, status, self._pickers, self._registration
        )
        # The first run until the drain begins, the second until it has ended.
        self._tasks: list[asyncio.Task[None]] = []
        self.report: asyncio.Task[None] | None = None
        """The comparison of live instances with the machines of this worker; it runs once, after the start."""
        self._tasks_until_drained: list[asyncio.Task[None]] = []

    def _picker(self, source: Source, queue: Queue, admission: Admission, budget: Budget | None) -> Picker:
        """Compose what serves one queue or prefix: capacity, execution runner, picker."""
        capacity = (
            Capacity(queue.concurrency)
            if budget is None
            else SharedCapacity(queue.concurrency, budget, queue.weight)
        )
        runner = ExecutionRunner(
            source.label,
            capacity,
            self._context,
            database=self._connections.picks,
            executor=self._executor,
            flusher=self._flusher,
            heartbeat=self._heartbeat,
            stream_writer=self._stream_writer,
            on_bug=self._fail,
        )
        picker = Picker(
            source,
            queue,
            self._context,
            database=self._connections.picks,
            admission=admission,
            heartbeat=self._heartbeat,
            runner=runner,
        )
        self._runners.append(runner)
        if isinstance(source, FromQueue):
            self._context.wakes.on_work(source.label, picker.wake)
        else:
            self._context.wakes.on_any_work(picker.wake)
        return picker

    def _dispatcher(self, name: str, sink: Sink) -> Dispatcher:
        settings = self._settings
        dispatcher = Dispatcher(
            name,
            sink,
            source=settings.event_source or f"/gen_durable/{settings.schema}",
            lease=settings.lease,
            idle=settings.poll_interval,
            database=self._connections.client,
            telemetry=self._context.telemetry,
            database_status=self._database_status,
        )
        self._context.wakes.on_events(dispatcher.wake)
        return dispatcher

    async def start(self) -> None:
        """Register the machines, schedules and the worker in the database, then start the services."""
        if (level := self._settings.audit) is not None:
            await run_at_start(self._connections.client, lambda: audits.set_level(level, self._context.name))
        for schedule in self._schedules:
            await run_at_start(self._connections.client, partial(schedules.put, schedule))
        await run_at_start(self._connections.client, self._registration.begin, is_transaction=True)
        self._heartbeat.start()
        self._tasks_until_drained = [
            self._spawn(self._flusher.run()),
            self._spawn(self._flusher.run_second()),
            self._spawn(self._stream_writer.run()),
            self._spawn(self._registration.run()),
            self._spawn(self._override_poller.run()),
        ]
        self._tasks = [self._spawn(service.run()) for service in self._services]
        if len(self._context.registry):
            report = report_incompatible(self._connections.client, self._context.registry, self._context.name)
            self.report = self._spawn(report)
            self._tasks.append(self.report)
        served = ", ".join(f"{source.name} ({queue.concurrency})" for source, queue in self._sources)
        machines = ", ".join(f"{machine.name} v{machine.version}" for machine in self._context.registry)
        _start_log.info(
            "worker started: %s, serving %s; machines: %s",
            self._context.name,
            served or "no queue",
            machines or "none",
        )
        if self._settings.alerts and self._settings.alerts not in self._sinks:
            # Another worker may have that sink. But if the name is misspelled, no alert is published.
            _log.warning(
                "settings.alerts is '%s', but this worker has no sink of that name (sinks: %s); alerts wait in the "
                "outbox until a worker with sinks={'%s': …} publishes them",
                self._settings.alerts,
                ", ".join(self._sinks) or "none",
                self._settings.alerts,
            )

    def unready(self) -> str | None:
        """Return why the worker is not ready; `None` if it is."""
        if self._is_failed:
            return "a service has failed; the worker is stopping"
        if self._is_draining:
            return "draining"
        status = self._database_status
        if status.seconds_available == 0 or status.seconds_since_reply > _MAX_SILENCE:
            return f"no reply from the database for {status.seconds_since_reply:.1f} s"
        if status.refusal is not None:
            return f"database refuses a statement: {status.refusal}"
        return None

    def skip_drain(self) -> None:
        """Stop waiting for running steps: release their executions now."""
        self._is_drain_skipped.set()

    async def drain(self) -> None:
        """Stop picking, wait for running steps up to drain_timeout, then release unfinished executions."""
        if not self._tasks_until_drained:  # the startup failed
            self._threads.close()
            return
        self._log_drain()
        self._is_draining = True
        for service in self._services:
            service.stop()
        self._registration.drain()
        # A pick under way may still lease executions; they are drained like the others.
        await _wait_or_cancel(shutdown_timeouts.LAST_STATEMENTS, self._tasks)
        await self._drain_runners()
        tasks = [*self._tasks, *self._tasks_until_drained]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        loop = asyncio.get_running_loop()
        last_statements = [
            loop.create_task(self._flusher.finish()),
            loop.create_task(self._registration.withdraw()),
            loop.create_task(
                self._context.counts.write(
                    self._connections.services, self._context.name, self._context.clock
                )
            ),
        ]
        await _wait_or_cancel(shutdown_timeouts.LAST_STATEMENTS, last_statements)
        self._flusher.close()
        self._stream_writer.close()
        for dispatcher in self._dispatchers:
            await dispatcher.close()
        self._heartbeat.stop()
        self._threads.close()
        if self._processes is not None:
            await self._processes.close()

    def _log_drain(self) -> None:
        running = sum(runner.running for runner in self._runners)
        if not running or self._is_drain_skipped.is_set():
            return
        steps = "1 step is running" if running == 1 else f"{running} steps are running"
        timeout = duration_text(self._settings.drain_timeout)
        if self.is_signalled:
            # A warning: it is shown even if logging is not configured, so Ctrl-C gets a visible response.
            _log.warning("stopping: %s, waiting up to %s; a second signal skips the wait", steps, timeout)
        else:
            _log.info("stopping: %s, waiting up to %s", steps, timeout)

    async def _drain_runners(self) -> None:
        loop = asyncio.get_running_loop()
        is_immediate = self._is_drain_skipped.is_set() or self._is_failed
        timeout = timedelta(0) if is_immediate else self._settings.drain_timeout
        draining = [loop.create_task(runner.drain(timeout)) for runner in self._runners]
        skipped = loop.create_task(self._is_drain_skipped.wait())
        left: set[asyncio.Future[Any]] = set(draining)
        while left:
            done, _ = await asyncio.wait([*left, skipped], return_when=asyncio.FIRST_COMPLETED)
            left -= done
            if skipped in done and left:
                for runner in self._runners:
                    runner.skip_drain()
                await asyncio.wait(left)
                break
        skipped.cancel()

    def _spawn(self, run: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(run)
        task.add_done_callback(self._watch)
        return task

    def _watch(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        _log.critical("worker stopping after an error: %s: %s", type(error).__name__, error, exc_info=error)
        if not self._is_failed:
            self._is_failed = True
            stopped = WorkerStoppedError(self._context.name, f"{type(error).__name__}: {error}")
            stopped.__cause__ = error
            self._on_failure(stopped)

    def _on_heartbeat_failure(self, error: BaseException) -> None:
        """Start nothing more: leases are no longer renewed. Running steps may end."""
        self._fail(error)
        for service in self._services:
            service.stop()

    def _on_cancel(self, lease: Lease) -> None:
        for runner in self._runners:
            runner.cancel(lease)

    def _on_lease_lost(self, lease: Lease) -> None:
        for runner in self._runners:
            runner.on_lease_lost(lease)


async def _wait_or_cancel(seconds: float, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for tasks, at most `seconds`; cancel the late ones."""
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()


def _maintenance(context: WorkerContext, database: Database) -> list[Service]:
    settings, telemetry, wakes, status = (
        context.settings,
        context.telemetry,
        context.wakes,
        context.database_status,
    )
    found: list[Service] = [
        Deadlines(database, telemetry, wakes, status),
        Cron(database, settings, telemetry, wakes, status),
        Backlog(database, status),
    ]
    if settings.reaper:
        found.append(Reaper(database, settings, telemetry, wakes, status, context.counts))
    if settings.gc:
        found.append(Collector(database, settings, telemetry, status))
    return found
