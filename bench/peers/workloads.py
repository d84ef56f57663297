"""The workloads, and how each of them is measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .adapters.adapter import STEPS
from .program import AdapterError, Program
from .server import Server, Session
from .systems import System

__all__ = ["TIMEOUT", "WORKLOADS", "Bench", "Figures", "Workload"]

Figures = dict[str, float]
"""Operations per second and microseconds of processor time per operation, or milliseconds of latency."""

_POLL: Final = 0.02
TIMEOUT: Final = 90.0
_PROBES: Final = 150
_LOAD: Final = 1000.0
"""Jobs per second during `latency under load`; at most half of what the system can do."""


class Bench:
    """The server, the installed systems, and the size of the measurements."""

    def __init__(self, server: Server, home: Path, *, scale: float, rows: int, prefix: str = "") -> None:
        self.server = server
        self._prefix = prefix
        self.scale = scale
        self.rows = rows
        self._home = home
        self.about: dict[str, dict[str, Any]] = {}
        """What each adapter says about itself."""
        self.rates: dict[str, float] = {}
        """No-op jobs per second of each system, as last measured."""

    def prepare(self, system: System) -> None:
        """Install the schema of a system in a template database."""
        self.server.create(template := self._template(system))
        with self._program(system, self.server.dsn(template)) as program:
            self.about[system.name] = program.ask("describe")
            program.ask("install")
        with Session(self.server.dsn(template)) as session:
            self.about[system.name]["schema"] = session.schema_digest()

    def count(self, system: System, share: float = 1.0) -> int:
        """Return the number of jobs of a measurement."""
        return max(20, int(system.jobs * share * self.scale))

    @contextmanager
    def opened(self, system: System, workers: int = 1, database: str = "") -> Iterator[Opened]:
        """Start a producer and workers of a system on a fresh database, or on one that is kept."""
        with ExitStack() as stack:
            if not database:
                self.server.create(f"{self._prefix}measured", self._template(system))
                stack.callback(self.server.drop, f"{self._prefix}measured")
            dsn = self.server.dsn(database or f"{self._prefix}measured")
            session = stack.enter_context(Session(dsn))
            producer, *others = (stack.enter_context(self._program(system, dsn)) for _ in range(1 + workers))
            producer.ask("open")
            yield Opened(self, session, producer, others, self.about[system.name])

    def filled(self, system: System) -> str:
        """Return a database with `rows` rows that no worker has to run. It is kept for the next run."""
        name = self.name_of_filled(system)
        if not self.server.has(name):
            self.server.create(filling := f"{self._prefix}filling", self._template(system))
            with Session(self.server.dsn(filling)) as session:
                session.execute(self.about[system.name]["fill"].replace(":rows", str(self.rows)))
                session.execute("vacuum analyze")
            self.server.rename(filling, name)
            self.server.checkpoint()
        return name

    def _template(self, system: System) -> str:
        return f"{self._prefix}template_{system.name}"

    def name_of_filled(self, system: System) -> str:
        about = self.about[system.name]
        return f"{self._prefix}rows_{system.name}_{about['version']}_{about['schema']}_{self.rows}"

    def _program(self, system: System, dsn: str) -> Program:
        return Program(system.command(self._home), dsn, self._home / "adapters.log", TIMEOUT)


class Opened:
    """A producer and workers of a system on one database."""

    def __init__(
        self, bench: Bench, session: Session, producer: Program, workers: list[Program], about: dict[str, Any]
    ) -> None:
        self.bench = bench
        self.session = session
        self.producer = producer
        self.workers = workers
        self._about = about
        self._warm = 0

    def settle(self) -> None:
        """Vacuum and write a checkpoint, so that a measurement does not pay for its preparation."""
        self.session.execute("vacuum analyze")
        self.bench.server.checkpoint()

    def drain(self, task: str, jobs: int, operations: int, **request: Any) -> Figures:
        """Measure how warm workers work off a backlog: until `jobs` jobs are finished and committed.

        The workers are stopped while the backlog is inserted, so starting up and connecting is not measured.
        """
        self._warm_up(task, **({"count": 1, "value": 10} if request else {"count": max(20, jobs // 20)}))
        for worker in self.workers:
            worker.pause()
        self.producer.ask("insert", task=task, **(request or {"count": jobs}))
        self.settle()
        stop = self._begin(self.workers)
        for worker in self.workers:
            worker.resume()
        self._wait(jobs)
        return stop(operations)

    def call(self, operations: int, op: str, **request: Any) -> Figures:
        """Measure one request to the producer."""
        stop = self._begin([self.producer])
        self.producer.ask(op, **request)
        return stop(operations)

    def _warm_up(self, task: str, **request: Any) -> None:
        for worker in self.workers:
            worker.send("work", task=task)
        for worker in self.workers:
            worker.receive()
        self.producer.ask("insert", task=task, **request)
        self._wait(request["count"])
        self._warm = request["count"]
        time.sleep(0.5)  # other processes than the one that ran the jobs may still be starting

    def _wait(self, jobs: int) -> None:
        while sum(worker.ask("progress")["done"] for worker in self.workers) < jobs + self._warm:
            time.sleep(_POLL)
        while self.session.is_true(self._about["pending"]):
            time.sleep(_POLL / 4)

    def _begin(self, measured: list[Program]) -> Callable[[int], Figures]:
        begun = time.monotonic()
        server, before = self.session.server_seconds(), sum(each.seconds for each in measured)

        def stop(operations: int) -> Figures:
            elapsed = time.monotonic() - begun
            server_us = (self.session.server_seconds() - server) / operations * 1e6
            worker_us = (sum(each.seconds for each in measured) - before) / operations * 1e6
            return {
                "per_second": operations / elapsed,
                "worker_us": worker_us,
                "server_us": server_us,
                "total_us": worker_us + server_us,
            }

        return stop


def _batch_insert(bench: Bench, system: System) -> Figures | None:
    if not bench.about[system.name]["has_batches"]:
        return None
    count = bench.count(system)
    with bench.opened(system, workers=0) as run:
        run.producer.ask("insert", task="noop", count=100)  # connects and prepares the statements
        run.settle()
        return run.call(count, "insert", task="noop", count=count)


def _single_insert(bench: Bench, system: System) -> Figures | None:
    count = min(300, bench.count(system))
    with bench.opened(system, workers=0) as run:
        run.producer.ask("insert_one", task="noop", count=20)
        run.settle()
        return run.call(count, "insert_one", task="noop", count=count)


def _jobs(
    task: str, processes: int = 1, share: float = 1.0, most: int = 1_000_000
) -> Callable[[Bench, System], Figures | None]:
    """Return the measurement of a backlog of jobs."""

    def measure(bench: Bench, system: System) -> Figures | None:
        if task not in bench.about[system.name]["tasks"]:
            return None
        jobs = min(most, bench.count(system, share))
        with bench.opened(system, processes) as run:
            found = run.drain(task, jobs, jobs * (STEPS if task == "chain" else 1))
        if task == "noop" and processes == 1:
            bench.rates[system.name] = found["per_second"]
        return found

    return measure


def _fan_out(bench: Bench, system: System) -> Figures | None:
    if "fan" not in bench.about[system.name]["tasks"]:
        return None
    children = min(1000, bench.count(system, 0.25))
    with bench.opened(system) as run:
        return run.drain("fan", 1, children, count=1, value=children)


def _many_rows(bench: Bench, system: System) -> Figures | None:
    if "probe" not in bench.about[system.name]["tasks"]:
        return None  # the bare loop
    jobs = bench.count(system)
    with bench.opened(system, database=bench.filled(system)) as run:
        return run.drain("noop", jobs, jobs)


def _latency(bench: Bench, system: System) -> Figures | None:
    """An idle worker; probes from another process, then from its own."""
    if "probe" not in bench.about[system.name]["tasks"]:
        return None
    with bench.opened(system) as run:
        (worker,), other = run.workers, run.producer
        worker.ask("work")
        _probe(other, worker, 10)
        elsewhere = _probe(other, worker, _PROBES)
        worker.ask("open")
        _probe(worker, worker, 10)
        return _percentiles(elsewhere) | _percentiles(_probe(worker, worker, _PROBES), "same_process_")


def _latency_under_load(bench: Bench, system: System) -> Figures | None:
    if "probe" not in bench.about[system.name]["tasks"]:
        return None
    load = min(_LOAD, bench.rates.get(system.name, system.jobs / 2) / 2)
    with bench.opened(system, workers=2) as run:
        (worker, loader), other = run.workers, run.producer
        worker.ask("work")
        loader.ask("open")
        _probe(other, worker, 10)
        loader.send("load", rate=load, seconds=4.0)
        time.sleep(0.5)
        found = _percentiles(_probe(other, worker, _PROBES))
        loader.receive()
        return found | {"load": load}


def _probe(sender: Program, worker: Program, count: int) -> list[float]:
    found: list[float] = []
    sender.ask("send", count=count, pause=0.01)
    give_up = time.monotonic() + 60
    while len(found) < count:
        if time.monotonic() > give_up:
            raise AdapterError(f"{count - len(found)} of {count} probes did not start within 60 s")
        time.sleep(_POLL)
        found += worker.ask("latencies")["latencies"]
    return found


def _percentiles(times: list[float], prefix: str = "") -> Figures:
    cuts = statistics.quantiles(times, n=100)
    return {f"{prefix}p50_ms": cuts[49], f"{prefix}p99_ms": cuts[98]}


def _busy_key(bench: Bench, system: System) -> Figures | None:
    """Start of a job behind many older rows whose concurrency key is busy."""
    busy_key = bench.about[system.name].get("busy_key")
    if not busy_key:
        return None
    with bench.opened(system) as run:
        run.session.execute(busy_key)
        run.settle()
        run.workers[0].ask("work")
        return {"start_s": _probe(run.producer, run.workers[0], 1)[0] / 1000}


@dataclass(frozen=True)
class Workload:
    """A workload. `unit` is what an operation is; a latency has none."""

    name: str
    title: str
    unit: str
    note: str
    """What is measured, for the page."""
    measure: Callable[[Bench, System], Figures | None]
    is_core: bool = False
    """Whether --quick runs it."""


WORKLOADS: Final = (
    Workload(
        "noop",
        "no-op jobs",
        "job",
        "A backlog of jobs that do nothing, one worker process.",
        _jobs("noop"),
        is_core=True,
    ),
    Workload(
        "insert_batch",
        "batch insert",
        "row",
        "One client inserts jobs in the largest batches that the system takes.",
        _batch_insert,
        is_core=True,
    ),
    Workload(
        "insert_one",
        "single insert",
        "row",
        "One client inserts one job after another. Each insert waits for its flush to disk.",
        _single_insert,
    ),
    Workload(
        "chain",
        f"{STEPS}-step workflow",
        "step",
        f"Workflows of {STEPS} durable steps that do nothing; per step. Job queues have no workflows.",
        _jobs("chain", share=0.1),
        is_core=True,
    ),
    Workload(
        "suspend",
        "jobs that suspend once",
        "job",
        "Jobs that yield to the event loop once.",
        _jobs("suspend"),
        is_core=True,
    ),
    Workload(
        "fan_out",
        "fan-out with join",
        "child",
        "One parent starts children and continues when all are finished; per child. pg-boss looks for finished "
        "children once per second.",
        _fan_out,
    ),
    Workload(
        "failures",
        "1 % failures with a retry",
        "job",
        "The first attempt of every hundredth job fails; it is retried with the smallest delay that the system offers.",
        _jobs("flaky"),
    ),
    Workload(
        "limited",
        "at most 10 at once",
        "job",
        "All jobs share a concurrency limit of 10 across all processes. graphile-worker has queues, and Procrastinate "
        "has locks, that run one job at a time: they use 10 of them.",
        _jobs("limited", most=1000),
    ),
    Workload(
        "noop4",
        "no-op jobs, 4 worker processes",
        "job",
        "The same backlog, shared by four processes.",
        _jobs("noop", processes=4),
        is_core=True,
    ),
    Workload(
        "rows",
        "no-op jobs beside 5 million rows",
        "job",
        "The table has 5 million finished rows; 5 million future ones for systems that delete finished jobs.",
        _many_rows,
    ),
    Workload(
        "latency",
        "insert to start, idle",
        "",
        "From the call of insert to the start of the handler. Idle: nothing else runs, but the worker has just run the "
        "probe before, 10 ms ago, so gen_durable polls every 20 ms (`min_poll_interval`). After a longer silence it "
        "polls at `poll_interval`. Jobs come from another process, and then from the process of the worker.",
        _latency,
        is_core=True,
    ),
    Workload(
        "latency_load",
        "insert to start, under load",
        "",
        "The same from another process, while a third process inserts jobs: 1,000 per second, or half of what the "
        "system can do.",
        _latency_under_load,
    ),
    Workload(
        "busy_key",
        "start behind 50,000 rows of a busy key",
        "",
        "A job is inserted behind 50,000 due rows whose concurrency key has no free slot.",
        _busy_key,
        is_core=True,
    ),
)
