"""`./run bench`: throughput of the engine next to its bare loop, in interleaved rounds."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gen_durable import (
    AsyncClient,
    CloudEvent,
    ConcurrencyLimit,
    Machine,
    Queue,
    RateLimit,
    Settings,
    Spec,
    Status,
    Worker,
)
from gen_durable._core.new_rows import new_instance
from gen_durable._db.connector import connect
from gen_durable._db.pool import Database
from gen_durable._runtime.maintenance.backlog import Backlog
from gen_durable._runtime.step_counts import StepCounts
from gen_durable.config import AuditLevel
from gen_durable.contrib.opentelemetry import instrument
from gen_durable.telemetry import StepStop

from .bare import bare_inserts, bare_loop
from .machines import (
    CHAIN,
    MACHINES,
    Chain,
    Family,
    Loud,
    One,
    Order,
    Ordered,
    Suspending,
    Threaded,
    Timed,
    Undoable,
    Undone,
    Waiting,
)
from .peers.processor_time import server_seconds

__all__ = ["MEASUREMENTS", "measure"]

CONCURRENCY = 1000
BLOCKED_ROWS = 50_000
SCHEMA = "gen_durable_bench"

HOLDER = f"""
insert into "{SCHEMA}".gen_durable
       (fsm, step, queue, status, lease_token, lease_expires_at, concurrency_key, concurrency_slot)
values ('One', 'run', 'elsewhere', 'executing', 1, 'infinity', 'busy', 0)"""  # noqa: S608 - our own constants


SIGNALS = f"""
insert into "{SCHEMA}".signals (target_id, name, payload) select id, 'go', '1' from "{SCHEMA}".gen_durable;
update "{SCHEMA}".gen_durable set has_signals = true"""  # noqa: S608 - our own constants


class Rate(NamedTuple):
    """Operations per second, and processor time per operation: of this process, and of the server."""

    per_second: float
    python_us: float
    server_us: float


class Bench:
    """Measurements on one server. The schema is emptied before each of them."""

    def __init__(self, dsn: str, jobs: int) -> None:
        self.dsn = dsn
        self.jobs = jobs
        self.settings = Settings(schema=SCHEMA)

    async def begin(self) -> None:
        """Drop the schema, which may be of another version."""
        await self._execute(f'drop schema if exists "{SCHEMA}" cascade')

    async def prepare(self) -> None:
        """Empty and vacuum the schema, so that a measurement does not pay for the previous one."""
        async with AsyncClient(self.dsn, settings=self.settings):
            pass  # installs the schema
        conn = await connect(self.dsn)
        try:
            await conn.execute(
                f'truncate "{SCHEMA}".gen_durable, "{SCHEMA}".signals, "{SCHEMA}".executions, "{SCHEMA}".outbox, '
                f'"{SCHEMA}".buckets, "{SCHEMA}".limits, "{SCHEMA}".audit_events'
            )
            await conn.execute(f"select \"{SCHEMA}\".set_audit('failures')")
            await conn.execute(f'vacuum analyze "{SCHEMA}".gen_durable')
            await conn.execute("checkpoint")
        finally:
            await conn.close()

    async def jobs_objects(self) -> Rate:
        return await self._run(Ordered)

    async def jobs_suspending(self) -> Rate:
        return await self._run(Suspending)

    async def jobs_timed(self) -> Rate:
        return await self._run(Timed)

    async def jobs_threaded(self) -> Rate:
        return await self._run(Threaded)

    async def jobs_wrapped(self) -> Rate:
        return await self._run(One, middleware=[_pass_on])

    async def jobs_unrecorded(self) -> Rate:
        return await self._run(One, settings=msgspec.structs.replace(self.settings, executions="off"))

    async def jobs_uncounted(self) -> Rate:
        """Run jobs without rollups, which only the dashboard and `stats` read."""
        with _without_rollups():
            return await self._run(One)

    async def jobs_traced(self) -> Rate:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
        stop = instrument(provider)
        try:
            return await self._run(One)
        finally:
            stop()

    async def signalled(self) -> Rate:
        """Run instances of two steps whose signals have arrived before the worker starts."""
        await self._insert(Waiting, self.jobs)
        await self._execute(SIGNALS)
        return await self._work(self.jobs, Waiting)

    async def jobs_bare(self) -> Rate:
        await self._insert(One, self.jobs)
        async with await Database.open(self.dsn, SCHEMA, size=2) as database:
            return await self._rate(self.jobs, bare_loop(database, "One", "default", 1))

    async def jobs_engine(self) -> Rate:
        return await self._run(One)

    async def jobs_slots(self) -> Rate:
        """Run jobs under a concurrency limit that is never reached: one key, more slots than jobs."""
        return await self._limited(ConcurrencyLimit("bench", 30_000), concurrency_key="bench")

    async def jobs_tokens(self) -> Rate:
        """Run jobs under a rate limit that is never reached: one bucket."""
        return await self._limited(RateLimit("bench", 1_000_000_000), rate_limit="bench")

    async def jobs_unaudited(self) -> Rate:
        """Run jobs with the audit off."""
        return await self._audited("off")

    async def jobs_audited(self) -> Rate:
        """Run jobs with audit level `all`: three events per job, one of them before the measurement."""
        return await self._audited("all")

    async def jobs_unknown_machine(self) -> Rate:
        """Run jobs behind 50,000 rows of a machine that is not registered."""
        await self._insert_blocked("fsm, step) select 'Unknown', 's'")
        return await self.jobs_engine()

    async def jobs_busy_key(self) -> Rate:
        """Run jobs behind 50,000 rows of a busy key. Gating these rows is part of the measurement."""
        await self._insert_blocked("fsm, step, concurrency_key) select 'One', 'run', 'busy'")
        await self._execute(HOLDER)
        await self._insert(One, self.jobs)
        async with AsyncClient(self.dsn, settings=self.settings) as client:
            return await self._rate(self.jobs, self._until_done(client, self.jobs))

    async def chain_bare(self) -> Rate:
        rows = self.jobs // CHAIN
        await self._insert(Chain, rows)
        async with await Database.open(self.dsn, SCHEMA, size=2) as database:
            return await self._rate(rows * CHAIN, bare_loop(database, "Chain", "default", CHAIN))

    async def chain_engine(self) -> Rate:
        await self._insert(Chain, self.jobs // CHAIN)
        return await self._work(self.jobs // CHAIN * CHAIN, Chain)

    async def chain_history(self) -> Rate:
        await self._insert(Chain, self.jobs // CHAIN)
        settings = msgspec.structs.replace(self.settings, history="all")
        return await self._work(self.jobs // CHAIN * CHAIN, Chain, settings=settings)

    async def chain_uncounted(self) -> Rate:
        await self._insert(Chain, self.jobs // CHAIN)
        with _without_rollups():
            return await self._work(self.jobs // CHAIN * CHAIN, Chain)

    async def chain_undoable(self) -> Rate:
        await self._insert(Undoable, self.jobs // CHAIN)
        return await self._work(self.jobs // CHAIN * CHAIN, Undoable)

    async def undone(self) -> Rate:
        """Run instances of four steps that fail, and their three undo steps; per step."""
        instances = self.jobs // CHAIN
        await self._insert(Undone, instances)
        return await self._work(instances * 7, Undone)

    async def inserts_bare(self) -> Rate:
        rows = [new_instance(Spec(One, number), 2**20) for number in range(self.jobs)]
        async with await Database.open(self.dsn, SCHEMA, size=1) as database:
            return await self._rate(self.jobs, bare_inserts(database, rows))

    async def inserts_engine(self) -> Rate:
        async with AsyncClient(self.dsn, settings=self.settings) as client:
            specs = [Spec(One, number) for number in range(self.jobs)]
            return await self._rate(self.jobs, client.insert_all(specs))

    async def fan_out(self) -> Rate:
        children = min(self.jobs, 10_000)
        async with self._worker() as worker:
            async with asyncio.timeout(120):
                return await self._rate(children, _finish(worker, Spec(Family, children)))

    async def jobs_emitting(self) -> Rate:
        """Run jobs that emit an event each. The events stay unpublished."""
        return await self._run(Loud)

    async def published(self) -> Rate:
        """Publish events that are already committed to a sink that does nothing, with one dispatcher."""
        await self.jobs_emitting()
        async with AsyncClient(self.dsn, settings=self.settings) as client:
            return await self._rate(self.jobs, self._publish(client))

    async def _publish(self, client: AsyncClient) -> None:
        async with self._worker(sinks=_swallow):
            while await client.events(state="pending", limit=1):
                await asyncio.sleep(0.02)

    async def latency(self) -> list[float]:
        """Return the milliseconds from the call of insert to the start of the step, in one process, sorted."""
        started: list[float] = []
        times: list[float] = []
        async with self._worker() as worker:
            worker.telemetry.subscribe(
                lambda event: started.append(time.monotonic() - event.duration.total_seconds()), StepStop
            )
            for number in range(300):
                before = time.monotonic()
                await worker.wait(await worker.insert(One, number))
                times.append((started[-1] - before) * 1000)
        return sorted(times[20:])  # the first inserts prepare their statements

    def _worker(self, **options: Any) -> Worker:
        options = {"settings": self.settings, **options}
        queues = {"default": Queue(concurrency=CONCURRENCY)}
        return Worker(list(MACHINES), dsn=self.dsn, queues=queues, **options)

    async def _insert(self, machine: type[Machine[Any, Any]], count: int, **options: Any) -> None:
        state = Order(7, "Ada", ["lens", "tripod"]) if machine is Ordered else 0
        async with AsyncClient(self.dsn, settings=self.settings) as client:
            await client.insert_all([Spec(machine, state, **options) for _ in range(count)])

    async def _limited(self, limit: ConcurrencyLimit | RateLimit, **options: Any) -> Rate:
        async with AsyncClient(self.dsn, settings=self.settings) as client:
            await client.set_limit(limit)
        await self._insert(One, self.jobs, **options)
        return await self._work(self.jobs)

    async def _audited(self, level: AuditLevel) -> Rate:
        async with AsyncClient(self.dsn, settings=self.settings) as client:
            await client.set_audit(level)
        return await self.jobs_engine()

    async def _insert_blocked(self, rows: str) -> None:
        await self._execute(
            f'insert into "{SCHEMA}".gen_durable ({rows} from generate_series(1, {BLOCKED_ROWS})'
        )

    async def _rate(self, count: int, work: Awaitable[object]) -> Rate:
        conn = await connect(self.dsn)
        try:
            backend = conn.get_server_pid()
            begun, python, server = time.monotonic(), time.process_time(), server_seconds(backend)
            await work
            return Rate(
                count / (time.monotonic() - begun),
                (time.process_time() - python) / count * 1e6,
                (server_seconds(backend) - server) / count * 1e6,
            )
        finally:
            await conn.close()

    async def _execute(self, text: str) -> None:
        conn = await connect(self.dsn)
        try:
            await conn.execute(text)
        finally:
            await conn.close()

    async def _until_done(self, client: AsyncClient, count: int) -> None:
        async with self._worker():
            while await client.count(status=Status.DONE) < count:
                await asyncio.sleep(0.02)

    async def _run(self, machine: type[Machine[Any, Any]], **options: Any) -> Rate:
        """Insert jobs of this machine, and measure a worker with these options."""
        await self._insert(machine, self.jobs)
        return await self._work(self.jobs, machine, **options)

    async def _work(self, steps: int, machine: type[Machine[Any, Any]] = One, **options: Any) -> Rate:
        async with AsyncClient(self.dsn, settings=self.settings) as client:
            return await self._rate(steps, self._run_until_idle(client, machine, options))

    async def _run_until_idle(
        self, client: AsyncClient, machine: type[Machine[Any, Any]], options: dict[str, Any]
    ) -> None:
        async with self._worker(**options):
            while await client.count(machine, status=(Status.RUNNABLE, Status.EXECUTING)):
                await asyncio.sleep(0.02)


@contextmanager
def _without_rollups() -> Iterator[None]:
    async def idle(_: Backlog) -> timedelta:
        return timedelta(hours=1)

    with patch.object(StepCounts, "count", lambda *_: None), patch.object(Backlog, "tick", idle):
        yield


async def _pass_on(ctx: Any, call: Any) -> Any:
    return await call()


async def _swallow(event: CloudEvent) -> None:
    """Discard the event."""


async def _finish(worker: Worker, spec: Spec[int, int]) -> None:
    (parent,) = await worker.insert_all([spec])
    await worker.wait(parent)


PAIRS: tuple[tuple[str, str, str], ...] = (
    ("jobs", "jobs_engine", "jobs_bare"),
    ("chained steps", "chain_engine", "chain_bare"),
    ("batch inserts", "inserts_engine", "inserts_bare"),
    ("chained steps, with history", "chain_history", "chain_engine"),
    ("chained steps, with undo", "chain_undoable", "chain_engine"),
    ("chained steps, without rollups", "chain_uncounted", "chain_engine"),
)

VARIANTS: tuple[tuple[str, str], ...] = (
    ("jobs with an object as state", "jobs_objects"),
    ("jobs that suspend", "jobs_suspending"),
    ("jobs with a timeout", "jobs_timed"),
    ("jobs with middleware", "jobs_wrapped"),
    ("jobs with tracing", "jobs_traced"),
    ("jobs in threads", "jobs_threaded"),
    ("jobs without records", "jobs_unrecorded"),
    ("jobs without rollups", "jobs_uncounted"),
    ("jobs under a concurrency limit", "jobs_slots"),
    ("jobs under a rate limit", "jobs_tokens"),
    ("jobs with the audit off", "jobs_unaudited"),
    ("jobs with the whole audit", "jobs_audited"),
    ("jobs with an event each", "jobs_emitting"),
    ("jobs behind an unknown machine", "jobs_unknown_machine"),
    ("jobs behind a busy key", "jobs_busy_key"),
    ("instances with a signal", "signalled"),
    ("children of a fan-out", "fan_out"),
    ("steps that fail and are undone", "undone"),
    ("events published", "published"),
)


MEASUREMENTS: tuple[str, ...] = tuple(
    dict.fromkeys([*(name for _, *pair in PAIRS for name in pair), *(name for _, name in VARIANTS)])
)


async def measure(dsn: str, jobs: int, rounds: int, names: Sequence[str] = MEASUREMENTS) -> None:
    """Run all rounds of the named measurements and print a table."""
    bench = Bench(dsn, jobs)
    await bench.begin()
    found: dict[str, list[Rate]] = {}
    latencies: list[list[float]] = []
    for number in range(1, rounds + 1):
        for name in names:
            await bench.prepare()
            work: Callable[[], Awaitable[Rate]] = getattr(bench, name)
            found.setdefault(name, []).append(rate := await work())
            print(f"round {number}/{rounds}: {name:<20} {rate.per_second:>10,.0f}/s", file=sys.stderr)
        await bench.prepare()
        latencies.append(await bench.latency())
    print(_table(found, latencies, jobs, rounds))


def _table(found: dict[str, list[Rate]], latencies: list[list[float]], jobs: int, rounds: int) -> str:
    lines = [
        f"{jobs:,} jobs, medians of {rounds} interleaved rounds, execution records on, fsync on",
        "",
        f"{'':<34}{'per second':>12}{'ratio':>8}{'Python µs':>12}{'server µs':>12}",
    ]
    for title, engine, bare in PAIRS:
        if engine in found:
            lines.append(_line(title, found[engine], found.get(bare)))
        if bare.endswith("_bare") and bare in found:
            lines.append(_line(f"{title}, bare loop", found[bare]))
    lines += [
        _line(title, found[name], found.get("jobs_engine")) for title, name in VARIANTS if name in found
    ]
    p50 = statistics.median(times[len(times) // 2] for times in latencies)
    p99 = statistics.median(times[len(times) * 99 // 100] for times in latencies)
    lines += [
        "",
        "ratio: per second, against the bare loop of the same operation; with history, with undo or without rollups, "
        "against chained steps; of the variants, against jobs",
        f"insert to start in the same process: p50 {p50:.1f} ms, p99 {p99:.1f} ms",
    ]
    return "\n".join(lines)


def _line(title: str, rates: list[Rate], others: list[Rate] | None = None) -> str:
    rate = Rate(*(statistics.median(column) for column in zip(*rates, strict=True)))
    ratio = ""
    if others is not None:
        pairs = zip(rates, others, strict=True)
        ratio = f"{statistics.median(one.per_second / other.per_second for one, other in pairs):.2f}"
    return f"{title:<34}{rate.per_second:>12,.0f}{ratio:>8}{rate.python_us:>12.1f}{rate.server_us:>12.1f}"
