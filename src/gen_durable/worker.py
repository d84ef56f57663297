"""`Worker`: an `AsyncClient` that also runs machines."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Literal, Self

import msgspec

from . import _verbs
from ._checks import checked_int, checked_name, duration_text
from ._core.registry import Machines, Registry
from ._core.settle import Bounds
from ._db.limits import insert_missing
from ._db.pick import prefix_upper_bound
from ._db.pool import Database
from ._db.reply_timeouts import ReplyTimeouts
from ._db.workers import WorkerRow
from ._runtime import shutdown_timeouts
from ._runtime.dispatcher import sink_of
from ._runtime.engine import Engine
from ._runtime.failure_scope import FailureScope
from ._runtime.health import Answer, Health
from ._runtime.middleware import CallNext, Middleware, checked_middleware
from ._runtime.pick_source import FromPrefix, FromQueue, Source
from ._runtime.processes.child import IS_CHILD
from ._runtime.processes.malloc import return_large_buffers
from ._runtime.processes.process_pool import hello_for
from ._runtime.processes.supervisor import Supervisor, SupervisorLink
from ._runtime.startup import run_at_start
from ._runtime.worker_connections import Connections
from ._runtime.worker_context import WorkerContext
from ._version import VERSION
from .async_client import AsyncClient
from .client import Client
from .config import Queue, Settings, environment_prefixes, health_address
from .connections import Dsn
from .definition import MachineDef
from .errors import SettingsError, UsageError, WorkerStoppedError
from .events import Sink, SinkLike
from .jobs import Job
from .limits import Limit, checked_limits
from .machine import Machine
from .schedules import Schedule
from .telemetry import PickStop, Telemetry

__all__ = ["CallNext", "Middleware", "Worker"]

# For `prefixes=[]`.
_DEFAULT_PREFIX: Final = "default."


class Worker(AsyncClient):
    """Runs instances of registered machines. Is also an `AsyncClient`.

        async with Worker([Checkout, Refund(stripe)]) as worker:
            order = await worker.insert(Checkout, Order(42))
            print((await worker.wait(order)).result)

    `worker.run()` works until SIGTERM or SIGINT. The first signal starts a drain: running steps get
    `settings.drain_timeout`, then unfinished executions return to their queues. A second signal skips the drain.

    If a service of the worker fails and cannot recover, the worker stops: it cancels the task inside `async with`,
    closes, and raises `WorkerStoppedError` at the end of the block. `run()` raises it as well, and so does the block of
    `in_thread()` when it ends.
    """

    def __init__(
        self,
        machines: Machines,
        *,
        dsn: Dsn | None = None,
        queues: Mapping[str, int | Queue] | None = None,
        prefixes: Mapping[str, int | Queue] | Iterable[str] | None = None,
        on_unknown: Literal["fail", "leave"] = "fail",
        sinks: SinkLike | Mapping[str, SinkLike] | None = None,
        schedules: Iterable[Schedule] = (),
        middleware: Iterable[Middleware] = (),
        lifespan: Callable[[Worker], AbstractAsyncContextManager[Any]] | None = None,
        health: int | str | None = None,
        limits: Sequence[Limit] = (),
        settings: Settings | None = None,
    ) -> None:
        """Configure a worker. Opens no connection.

        Args:
            machines: machine classes, machine objects (if `__init__` takes arguments), jobs, or modules that define
                these.
            dsn: as for a client.
            queues: the queues to serve, each with the number of instances to run at once. The worker leaves instances
                of machines that are not registered here to other workers. Default: the queues of the machines, or none
                if there are `prefixes`. An empty mapping serves no queue; the worker runs only maintenance services.
            prefixes: machine name prefixes to serve, instead of or beside queues: `["billing."]`. An empty list means
                `["default."]`. Default, without `queues`: `GEN_DURABLE_PREFIXES`.
            on_unknown: what to do with an instance under a prefix whose machine is not registered here: `"fail"` the
                instance, or `"leave"` it in its queue.
            sinks: where to publish events: one sink (named `default`), or several by name. Events of other sinks wait
                in the outbox for a worker that has their sink.
            schedules: recurring work. The worker stores it when it opens, and replaces schedules of the same name. A
                paused schedule stays paused.
            middleware: async functions `(ctx, call_next)` around every step, outermost first.
            lifespan: a function that takes the worker and returns an async context manager. The worker enters it
                before it starts work and exits it after the drain. Its value is `ctx.resources` of every step.
            health: where to serve `/healthz` and `/readyz`: a port on the loopback interface, or `"host:port"`.
                Probes from other hosts, such as those of Kubernetes, need `"0.0.0.0:8080"`.
            limits: limits to create when the worker starts, unless limits of the same kind and name exist:
                `[RateLimit("crm", 100, per=timedelta(minutes=1)), ConcurrencyLimit("tenant", 3)]`.
            settings: as for a client.

        Raises:
            DefinitionError: a machine is invalid, or two have the same name and version.
        """
        super().__init__(dsn, settings=settings)
        self.telemetry: Telemetry = Telemetry()
        self.name: str = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._registry = Registry(machines)
        is_idle = queues is not None and not queues and prefixes is None
        if not len(self._registry) and not is_idle:
            raise UsageError(
                "the worker has no machines",
                "give at least one: Worker([Checkout]); only a worker with queues={} needs none",
            )
        for (fsm, _, step), lease in self._registry.leases.items():
            if self.settings.renew_after(lease) * 2 > lease:
                raise SettingsError(
                    "settings.heartbeat",
                    f"must be at most half of every lease: the lease of step '{step}' of machine '{fsm}' is "
                    f"{duration_text(lease)}, got {duration_text(self.settings.heartbeat)}; "
                    "lower it, or omit it",
                )
        self.machines: tuple[MachineDef, ...] = tuple(self._registry)
        if prefixes is None and queues is None:
            prefixes = environment_prefixes()
        self.prefixes: Mapping[str, Queue] = {} if prefixes is None else _prefixes(prefixes)
        self.served_queues: Mapping[str, Queue] = (
            {} if self.prefixes and queues is None else _queues(self._registry, queues)
        )
        if on_unknown not in ("fail", "leave"):
            raise SettingsError("on_unknown", f"must be 'fail' or 'leave', got {on_unknown!r}")
        self._schedules = _verbs.schedules.definitions(schedules, self.settings)
        self.leaves_unknown: bool = on_unknown == "leave"
        # Check now: a machine that other processes cannot import is a programming error.
        hello_for(self._registry, Bounds(self.settings.max_payload, self.settings.max_children))
        self.sinks: Mapping[str, Sink] = _sinks(sinks)
        self._middleware = checked_middleware(middleware)
        self._make_resources = lifespan
        self._resources = AsyncExitStack()
        self._health_at = None if health is None else health_address(health)
        self.health: Health | None = None
        self._connections: Connections | None = None
        self._limits: tuple[Limit, ...] = checked_limits(limits)
        self._engine: Engine | None = None
        self._scope: FailureScope | None = None

    @property
    def registered(self) -> list[Machine[Any, Any] | Job[Any, Any]]:
        """The machine objects and jobs that it runs."""
        return self._registry.machines

    def run(self, *, processes: int | None = None, on_ready: Callable[[], None] = lambda: None) -> None:
        """Run until SIGTERM or SIGINT.

        Args:
            processes: the number of copies of this program to run as worker processes. This process only supervises
                them: it restarts a process that crashes, and returns its executions to their queues at once.
            on_ready: called after the first pick of this worker, or of all its processes.

        Raises:
            SystemExit: with code 1, if a process failed while it was stopped.
        """
        link = SupervisorLink.from_environment()
        if processes is None or link is not None:
            self._run_here(link, on_ready)
        else:
            checked_int(processes, "the number of processes", 1, 1024)
            if self._health_at is not None:
                raise UsageError(
                    f"health= needs one port per process, got processes={processes}",
                    "start the processes one by one, each with its own port",
                )
            _run(self._supervise(processes, on_ready))

    def _run_here(self, link: SupervisorLink | None, on_ready: Callable[[], None]) -> None:
        if link is not None:
            self.name = link.worker
            on_ready = link.report_ready

        def on_first_pick(_: PickStop) -> None:
            unsubscribe()
            on_ready()

        return_large_buffers()
        picks = bool(self.served_queues or self.prefixes)
        unsubscribe = self.telemetry.subscribe(on_first_pick, PickStop)
        _run(self._run_until_stopped(link, (lambda: None) if picks else on_ready))

    async def _supervise(self, processes: int, on_ready: Callable[[], None]) -> None:
        _refuse_in_process_pool()
        # Open as a client: the schema exists before the processes start, and an embedded server outlives them.
        try:
            await super()._open()
            supervisor = Supervisor(processes, self.settings, self._database, self.telemetry, on_ready)
            has_succeeded = await supervisor.run()
        finally:
            await super()._close()
        if not has_succeeded:
            raise SystemExit(1)

    @contextmanager
    def in_thread(self) -> Generator[Client]:
        """Run in a separate thread, for programs without an event loop. The block gets a blocking client.

            with Worker([Checkout]).in_thread() as client:
                print(client.wait(client.insert(Checkout, Order(42))).result)

        Raises:
            WorkerStoppedError: a service of the worker failed; raised when the block ends.
        """
        started: threading.Event = threading.Event()
        outcome: list[BaseException] = []
        stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

        async def work() -> None:
            done = asyncio.Event()
            async with self:
                stop.append((asyncio.get_running_loop(), done))
                started.set()
                await done.wait()

        def serve() -> None:
            try:
                _run(work())
            except BaseException as error:  # noqa: BLE001 - raised in the calling thread
                outcome.append(error)
            finally:
                started.set()

        thread = threading.Thread(target=serve, name="gen_durable worker", daemon=True)
        thread.start()
        started.wait()
        try:
            if not outcome:
                with Client(self._given_dsn, settings=self.settings) as client:
                    yield client
        finally:
            for loop, done in stop:
                if not outcome:
                    loop.call_soon_threadsafe(done.set)
            thread.join()
        if outcome:
            raise outcome[0]

    async def _run_until_stopped(self, link: SupervisorLink | None, on_open: Callable[[], None]) -> None:
        stopping = asyncio.Event()
        was_signalled = is_open = False
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a running coroutine has a task

        def skip_drain() -> None:
            if self._engine is not None:
                self._engine.skip_drain()
            stopping.set()

        def on_signal() -> None:
            nonlocal was_signalled
            if was_signalled:
                skip_drain()
            elif not is_open:
                task.cancel()  # the startup may wait for a lock as long as another session holds it
            was_signalled = True
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        if link is not None:
            link.follow(stopping.set, skip_drain)
        try:
            async with self:
                is_open = True
                on_open()
                await stopping.wait()
                assert self._engine is not None  # noqa: S101 - started in __aenter__
                self._engine.is_signalled = True
        except asyncio.CancelledError:
            if is_open or not was_signalled:
                raise

    async def __aenter__(self) -> Self:
        self._scope = FailureScope()
        return await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        scope = self._scope
        assert scope is not None  # noqa: S101 - made in __aenter__
        await scope.leave()
        await super().__aexit__(kind, error, traceback)
        scope.conclude(error)

    def _on_failure(self, error: WorkerStoppedError) -> None:
        for poller in (self._waiting, self._following):
            if poller is not None:
                poller.fail(error)
        if self._scope is not None:
            self._scope.fail(error)

    async def _open(self) -> None:
        _refuse_in_process_pool()
        await super()._open()
        assert self._server is not None  # noqa: S101 - opened above
        sources = self._sources()
        self._connections = await Connections.open(
            self._server,
            self.settings,
            self._database,
            self._reply_timeouts,
            sources=len(sources),
            concurrency=sum(queue.concurrency for _, queue in sources),
        )
        resources = None
        if self._make_resources is not None:
            resources = await self._resources.enter_async_context(self._make_resources(self))
        if self._health_at is not None:
            self.health = Health(*self._health_at, {"/healthz": self._alive, "/readyz": self._ready})
            await self.health.open()
        self._engine = Engine(
            WorkerContext(
                self.name,
                self.settings,
                self._registry,
                self.telemetry,
                self._wakes,
                self._database_status,
            ),
            self._connections,
            sources=sources,
            sinks=self.sinks,
            schedules=self._schedules,
            worker_row=self._worker_row(),
            middleware=self._middleware,
            resources=resources,
            on_failure=self._on_failure,
        )
        await run_at_start(self._database, lambda: insert_missing(self._limits))
        await self._engine.start()

    async def _prepare(self, database: Database) -> None:
        await run_at_start(database, self._preparation, is_transaction=True)

    async def _close(self) -> None:
        try:
            # Keep the engine until it is drained: a second signal must reach it.
            if self._engine is not None:
                await self._engine.drain()
        finally:
            self._engine = None
            if self.health is not None:
                self.health.close()
                self.health = None
            try:
                await self._resources.aclose()
            finally:
                await self._disconnect()

    async def _disconnect(self) -> None:
        try:
            if self._connections is not None:
                await self._connections.close()
        finally:
            self._connections = None
            await super()._close()

    @property
    def _reply_timeouts(self) -> ReplyTimeouts:
        shortest = min([self.settings.lease, *self._registry.leases.values()])
        return ReplyTimeouts.of(shortest, is_pooled=self.settings.pooler == "transaction")

    def _pool_size(self) -> int:
        # One per dispatcher, and 5 for the worker as a client.
        return len(self.sinks) + 5

    def _alive(self) -> Answer:
        # An event loop that answers is alive.
        return HTTPStatus.OK, "alive"

    def _ready(self) -> Answer:
        unready = "starting" if self._engine is None else self._engine.unready()
        return (HTTPStatus.OK, "ready") if unready is None else (HTTPStatus.SERVICE_UNAVAILABLE, unready)

    def _worker_row(self) -> WorkerRow:
        fsms, fsm_versions = self._registry.keys
        return WorkerRow(
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=VERSION,
            queues=list(self.served_queues),
            capacities=[queue.concurrency for queue in self.served_queues.values()],
            capacity=self.settings.concurrency or None,
            prefixes=list(self.prefixes),
            prefix_capacities=[queue.concurrency for queue in self.prefixes.values()],
            leaves_unknown=self.leaves_unknown,
            fsms=fsms,
            fsm_versions=fsm_versions,
            fsm_steps=msgspec.json.encode(self._registry.steps).decode(),
        )

    def _sources(self) -> list[tuple[Source, Queue]]:
        return [
            *((FromQueue(name), queue) for name, queue in self.served_queues.items()),
            *(
                (FromPrefix(prefix, leaves_unknown=self.leaves_unknown), queue)
                for prefix, queue in self.prefixes.items()
            ),
        ]


def _refuse_in_process_pool() -> None:
    if IS_CHILD.is_set():
        raise UsageError(
            'a module with a pool="process" step starts a worker when it is imported',
            'start the worker below `if __name__ == "__main__":`',
        )


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Run like `asyncio.run`, but do not wait for a step that ignores its cancellation: its lease is released."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(main)
    finally:
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=shutdown_timeouts.CANCELLED_TASKS))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _prefixes(given: Mapping[str, int | Queue] | Iterable[str]) -> Mapping[str, Queue]:
    if isinstance(given, str):
        raise SettingsError("prefixes", "must be a list of prefixes, got a string")
    if not isinstance(given, Iterable):
        raise UsageError(f"prefixes= has type {type(given).__name__}", 'give a list: prefixes=["billing."]')
    # Check before they become keys: a list is not hashable.
    names = [checked_name(prefix, "a prefix in prefixes=") for prefix in given] or [_DEFAULT_PREFIX]
    for prefix in names:
        prefix_upper_bound(prefix)
    return _as_queues(given if given and isinstance(given, Mapping) else dict.fromkeys(names, Queue()))


def _sinks(given: SinkLike | Mapping[str, SinkLike] | None) -> Mapping[str, Sink]:
    if given is None:
        return {}
    named = given if isinstance(given, Mapping) else {"default": given}
    return {
        checked_name(name, "the name of a sink in sinks="): sink_of(sink, name)
        for name, sink in named.items()
    }


def _queues(registry: Registry, given: Mapping[str, int | Queue] | None) -> Mapping[str, Queue]:
    if given is None:
        return {name: Queue() for name in sorted({machine.queue for machine in registry})}
    if not isinstance(given, Mapping):
        raise UsageError(
            f"queues= has type {type(given).__name__}",
            'give the concurrency of each queue: queues={"default": 10}',
        )
    for name in given:
        checked_name(name, "the name of a queue in queues=")
    return _as_queues(given)


def _as_queues(given: Mapping[str, int | Queue]) -> Mapping[str, Queue]:
    return {
        name: queue if isinstance(queue, Queue) else Queue(concurrency=queue) for name, queue in given.items()
    }
