"""What a step costs in Python: calls and bytecode instructions on the event loop of a worker. No figure is a time."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Any, Final, Protocol, Self
from unittest.mock import patch

import psycopg

from gen_durable import Client, Queue, Settings, Worker
from gen_durable._runtime import step_tasks
from gen_durable._runtime.middleware import Middleware
from tests.costs.recorded import Costs
from tests.costs.variants import IN_MIDDLEWARE, PLAIN, THREADS, Variant, machines, pass_through

__all__ = ["Counter", "measure_steps", "measure_variants"]

_LIVE: Final = "select from gen_durable.gen_durable where finished_at is null limit 1"


class Counter(AbstractContextManager[object], Protocol):
    """Counts inside `with`; can be entered several times."""

    counts: dict[str, float]


async def measure_steps(dsn: str, counter: Callable[[], Counter] | None = None, repeats: int = 1) -> Costs:
    """The figures of all variants, per step."""
    plain = await measure_variants(dsn, PLAIN, (), counter, repeats)
    return plain | await measure_variants(dsn, IN_MIDDLEWARE, [pass_through], counter, repeats)


async def measure_variants(
    dsn: str,
    variants: Iterable[Variant],
    middleware: Iterable[Middleware],
    counter: Callable[[], Counter] | None = None,
    repeats: int = 1,
) -> Costs:
    """The figures of variants that one worker runs one after the other. The default counter counts calls."""
    worker = Worker(
        machines(),
        dsn=dsn,
        queues={"default": Queue(concurrency=1000)},
        middleware=middleware,
        settings=Settings(chain_time=timedelta(hours=1), threads=THREADS),
    )
    # Without time slices the size of batches does not depend on the speed of the machine.
    with patch.object(step_tasks, "_TIME_SLICE", 3600.0), Client(dsn) as client:
        async with worker:
            costs: Costs = {}
            for variant in variants:
                # Prepares its statements and starts its threads.
                await _run(dsn, client, variant, THREADS, nullcontext())
                counted = (counter or _Calls)()
                for _ in range(repeats):
                    await _run(dsn, client, variant, variant.units, counted)
                steps = repeats * variant.units * variant.steps
                costs[variant.title] = {name: count / steps for name, count in counted.counts.items()}
    return costs


async def _run(
    dsn: str, client: Client, variant: Variant, units: int, counted: AbstractContextManager[object]
) -> None:
    """Insert the instances while the event loop is blocked; then count until another thread sees that they have ended."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def watch() -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            while conn.execute(_LIVE).fetchone() is not None:
                time.sleep(0.02)
        time.sleep(0.1)  # the event loop handles the reply to the last commit
        loop.call_soon_threadsafe(ended.set)

    variant.insert(client, units)
    watcher = threading.Thread(target=watch)
    watcher.start()
    with counted:
        await ended.wait()
    watcher.join()


class _Calls:
    """Counts calls and bytecode instructions of the thread that enters it."""

    def __init__(self) -> None:
        self.counts = {"calls": 0.0, "instructions": 0.0}

    def __enter__(self) -> Self:
        sys.settrace(self._on_frame)
        sys.setprofile(self._on_call)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        sys.setprofile(None)
        sys.settrace(None)

    def _on_call(self, frame: FrameType, event: str, arg: object) -> None:
        if event in ("call", "c_call"):
            self.counts["calls"] += 1

    def _on_frame(self, frame: FrameType, event: str, arg: object) -> Any:
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return self._on_instruction

    def _on_instruction(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            self.counts["instructions"] += 1
        return self._on_instruction
