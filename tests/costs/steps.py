"""What a step costs in Python: calls and bytecode instructions on the event loop of a worker. No figure is a time."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Any, Final, Self
from unittest.mock import patch

import psycopg

from gen_durable import Client, Queue, Settings, Worker
from gen_durable._runtime import step_tasks
from gen_durable._runtime.middleware import Middleware
from tests.costs.recorded import Costs, Figures
from tests.costs.variants import IN_MIDDLEWARE, PLAIN, THREADS, Variant, machines, pass_through

__all__ = ["measure_steps", "measure_variants"]

_LIVE: Final = "select from gen_durable.gen_durable where finished_at is null limit 1"


async def measure_steps(dsn: str) -> Costs:
    """The figures of all variants, per step."""
    return await measure_variants(dsn, PLAIN) | await measure_variants(dsn, IN_MIDDLEWARE, [pass_through])


async def measure_variants(
    dsn: str, variants: Iterable[Variant], middleware: Iterable[Middleware] = ()
) -> Costs:
    """The figures of variants that one worker runs one after the other."""
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
            return {variant.title: await _measure(dsn, client, variant) for variant in variants}


async def _measure(dsn: str, client: Client, variant: Variant) -> Figures:
    await _run(dsn, client, variant, THREADS, nullcontext())  # prepares its statements and starts its threads
    counter = _Counter()
    await _run(dsn, client, variant, variant.units, counter)
    steps = variant.units * variant.steps
    return {"calls": counter.calls / steps, "instructions": counter.instructions / steps}


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


class _Counter:
    """Counts calls and bytecode instructions of the thread that enters it."""

    def __init__(self) -> None:
        self.calls = 0
        self.instructions = 0

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
            self.calls += 1

    def _on_frame(self, frame: FrameType, event: str, arg: object) -> Any:
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return self._on_instruction

    def _on_instruction(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            self.instructions += 1
        return self._on_instruction
