"""`./run bench`: throughput of the engine next to its bare loop, in interleaved rounds."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

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
from gen_durable.config import AuditLevel
from gen_durable.events import SinkLike
from gen_durable.telemetry import StepStop

from .bare import bare_inserts, bare_loop
from .machines import CHAIN, Chain, Family, Loud, One

__all__ = ["measure"]

CONCURRENCY = 1000
BLOCKED_ROWS = 50_000
SCHEMA = "gen_durable_bench"

HOLDER = f"""
insert into "{SCHEMA}".gen_durable
       (fsm, step, queue, status, lease_token, lease_expires_at, concurrency_key, concurrency_slot)
values ('One', 'run', 'elsewhere', 'executing', 1, 'infinity', 'busy', 0)"""  # noqa: S608 - our own constants


class Rate(NamedTuple):
    """Operations per second, and processor time of this process per operation."""

    per_second: float
    python_us: float


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

    async def jobs_bare(self) -> Rate:
        await self._insert(One, self.jobs)
        async with await Database.open(self.dsn, SCHEMA, size=2) as database:
            return await _rate(self.jobs, bare_loop(database, "One", "default", 1))

    async def jobs_engine(self) -> Rate:
        await self._insert(One, self.jobs)
        return await self._work(self.jobs)

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
            return await _rate(self.jobs, self._until_done(client, self.jobs))

    async def chain_bare(self) -> Rate:
        rows = self.jobs // CHAIN
        await self._insert(Chain, rows)
        async with await Database.open(self.dsn, SCHEMA, size=2) as database:
            return await _rate(rows * CHAIN, bare_loop(database, "Chain", "default", CHAIN))

    async def chain_engine(self) -> Rate:
        await self._insert(Chain, self.jobs // CHAIN)
        return await self._work(self.jobs // CHAIN * CHAIN, Chain)

    async def inserts_bare(self) -> Rate:
        rows = [new_instance(Spec(One, number), 2**20) for number in range(self.jobs)]
        async with await Database.open(self.dsn, SCHEMA, size=1) as database:
            return await _rate(self.jobs, bare_inserts(database, rows))

    async def inserts_engine(self) -> Rate:
        async with AsyncClient(self.dsn, settings=self.settings) as client:
            specs = [Spec(One, number) for number in range(self.jobs)]
            return await _rate(self.jobs, client.insert_all(specs))

    async def fan_out(self) -> Rate:
        children = min(self.jobs, 10_000)
        async with self._worker() as worker:
            async with asyncio.timeout(120):
                return await _rate(children, _finish(worker, Spec(Family, children)))

    async def jobs_emitting(self) -> Rate:
        """Run jobs that emit an event each. The events stay unpublished."""
        await self._insert(Loud, self.jobs)
        return await self._work(self.jobs, Loud)

    async def published(self) -> Rate:
        """Publish events that are already committed to a sink that does nothing, with one dispatcher."""
        await self.jobs_emitting()
        async with AsyncClient(self.dsn, settings=self.settings) as client:
            return await _rate(self.jobs, self._publish(client))

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

    def _worker(self, sinks: SinkLike | None = None) -> Worker:
        return Worker(
            [One, Loud, Chain, Family],
            sinks=sinks,
            dsn=self.dsn,
            queues={"default": Queue(concurrency=CONCURRENCY)},
            settings=self.settings,
        )

    async def _insert(self, machine: type[Machine[int, int]], count: int, **options: Any) -> None:
        async with AsyncClient(self.dsn, settings=self.settings) as client:
            await client.insert_all([Spec(machine, 0, **options) for _ in range(count)])

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

    async def _work(self, steps: int, machine: type[Machine[int, int]] = One) -> Rate:
        async with AsyncClient(self.dsn, settings=self.settings) as client:
            return await _rate(steps, self._run_until_idle(client, machine))

    async def _run_until_idle(self, client: AsyncClient, machine: type[Machine[int, int]]) -> None:
        async with self._worker():
            while await client.count(machine, status=(Status.RUNNABLE, Status.EXECUTING)):
                await asyncio.sleep(0.02)


async def _rate(count: int, work: Awaitable[object]) -> Rate:
    begun, busy = time.monotonic(), time.process_time()
    await work
    return Rate(count / (time.monotonic() - begun), (time.process_time() - busy) / count * 1e6)


async def _swallow(event: CloudEvent) -> None:
    """Discard the event."""


async def _finish(worker: Worker, spec: Spec[int, int]) -> None:
    (parent,) = await worker.insert_all([spec])
    await worker.wait(parent)


PAIRS: tuple[tuple[str, str, str], ...] = (
    ("jobs/s", "jobs_engine", "jobs_bare"),
    ("chained steps/s", "chain_engine", "chain_bare"),
    ("batch inserts/s", "inserts_engine", "inserts_bare"),
)


# Variants of jobs/s, shown as a share of it.
VARIANTS: tuple[tuple[str, str], ...] = (
    ("under a concurrency limit", "jobs_slots"),
    ("under a rate limit", "jobs_tokens"),
    ("with the audit off", "jobs_unaudited"),
    ("with the whole audit", "jobs_audited"),
    ("behind an unknown machine", "jobs_unknown_machine"),
    ("behind a busy key", "jobs_busy_key"),
)


async def measure(dsn: str, jobs: int, rounds: int) -> None:
    """Run all rounds and print a table."""
    bench = Bench(dsn, jobs)
    await bench.begin()
    found: dict[str, list[Rate]] = {}
    latencies: list[list[float]] = []
    for number in range(1, rounds + 1):
        for name in [
            *(name for _, *pair in PAIRS for name in pair),
            *(name for _, name in VARIANTS),
            "fan_out",
            "jobs_emitting",
            "published",
        ]:
            await bench.prepare()
            work: Callable[[], Awaitable[Rate]] = getattr(bench, name)
            found.setdefault(name, []).append(rate := await work())
            print(f"round {number}/{rounds}: {name:<15} {rate.per_second:>10,.0f}/s", file=sys.stderr)
        await bench.prepare()
        latencies.append(await bench.latency())
    print(_table(found, latencies, jobs, rounds))


def _table(found: dict[str, list[Rate]], latencies: list[list[float]], jobs: int, rounds: int) -> str:
    rate = {name: statistics.median(one.per_second for one in rates) for name, rates in found.items()}
    python = {name: statistics.median(one.python_us for one in rates) for name, rates in found.items()}
    lines = [
        f"{jobs:,} jobs, medians of {rounds} interleaved rounds, execution records on, fsync on",
        "",
        f"{'':<26}{'engine':>12}{'bare loop':>12}{'ratio':>8}{'µs each, of which Python':>32}",
    ]
    for title, engine, bare in PAIRS:
        pairs = zip(found[engine], found[bare], strict=True)
        ratio = statistics.median(one.per_second / other.per_second for one, other in pairs)
        split = (
            f"{1e6 / rate[engine]:.0f}: {python[engine]:.0f}, bare {1e6 / rate[bare]:.0f}: {python[bare]:.0f}"
        )
        lines.append(f"{title:<26}{rate[engine]:>12,.0f}{rate[bare]:>12,.0f}{ratio:>8.2f}{split:>32}")
    for title, name in VARIANTS:
        both = zip(found[name], found["jobs_engine"], strict=True)
        share = statistics.median(one.per_second / other.per_second for one, other in both)
        lines.append(f"{title:<26}{rate[name]:>12,.0f}{'':>12}{share:>8.2f} of jobs/s")
    share = rate["fan_out"] / rate["jobs_engine"]
    lines.append(f"{'fan-out, children/s':<26}{rate['fan_out']:>12,.0f}{'':>12}{share:>8.2f} of jobs/s")
    share = rate["jobs_emitting"] / rate["jobs_engine"]
    lines.append(
        f"{'jobs/s with an event each':<26}{rate['jobs_emitting']:>12,.0f}{'':>12}{share:>8.2f} of jobs/s"
    )
    lines.append(f"{'events published/s':<26}{rate['published']:>12,.0f}")
    p50 = statistics.median(times[len(times) // 2] for times in latencies)
    p99 = statistics.median(times[len(times) * 99 // 100] for times in latencies)
    lines.append(f"{'insert to start, ms':<26}{f'p50 {p50:.1f}':>12}{f'p99 {p99:.1f}':>12}")
    return "\n".join(lines)
