"""What a step costs in Python: calls and bytecode instructions on the event loop of a worker. No figure is a time."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Any, Final, Protocol, Self
from unittest.mock import patch

from gen_durable import Client, Queue, Settings, Worker
from gen_durable._runtime import step_tasks
from gen_durable._runtime.middleware import Middleware
from gen_durable.instance import LIVE_STATUSES
from tests.costs.recorded import Costs, Figures
from tests.costs.variants import IN_MIDDLEWARE, PLAIN, THREADS, Variant, machines, pass_through

__all__ = ["Counter", "measure_steps", "measure_variants"]

# The worker is woken instead: polls would count, and their number depends on the speed of the machine.
_NEVER: Final = timedelta(hours=1)


class Counter(AbstractContextManager[object], Protocol):
    """Counts inside `with`."""

    counts: dict[str, float]


async def measure_steps(dsn: str, counter: Callable[[], Counter] | None = None, repeats: int = 2) -> Costs:
    """The figures of all variants, per step."""
    plain = await measure_variants(dsn, PLAIN, (), counter, repeats)
    return plain | await measure_variants(dsn, IN_MIDDLEWARE, [pass_through], counter, repeats)


async def measure_variants(
    dsn: str,
    variants: Iterable[Variant],
    middleware: Iterable[Middleware],
    counter: Callable[[], Counter] | None = None,
    repeats: int = 2,
) -> Costs:
    """The figures of variants that one worker runs one after the other. The default counter counts calls."""
    worker = Worker(
        machines(),
        dsn=dsn,
        queues={"default": Queue(concurrency=1000)},
        middleware=middleware,
        settings=Settings(
            chain_time=timedelta(hours=1),
            threads=THREADS,
            poll_interval=_NEVER,
            min_poll_interval=_NEVER,
            # Its callbacks would count, and counting slows the steps down.
            loop_blocked_after=timedelta(0),
        ),
    )
    costs: Costs = {}
    # Without time slices the size of batches does not depend on the speed of the machine.
    with patch.object(step_tasks, "_TIME_SLICE", 3600.0), Client(dsn) as client:
        async with worker:
            if worker._engine is not None and worker._engine.report is not None:
                await worker._engine.report
            for variant in variants:
                # Prepares its statements and starts its threads.
                await _run(worker, client, variant, THREADS, nullcontext())
                counted = [(counter or _Calls)() for _ in range(repeats)]
                for each in counted:
                    await _run(worker, client, variant, variant.units, each)
                costs[variant.title] = _least(variant, [each.counts for each in counted])
    return costs


def _least(variant: Variant, counts: Sequence[Figures]) -> Figures:
    """The least of several runs, per step: one may have opened a connection, or run a service."""
    steps = variant.units * variant.steps
    return {name: min(each[name] for each in counts) / steps for name in counts[0]}


async def _run(
    worker: Worker, client: Client, variant: Variant, units: int, counted: AbstractContextManager[object]
) -> None:
    """Insert the instances while the event loop is blocked; then count until another thread sees that they have ended."""
    loop, ended, engine = asyncio.get_running_loop(), asyncio.Event(), worker._engine
    assert engine is not None

    def watch() -> None:
        while client.count(status=LIVE_STATUSES):
            time.sleep(0.01)
        # Until the event loop has handled the reply to the last commit, and what follows from it.
        while any(runner.in_flight for runner in engine._runners):
            time.sleep(0.01)
        time.sleep(0.02)
        loop.call_soon_threadsafe(ended.set)

    variant.insert(client, units)
    worker._wakes.work(["default"])
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
