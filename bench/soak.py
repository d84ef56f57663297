"""`./run bench --soak MINUTES`: the memory of a worker over time, with and without cut connections.

Two workers run at the same time, each on a schema of its own. A proxy cuts connections of the second one. Everything
but the workers runs in this process: producers, proxy, report.
"""

from __future__ import annotations

import asyncio
import csv
import itertools
import json
import random
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from gen_durable import AsyncClient, Settings, Spec
from gen_durable._db.connector import connect
from tests.support.tcp_proxy import Proxy, Verdict

from .machines import Chain, Loud, One
from .soak_worker import LEDGER, Flaky, Large, Parent, Payer, Threaded, Waiter

__all__ = ["soak"]

# Instances per second and producer, without children and schedules.
RATE: Final = 18
# Seconds between two cuts, on average.
CUT_EVERY: Final = 5.0
_START: Final = 15.0
PLAIN: Final = "gen_durable_soak"
CUT: Final = "gen_durable_soak_cut"
_KINDS: Final = (One, Chain, Loud, Waiter, Parent, Payer, Threaded, Flaky)
# One instance with a large state per this many inserts.
_LARGE_EVERY: Final = 50
# One burst of steps on threads per this many inserts.
_BURST_EVERY: Final = 200

Sample = dict[str, float]


async def soak(dsn: str, minutes: float, curve: Path) -> None:
    """Run both workers, print their curves, and write every sample to a CSV file."""
    curve.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Sample]] = {PLAIN: [], CUT: []}
    async with AsyncExitStack() as stack:
        await _prepare(dsn)
        proxy = await stack.enter_async_context(Proxy.open(dsn))
        dsns = {PLAIN: dsn, CUT: proxy.dsn}
        workers = {
            schema: await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "bench.soak_worker",
                dsn_of_worker,
                schema,
                stdout=asyncio.subprocess.PIPE,
                stderr=stack.enter_context(curve.with_name(f"{schema}.log").open("wb")),
            )
            for schema, dsn_of_worker in dsns.items()
        }
        try:
            async with asyncio.timeout(minutes * 60), asyncio.TaskGroup() as group:
                for schema, worker in workers.items():
                    group.create_task(_produce(dsn, schema))
                    group.create_task(_collect(worker, found[schema], schema))
                group.create_task(_cut(proxy))
        except TimeoutError:
            pass
        finally:
            for schema, worker in workers.items():
                await _end(worker, found[schema])
            _write(curve, found)
        print(report(found, proxy.cuts))


async def _end(worker: asyncio.subprocess.Process, samples: list[Sample]) -> None:
    if worker.returncode is not None:
        return
    assert worker.stdout is not None  # noqa: S101 - it is a pipe
    worker.send_signal(signal.SIGUSR1)
    while not samples or "is_trimmed" not in samples[-1]:
        samples.append(json.loads(await worker.stdout.readline()))
    worker.send_signal(signal.SIGTERM)
    await worker.wait()


async def _prepare(dsn: str) -> None:
    conn = await connect(dsn)
    try:
        for schema in (PLAIN, CUT):
            await conn.execute(f'drop schema if exists "{schema}" cascade')
        await conn.execute(LEDGER)
    finally:
        await conn.close()
    for schema in (PLAIN, CUT):
        async with AsyncClient(dsn, settings=Settings(schema=schema)):
            pass  # installs the schema


async def _produce(dsn: str, schema: str) -> None:
    async with AsyncClient(dsn, settings=Settings(schema=schema)) as client:
        waiters: list[Any] = []
        for number in itertools.count():
            kind = _KINDS[number % len(_KINDS)]
            handle = await client.insert(kind, 5 if kind is Parent else number)
            if kind is Waiter:
                waiters.append(handle)
            if len(waiters) > RATE:
                await client.signal(waiters.pop(0), Waiter.paid, number)
            if number % _LARGE_EVERY == 0:
                await client.insert_all([Spec(Large, "x" * random.randint(10_000, 500_000))])
            if number % _BURST_EVERY == 0:
                await client.insert_all([Spec(Threaded, number) for _ in range(30)])
            await asyncio.sleep(1 / RATE)


async def _collect(worker: asyncio.subprocess.Process, samples: list[Sample], schema: str) -> None:
    assert worker.stdout is not None  # noqa: S101 - it is a pipe
    async for line in worker.stdout:
        samples.append(json.loads(line))
        one = samples[-1]
        print(f"{schema:<22}{_row(one)}", file=sys.stderr, flush=True)
    raise RuntimeError(f"the worker of {schema} has ended with exit code {await worker.wait()}")


async def _cut(proxy: Proxy) -> None:
    await asyncio.sleep(_START)  # a worker whose start fails would exit
    while True:
        await asyncio.sleep(random.expovariate(1 / CUT_EVERY))
        proxy.on(lambda _: True, random.choice(("asked", "answered")), lambda: Verdict.CUT)


def _write(path: Path, found: dict[str, list[Sample]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        names = ["schema", *next((samples[-1] for samples in found.values() if samples), {})]
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for schema, samples in found.items():
            writer.writerows({"schema": schema, **one} for one in samples)


def _row(one: Sample) -> str:
    return (
        f"{one['minute']:>6.1f} min  rss {one['rss']:>6.1f}  uss {one['uss']:>6.1f}  "
        f"malloc used {one.get('malloc_used', 0):>6.1f} free {one.get('malloc_free', 0):>5.1f}  "
        f"objects {one['objects']:>7.0f}  blocks {one['blocks']:>7.0f}  "
        f"sockets {one['sockets']:>3.0f}  threads {one['threads']:>3.0f}"
    )


def report(found: dict[str, list[Sample]], cuts: int) -> str:
    """A Markdown table: every fifth minute of both workers."""
    lines = [
        f"{cuts} cut connections",
        "",
        "| minute | RSS | malloc: used, free | objects | RSS, cut | malloc: used, free | objects |",
        "|---|---|---|---|---|---|---|",
    ]
    last = min(samples[-1]["minute"] for samples in found.values())
    for minute in range(0, int(last) + 1, 5):
        cells = [_cells(_at(samples[:-1], minute)) for samples in found.values()]
        lines.append(f"| {minute} | {' | '.join(cells)} |")
    cells = [_cells(samples[-1]) for samples in found.values()]
    lines.append(f"| after `malloc_trim` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _at(samples: list[Sample], minute: float) -> Sample:
    return min(samples, key=lambda one: abs(one["minute"] - minute))


def _cells(one: Sample) -> str:
    malloc = f"{one.get('malloc_used', 0):.1f}, {one.get('malloc_free', 0):.1f}"
    return f"{one['rss']:.1f} MB | {malloc} MB | {one['objects']:,.0f}"
