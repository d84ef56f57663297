"""The worker that the soak measures: `python -m bench.soak_worker DSN SCHEMA`.

It runs one machine of each kind and prints a sample of its own memory as a line of JSON every few seconds.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Final

from gen_durable import (
    Await,
    CloudEvent,
    Context,
    DatabaseError,
    Done,
    Machine,
    Next,
    Outcome,
    Queue,
    Retry,
    Schedule,
    ScheduleChildren,
    Settings,
    Signal,
    Spec,
    Sql,
    Worker,
    step,
)

from .machines import Chain, Loud, One

__all__ = ["LEDGER", "SAMPLE_EVERY", "Flaky", "Large", "Parent", "Payer", "Threaded", "Waiter"]

SAMPLE_EVERY: Final = 10.0
LEDGER: Final = "create table if not exists public.soak_ledger (instance bigint not null)"


class Waiter(Machine[int, int]):
    """Waits for a signal."""

    paid: ClassVar = Signal("paid", int)

    @step
    async def start(self, ctx: Context[int]) -> Outcome[int]:
        return Await(self.paid, then=self.take, timeout=timedelta(minutes=1))

    @step
    async def take(self, ctx: Context[int]) -> Outcome[int]:
        return Done(sum(message.payload for message in ctx.awaited))


class Parent(Machine[int, int]):
    """Waits for children."""

    @step
    async def split(self, ctx: Context[int]) -> Outcome:
        return ScheduleChildren([Spec(One, number) for number in range(ctx.state)], then=self.join)

    @step
    async def join(self, ctx: Context[int]) -> Outcome[int]:
        return Done(len(ctx.children))


class Payer(Machine[int, int]):
    """Runs an effect."""

    @step
    async def pay(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state, effect=Sql("insert into public.soak_ledger (instance) values ($1)", ctx.id))


class Threaded(Machine[int, int], queue="threads"):
    """Runs on a thread."""

    @step
    def run(self, ctx: Context[int]) -> Outcome[int]:
        time.sleep(0.2)
        return Done(ctx.state)


class Flaky(Machine[int, int]):
    """Raises once."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        if ctx.attempt == 0:
            raise RuntimeError("the first attempt fails")
        return Done(ctx.state)

    def handle(self, error: Exception, ctx: Context[int]) -> Outcome[int]:
        return Retry(timedelta(milliseconds=100))


class Large(Machine[str, int]):
    """Has a state of 10 KB to 1 MB."""

    @step
    async def grow(self, ctx: Context[str]) -> Outcome[int]:
        return Next(self.shrink, ctx.state * 2)

    @step
    async def shrink(self, ctx: Context[str]) -> Outcome[int]:
        return Done(len(ctx.state))


MACHINES: Final = (One, Chain, Loud, Waiter, Parent, Payer, Threaded, Flaky, Large)


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def _mallinfo() -> _Mallinfo | None:
    """All arenas of glibc's malloc together; `None` with another C library."""
    try:
        call = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return None
    call.restype = _Mallinfo
    found: _Mallinfo = call()
    return found


def _smaps() -> dict[str, int]:
    """Name → kB."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    return {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}


def sample(begun: float) -> dict[str, float]:
    """Measure this process. Memory is in MB."""
    smaps, malloc = _smaps(), _mallinfo()
    found: dict[str, float] = {
        "minute": (time.monotonic() - begun) / 60,
        "rss": smaps["Rss"] / 1024,
        "uss": (smaps["Private_Clean"] + smaps["Private_Dirty"]) / 1024,
        "objects": len(gc.get_objects()),
        "blocks": sys.getallocatedblocks(),
        "sockets": sum(_is_socket(entry) for entry in Path("/proc/self/fd").iterdir()),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }
    if malloc is not None:
        found["malloc_used"] = (malloc.uordblks + malloc.hblkhd) / 2**20
        found["malloc_free"] = malloc.fordblks / 2**20
    return found


def _is_socket(entry: Path) -> bool:
    try:
        return str(entry.readlink()).startswith("socket:")
    except OSError:
        return False  # closed since the directory was listed


async def _swallow(event: CloudEvent) -> None:
    """Publish nowhere."""


async def _print_samples(begun: float) -> None:
    while True:
        print(json.dumps(sample(begun)), flush=True)
        await asyncio.sleep(SAMPLE_EVERY)


def _print_trimmed(begun: float) -> None:
    """Print a sample after malloc has returned its free memory to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    print(json.dumps({**sample(begun), "is_trimmed": 1}), flush=True)


async def _use(worker: Worker) -> None:
    """Insert and wait in the process of the worker, as an application does that has one inside."""
    while True:
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(_insert_and_wait(worker, number))
        await asyncio.sleep(2)


async def _insert_and_wait(worker: Worker, number: int) -> None:
    with suppress(DatabaseError):  # the connection was cut
        await worker.wait(await worker.insert(One, number), timeout=timedelta(seconds=30))


@asynccontextmanager
async def _sampling(worker: Worker) -> AsyncIterator[None]:
    begun = time.monotonic()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, _print_trimmed, begun)
    sampling, using = loop.create_task(_print_samples(begun)), loop.create_task(_use(worker))
    try:
        yield
    finally:
        sampling.cancel()
        using.cancel()


def main(dsn: str, schema: str) -> None:
    """Work until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    Worker(
        MACHINES,
        dsn=dsn,
        queues={"default": Queue(concurrency=20), "threads": Queue(concurrency=20)},
        sinks=_swallow,
        schedules=[Schedule("soak", Spec(One, 0), every=timedelta(seconds=1))],
        lifespan=_sampling,
        settings=Settings(schema=schema),
    ).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
