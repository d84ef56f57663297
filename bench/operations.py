"""Processor time of single operations and steps: the columns of the cost model in PERFORMANCE.md that are times."""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

import asyncpg

from gen_durable._db.pool import Database
from gen_durable.testing._databases import Databases
from tests.costs.database import prepared
from tests.costs.operations import OPERATIONS
from tests.costs.recorded import Costs, Figures, load, save
from tests.costs.steps import measure_steps
from tests.db.raw import fetchrow

from .peers.processor_time import process_seconds

__all__ = ["measure_operations"]

# How often a round repeats an operation or a batch of steps.
_REPEATS: Final = 10


async def measure_operations(dsn: str, rounds: int, *, is_recorded: bool) -> None:
    """Measure in interleaved rounds and print the medians; write them to the record and PERFORMANCE.md if asked to."""
    found: defaultdict[str, list[Figures]] = defaultdict(list)
    with Databases(dsn) as databases:
        for number in range(1, rounds + 1):
            for costs in (await _operations(databases), await _steps(databases)):
                for title, figures in costs.items():
                    found[title].append(figures)
            print(f"round {number}/{rounds}", file=sys.stderr)
    medians: Costs = {title: _medians(all_figures) for title, all_figures in found.items()}
    for title, figures in medians.items():
        print(f"{title:<42}", *(f"{name} {value:5.1f}" for name, value in figures.items()), sep="  ")
    if is_recorded:
        save(load()._replace(microseconds=medians))


def _medians(measured: Iterable[Figures]) -> Figures:
    first, *_ = measured
    return {name: statistics.median(figures[name] for figures in measured) for name in first}


async def _operations(databases: Databases) -> Costs:
    """Microseconds per row of the client and of its PostgreSQL process."""
    costs: Costs = {}
    with databases.fresh() as dsn:
        observer = await asyncpg.connect(dsn)
        async with await Database.open(dsn, "gen_durable", size=1) as database:
            backend = (await fetchrow(database, "select pg_backend_pid()"))[0]
            for operation in OPERATIONS:
                client = server = 0.0
                for _ in range(_REPEATS):
                    run = await prepared(operation, database, observer)
                    began, served = time.process_time(), process_seconds(backend)
                    await run()
                    client += time.process_time() - began
                    server += process_seconds(backend) - served
                rows = _REPEATS * operation.rows
                costs[operation.title] = {"µs client": client / rows * 1e6, "µs server": server / rows * 1e6}
        await observer.close()
    return costs


async def _steps(databases: Databases) -> Costs:
    """Microseconds per step on the event loop."""
    with databases.fresh() as dsn:
        return await measure_steps(dsn, _Stopwatch, _REPEATS)


class _Stopwatch:
    """The processor time of the thread inside `with`."""

    def __init__(self) -> None:
        self.counts = {"µs": 0.0}

    def __enter__(self) -> Self:
        self._began = time.thread_time()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.counts["µs"] = (time.thread_time() - self._began) * 1e6
