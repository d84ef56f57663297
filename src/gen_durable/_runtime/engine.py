"""The services of a worker that is open: put together, started, watched, and drained in order."""

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
from .._core.registry import Registry
from .._core.settle import Bounds
from .._db import audit as audits
from .._db import insert as inserts
from .._db import schedules, workers
from .._db.commit import Recorder
from .._db.pool import Database
from ..config import Queue, Settings
from ..connections import Dsn
from ..errors import WorkerStoppedError
from ..events import Sink
from ..telemetry import Telemetry
from .capacity import Budget
from .content_loader import ContentLoader
from .database_status import DatabaseStatus
from .dispatcher import Dispatcher
from .executor import Executor
from .flusher import Flusher
from .heartbeat import Heartbeat
from .maintenance.collector import Collector
from .maintenance.cron import Cron
from .maintenance.deadlines import Deadlines
from .maintenance.reaper import Reaper
from .maintenance.vacuum import Vacuum
from .middleware import Middleware
from .pick_source import FromQueue, Source
from .processes.process_pool import ProcessPool, hello_for
from .registration import OverridePoller, Registration
from .scheduler import Scheduler
from .service import Service
from .startup import run_at_start
from .threads import Threads
from .wake import Wakes

__all__ = ["Engine"]

_log: Final = logging.getLogger("gen_durable.worker")
# Of its own, so that a program which says the same in its own way can turn it off.
_start_log: Final = logging.getLogger("gen_durable.worker.start")
# How long a shutdown waits for the answer to its last pick, and to its last word on what is done. What is leased or
# left open by an answer that never comes, the reaper of another worker sees to.
_LAST_ANSWER: Final = 2.0
# Seconds without a word from the database after which a worker does not call itself ready.
_TOO_SILENT: Final = 5.0


class Engine:
    """Everything that runs while a worker is open."""

    def __init__(
        self,
        worker: str,
        dsn: Dsn,
        *,
        settings: Settings,
        registry: Registry,
        sources: Sequence[tuple[Source, Queue]],
        sinks: Mapping[str, Sink],
        declared: Sequence[schedules.Definition],
        presence: workers.Presence,
        database: Database,
        picks: Database,
        services: Database,
        commits: Database,
        stragglers: Database,
        effects: Database,
        telemetry: Telemetry,
        wakes: Wakes,
        middleware: Sequence[Middleware],
        resources: Any,
        database_status: DatabaseStatus,
        on_failure: Callable[[WorkerStoppedError], None],
    ) -> None:
        self._on_failure = on_failure
        self._worker = worker
        self._settings = settings
        self._registry = registry
        self._sources = sources
        self._sinks = sinks
        self._declared = declared
        self._database = database
        self._is_failed = False
        self._hurry = asyncio.Event()
        self._threads = Threads(settings.threads)
        self._database_status = database_status
        self._is_draining = False
        shortest = min([settings.lease, *registry.leases.values()])
        # At most until the next renewal of any lease: one that is shorter must not be made longer.
        grace = settings.renew_after(shortest)
        recorder = Recorder(worker, settings.executions, grace, settings.alerts or None)
        self._flusher = Flusher(commits, stragglers, effects, recorder, wakes, database_status)
        self._heartbeat = Heartbeat(
            dsn,
            settings,
            shortest,
            database_status,
            self._lose,
            self._cancel,
            self._lose_all,
            database.watchdog.suspect,
        )
        bounds = Bounds(settings.max_payload, settings.max_children)
        hello = hello_for(registry, bounds)
        size = settings.pool_processes or os.cpu_count() or 1
        self._processes = None if hello is None else ProcessPool(size, hello)
        executor = Executor(
            registry,
            bounds,
            self._threads,
            processes=self._processes,
            middleware=middleware,
            resources=resources,
            content=ContentLoader(database.run),
        )
        budget = Budget(settings.concurrency) if settings.concurrency else None
        vacuum = Vacuum(
            database, database_status
        )  # not on one of the few for services: it may take half a minute
        self._schedulers = [
            Scheduler(
                source,
                queue,
                worker=worker,
                settings=settings,
                registry=registry,
                database=picks,
                gates=commits,
                executor=executor,
                flusher=self._flusher,
                heartbeat=self._heartbeat,
                telemetry=telemetry,
                database_status=database_status,
                on_bug=self._fail,
                on_way_made=vacuum.made_way,
                budget=budget,
            )
            for source, queue in sources
        ]
        for (source, _), scheduler in zip(sources, self._schedulers, strict=True):
            if isinstance(source, FromQueue):
                wakes.on_work(source.label, scheduler.wake)
            else:
                wakes.on_any_work(scheduler.wake)
        self._services: list[Service] = [
            *self._schedulers,
            Deadlines(services, telemetry, wakes, database_status),
            vacuum,
            *(
                Dispatcher(
                    label,
                    sink,
                    source=settings.event_source or f"/gen_durable/{settings.schema}",
                    lease=settings.lease,
                    idle=settings.poll_interval,
                    database=database,
                    telemetry=telemetry,
                    database_status=database_status,
                )
                for label, sink in sinks.items()
            ),
            Cron(services, settings, telemetry, wakes, database_status),
        ]
        for service in self._services:
            if isinstance(service, Dispatcher):
                wakes.on_events(service.wake)
        if settings.reaper:
            self._services.append(Reaper(services, settings, telemetry, wakes, database_status))
        if settings.gc:
            self._services.append(Collector(services, settings, telemetry, database_status))
        self._presence = Registration(services, settings, database_status, presence)
        self._overseer = OverridePoller(services, settings, database_status, self._schedulers, self._presence)
        self.is_signalled = False
        """Whether it ends by a signal, so that another one may hurry it."""
        # What runs until it is told to stop; and what runs until everything has come to its end.
        self._tasks: list[asyncio.Task[None]] = []
        self._lasting: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Tell the database what runs here, and let the services go."""
        await run_at_start(self._database, lambda: inserts.register(list(self._registry)))
        if (level := self._settings.audit) is not None:
            await run_at_start(self._database, lambda: audits.set_level(level, self._worker))
        for schedule in self._declared:
            await run_at_start(self._database, partial(schedules.put, schedule))
        await run_at_start(self._database, self._presence.plan)
        self._heartbeat.start()
        self._lasting = [
            self._spawn(self._flusher.run()),
            self._spawn(self._presence.run()),
            self._spawn(self._overseer.run()),
        ]
        self._tasks = [self._spawn(service.run()) for service in self._services]
        served = ", ".join(f"{source.name} ({limits.concurrency})" for source, limits in self._sources)
        machines = ", ".join(f"{machine.name} v{machine.version}" for machine in self._registry)
        _start_log.info(
            "worker %s serves %s; machines: %s", self._worker, served or "no queue", machines or "none"
        )
        if self._settings.alerts and self._settings.alerts not in self._sinks:
            # Another worker may well have it. But if the name is misspelt, no alert ever arrives.
            _log.warning(
                "settings.alerts is '%s', and this worker has no sink of that name (it has: %s): alerts wait in the "
                "outbox until a worker with sinks={'%s': …} publishes them",
                self._settings.alerts,
                ", ".join(self._sinks) or "none",
                self._settings.alerts,
            )

    def unready(self) -> str | None:
        """Why this worker takes no work just now, if it does not."""
        if self._is_failed:
            return "a service has failed; the worker stops"
        if self._is_draining:
            return "draining"
        status = self._database_status
        if status.seconds_available == 0 or status.seconds_since_reply > _TOO_SILENT:
            return f"no reply from the database for {status.seconds_since_reply:.1f} s"
        if status.refusal is not None:
            return f"database refuses a statement: {status.refusal}"
        return None

    def hurry(self) -> None:
        """Drain no longer: give everything back now."""
        self._hurry.set()

    async def drain(self) -> None:
        """Stop picking, let steps end, give back the rest."""
        if not self._lasting:  # it did not get so far as to start
            self._threads.close()
            return
        self._tell_of_drain()
        self._is_draining = True
        for service in self._services:
            service.stop()
        self._presence.drain()
        # A pick that is under way may still bring executions; those are drained like the others.
        await _within(_LAST_ANSWER, self._tasks)
        await self._drain_schedulers()
        tasks = [*self._tasks, *self._lasting]
        for task in tasks:
            task.cancel()
        if tasks:  # or the start failed before there were any
            await asyncio.wait(tasks)
        loop = asyncio.get_running_loop()
        farewell = [loop.create_task(self._flusher.finish()), loop.create_task(self._presence.leave())]
        await _within(_LAST_ANSWER, farewell)
        for service in self._services:
            if isinstance(service, Dispatcher):
                await service.close()
        self._heartbeat.stop()
        self._threads.close()
        if self._processes is not None:
            await self._processes.close()

    def _tell_of_drain(self) -> None:
        running = sum(scheduler.running for scheduler in self._schedulers)
        if not running or self._hurry.is_set():
            return
        steps = "1 step is running" if running == 1 else f"{running} steps are running"
        patience = duration_text(self._settings.drain_timeout)
        if self.is_signalled:
            # A warning, which shows even where nobody has set up a log: whoever gave the signal would look at silence.
            _log.warning(
                "stopping: %s, waiting at most %s; a second signal gives back what runs", steps, patience
            )
        else:
            _log.info("stopping: %s, waiting at most %s", steps, patience)

    async def _drain_schedulers(self) -> None:
        loop = asyncio.get_running_loop()
        is_hasty = self._hurry.is_set() or self._is_failed
        timeout = timedelta(0) if is_hasty else self._settings.drain_timeout
        draining = [loop.create_task(scheduler.drain(timeout)) for scheduler in self._schedulers]
        hurry = loop.create_task(self._hurry.wait())
        left: set[asyncio.Future[Any]] = set(draining)
        while left:
            done, _ = await asyncio.wait([*left, hurry], return_when=asyncio.FIRST_COMPLETED)
            left -= done
            if hurry in done and left:
                for scheduler in self._schedulers:
                    scheduler.hurry()
                await asyncio.wait(left)
                break
        hurry.cancel()

    def _spawn(self, run: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(run)
        task.add_done_callback(self._watch)
        return task

    def _watch(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        _log.critical("the worker stops: %s: %s", type(error).__name__, error, exc_info=error)
        if not self._is_failed:
            self._is_failed = True
            stopped = WorkerStoppedError(self._worker, f"{type(error).__name__}: {error}")
            stopped.__cause__ = error
            self._on_failure(stopped)

    def _lose_all(self, error: BaseException) -> None:
        """Nobody renews leases any more: what is under way may end, and nothing new begins."""
        self._fail(error)
        for service in self._services:
            service.stop()

    def _cancel(self, lease: Lease) -> None:
        for scheduler in self._schedulers:
            scheduler.cancel(lease)

    def _lose(self, lease: Lease) -> None:
        for scheduler in self._schedulers:
            scheduler.lose(lease)


async def _within(seconds: float, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for these at most so long, and then cancel what is left of them."""
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()
