"""The worker that the soak of the dashboard measures: `python -m bench.dashboard.soak_worker DSN SCHEMA`.

It runs at full speed on instances that it inserts itself, and prints how many steps have run as a line of JSON per
second.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from gen_durable import Context, Done, Machine, Next, Outcome, Queue, Settings, Spec, Stop, Worker, step

__all__ = ["Kept", "Quick"]

_CHAIN: Final = 10
_LIVE: Final = 4000
_AT_ONCE: Final = 500
# One of `_KEPT` instances stays when it is done, and one of `_FAILING` fails.
_KEPT: Final = 50
_FAILING: Final = 200
_counts: Final = Counter[str]()


async def _advance(ctx: Context[int]) -> Outcome[int]:
    _counts["steps"] += 1
    if ctx.step_seq + 1 < _CHAIN:
        return Next("run")
    _counts["ended"] += 1
    if ctx.state % _FAILING == 1:
        return Stop(f"no answer from 10.0.0.{ctx.state % 250}")
    return Done(ctx.state)


class Quick(Machine[int, int], keep=False):
    """Ten steps, and nothing stays."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return await _advance(ctx)


class Kept(Machine[int, int]):
    """Ten steps."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return await _advance(ctx)


async def _feed(worker: Worker) -> None:
    number = 0
    while True:
        if number - _counts["ended"] < _LIVE:
            specs = [Spec(Quick if n % _KEPT else Kept, n) for n in range(number, number + _AT_ONCE)]
            await worker.insert_all(specs)
            number += _AT_ONCE
        else:
            await asyncio.sleep(0.01)


async def _print_counts() -> None:
    while True:
        print(json.dumps({"at": time.monotonic(), "steps": _counts["steps"]}), flush=True)
        await asyncio.sleep(1)


@asynccontextmanager
async def _feeding(worker: Worker) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(_feed(worker)), loop.create_task(_print_counts())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


def main(dsn: str, schema: str) -> None:
    """Work until SIGTERM."""
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    Worker(
        [Quick, Kept],
        dsn=dsn,
        queues={"default": Queue(concurrency=1000)},
        lifespan=_feeding,
        settings=Settings(schema=schema),
    ).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
