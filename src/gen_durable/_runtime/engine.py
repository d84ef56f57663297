"""The services of a worker that is open: put together, started, watched, and drained in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from .._core.registry import Registry
from .._core.settle import Limits
from .._db import insert as inserts
from .._db.lease import Lease
from .._db.pool import Database
from ..config import Queue, Settings
from ..telemetry import Telemetry
from .executor import Executor
from .flusher import Flusher
from .heartbeat import Heartbeat
from .reaper import Reaper, Timekeeper
from .scheduler import Scheduler
from .service import Service
from .threads import Threads
from .wake import Wakes

__all__ = ["Engine"]

_log: Final = logging.getLogger("gen_durable.worker")


class Engine:
    """Everything that runs while a worker is open."""

    def __init__(
        self,
        worker: str,
        dsn: str,
        *,
        settings: Settings,
        registry: Registry,
        queues: Mapping[str, Queue],
        database: Database,
        commits: Database,
        telemetry: Telemetry,
        wakes: Wakes,
    ) -> None:
        self._worker = worker
        self._settings = settings
        self._registry = registry
        self._queues = queues
        self._database = database
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hurry = asyncio.Event()
        self._threads = Threads(settings.threads)
        self._flusher = Flusher(commits, wakes)
        self._heartbeat = Heartbeat(dsn, settings.schema, settings.lease, settings.heartbeat, self._lose)
        executor = Executor(registry, Limits(settings.max_payload, settings.max_children), self._threads)
        self._schedulers = [
            Scheduler(
                name,
                queue,
                worker=worker,
                settings=settings,
                registry=registry,
                database=database,
                executor=executor,
                flusher=self._flusher,
                heartbeat=self._heartbeat,
                telemetry=telemetry,
                on_bug=self._fail,
            )
            for name, queue in queues.items()
        ]
        for name, scheduler in zip(queues, self._schedulers, strict=True):
            wakes.on_work(name, scheduler.wake)
        self._services: list[Service] = [
            *self._schedulers,
            Reaper(database, settings, telemetry, wakes),
            Timekeeper(database, telemetry, wakes),
        ]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Tell the database what runs here, and let the services go."""
        await self._database.run(inserts.register(list(self._registry)))
        self._heartbeat.start()
        loop = asyncio.get_running_loop()
        for run in (self._flusher.run, *(service.run for service in self._services)):
            task = loop.create_task(run())
            task.add_done_callback(self._watch)
            self._tasks.append(task)
        served = ", ".join(f"{name}={queue.concurrency}" for name, queue in self._queues.items())
        machines = ", ".join(f"{machine.name} v{machine.version}" for machine in self._registry)
        _log.info("worker %s serves %s; machines: %s", self._worker, served, machines)

    async def until(self, done: asyncio.Event) -> None:
        """Wait for `done`; raise if a service breaks first."""
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_task(done.wait())
        try:
            await asyncio.wait([waiter, self._failed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        if self._failed.done():
            self._failed.result()

    def hurry(self) -> None:
        """Drain no longer: give everything back now."""
        self._hurry.set()

    async def drain(self) -> None:
        """Stop picking, let steps end, give back the rest."""
        for service in self._services:
            service.stop()
        loop = asyncio.get_running_loop()
        timeout = (
            timedelta(0) if self._hurry.is_set() or self._failed.done() else self._settings.drain_timeout
        )
        draining = [loop.create_task(scheduler.drain(timeout)) for scheduler in self._schedulers]
        hurry = loop.create_task(self._hurry.wait())
        drained = loop.create_task(_all(draining))
        await asyncio.wait([drained, hurry], return_when=asyncio.FIRST_COMPLETED)
        if not drained.done():
            for task in draining:
                task.cancel()
            await asyncio.wait(draining)
            await _all([loop.create_task(scheduler.drain(timedelta(0))) for scheduler in self._schedulers])
        hurry.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._heartbeat.stop()
        self._threads.close()

    def _watch(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        _log.critical("the worker stops: %s: %s", type(error).__name__, error, exc_info=error)
        if not self._failed.done():
            self._failed.set_exception(error)
            # Whoever uses `async with worker` may never look; the line above has said it.
            self._failed.exception()

    def _lose(self, lease: Lease) -> None:
        for scheduler in self._schedulers:
            scheduler.lose(lease)


async def _all(tasks: list[asyncio.Task[Any]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
