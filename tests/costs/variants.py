"""The kinds of steps whose cost in Python is recorded. User code does as little as possible."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, NamedTuple

from gen_durable import (
    Await,
    Client,
    Context,
    Done,
    Event,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Signal,
    Spec,
    step,
)

__all__ = ["IN_MIDDLEWARE", "PLAIN", "THREADS", "Variant", "machines", "pass_through"]

_CHAIN: Final = 10
_COUNT: Final = 150
THREADS: Final = 50


class Job(Machine[int, int]):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


class Deleted(Machine[int, int], keep=False):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


class Chained(Machine[int, int]):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Next(self.run, ctx.state + 1) if ctx.state + 1 < _CHAIN else Done(ctx.state)


class Suspending(Machine[int, int]):
    """The last step to begin wakes the others, so that all commit in one batch."""

    def __init__(self) -> None:
        self.begun = 0
        self.wake = asyncio.Event()

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        self.begun += 1
        wake = self.wake
        if self.begun == ctx.state:
            self.begun, self.wake = 0, asyncio.Event()
            wake.set()
        await wake.wait()
        return Done(ctx.state)


class WithTimeout(Machine[int, int]):
    @step(timeout=timedelta(minutes=1))
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


class InThread(Machine[int, int]):
    """The last step to begin wakes the others while the event loop is blocked, so that all commit in one batch."""

    def __init__(self) -> None:
        self.begun = 0
        self.wake = threading.Event()
        self.lock = threading.Lock()
        self.loop = asyncio.get_running_loop()

    @step
    def run(self, ctx: Context[int]) -> Outcome[int]:
        with self.lock:
            wake = self.wake
            self.begun += 1
            if self.begun == ctx.state:
                self.begun, self.wake = 0, threading.Event()
                self.loop.call_soon_threadsafe(self.wake_all, wake)
        wake.wait()
        return Done(ctx.state)

    @staticmethod
    def wake_all(wake: threading.Event) -> None:
        wake.set()
        time.sleep(0.3)


class Emitting(Machine[int, int]):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state, emit=Event("done", ctx.state))


class Waiting(Machine[int, int]):
    paid = Signal("paid", int)

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Await(self.paid, then=self.finish)

    @step
    async def finish(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.awaited.get(self.paid) or 0)


class Parent(Machine[int, int]):
    @step
    async def split(self, ctx: Context[int]) -> Outcome[int]:
        return ScheduleChildren([Spec(Job, number) for number in range(ctx.state)], then=self.join)

    @step
    async def join(self, ctx: Context[int]) -> Outcome[int]:
        return Done(len(ctx.children))


def machines() -> list[Any]:
    """New objects of all machines. Needs a running event loop."""
    return [Job, Deleted, Chained, Suspending(), WithTimeout, InThread(), Emitting, Waiting, Parent]


async def pass_through(ctx: Context[Any], call_next: Any) -> Outcome[Any]:
    outcome: Outcome[Any] = await call_next()
    return outcome


class Variant(NamedTuple):
    """A kind of step: `insert` adds the instances for a number of units, `steps` is how many a unit has."""

    title: str
    insert: Callable[[Client, int], object]
    units: int = _COUNT
    steps: int = 1


def _instances(machine: type[Machine[int, int]], **options: Any) -> Callable[[Client, int], object]:
    return lambda client, count: client.insert_all([Spec(machine, 0, **options)] * count)


def _with_keys(client: Client, count: int) -> None:
    client.insert_all([Spec(Job, 0, concurrency_key=f"key {number}") for number in range(count)])


def _with_signals(client: Client, count: int) -> None:
    for instance in client.insert_all([Spec(Waiting, 0)] * count):
        client.signal(instance, Waiting.paid, 1)


PLAIN: Final = (
    Variant("job", _instances(Job)),
    Variant("job with `keep=False`", _instances(Deleted)),
    Variant("chained step", _instances(Chained), _COUNT // 2, _CHAIN),
    Variant("job that suspends", lambda client, count: client.insert_all([Spec(Suspending, count)] * count)),
    Variant("job with a timeout", _instances(WithTimeout)),
    Variant(
        "job in a thread", lambda client, count: client.insert_all([Spec(InThread, count)] * count), THREADS
    ),
    Variant("job with a concurrency key", _with_keys),
    Variant("job with an event", _instances(Emitting)),
    Variant("await and signal", _with_signals, _COUNT // 2),
    Variant("child of a fan-out", lambda client, count: client.insert(Parent, count)),
)
IN_MIDDLEWARE: Final = (Variant("job with middleware", _instances(Job)),)
