"""Machines that several tests run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from gen_durable import Await, Context, Done, Machine, Next, Outcome, Signal, Stop, step
from gen_durable.testing import Harness

REASON: Final = "no longer wanted"
ACTOR: Final = "ann"


class Say(Machine[str, str]):
    """Returns its state."""

    @step
    async def say(self, ctx: Context[str]) -> Outcome[str]:
        return Done(ctx.state)


class Fail(Machine[str, None]):
    """Fails with its state as the reason."""

    @step
    async def fail(self, ctx: Context[str]) -> Outcome[None]:
        return Stop(ctx.state)


def probe(
    first: Callable[[Context[int]], Outcome[Any]],
    then: Callable[[Context[int]], Outcome[Any]] = lambda ctx: Done(ctx.state),
    handle: Callable[[Exception, Context[int]], Outcome[Any]] | None = None,
) -> type[Machine[int, Any]]:
    """A machine with the steps `one` and `two`, given as functions; its state is a number."""

    class Probe(Machine[int, Any]):
        @step
        async def one(self, ctx: Context[int]) -> Outcome[Any]:
            return first(ctx)

        @step
        async def two(self, ctx: Context[int]) -> Outcome[Any]:
            return then(ctx)

        def handle(self, error: Exception, ctx: Context[int]) -> Outcome[Any]:
            return Stop(error) if handle is None else handle(error, ctx)

    return Probe


def one_step(durable: Harness) -> None:
    """Run one step only."""
    try:
        durable.drain(max_steps=1, collapse=False)
    except AssertionError as error:
        if "still runs" not in str(error):
            raise


class Order(Machine[int, str]):
    """Awaits its payment, then ships; without a payment it must never ship."""

    paid = Signal("paid", int)

    @step
    async def start(self, ctx: Context[int]) -> Outcome[str]:
        return Await(self.paid, then=self.ship)

    @step
    async def ship(self, ctx: Context[int]) -> Outcome[str]:
        amount = ctx.awaited.get(self.paid)
        return Done(f"shipped for {amount}")


class Plain(Machine[int, int]):
    """Returns its state."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


class Sitter(Machine[str, str]):
    """Stays in its step until the test lets it go or it sees the cancel."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.is_there, self.may_go = asyncio.Event(), threading.Event()
        self.saw: list[str] = []
        """What the steps recorded."""
        self.handled: list[Exception] = []

    def _begin(self) -> None:
        self._loop.call_soon_threadsafe(self.is_there.set)

    @step
    async def looks(self, ctx: Context[str]) -> Outcome[str]:
        self.is_there.set()
        while not ctx.cancelled and not self.may_go.is_set():
            await asyncio.sleep(0.01)
        self.saw.append(f"{ctx.cancelled}")
        return Done("finished all the same")

    @step
    async def raises_if(self, ctx: Context[str]) -> Outcome[str]:
        self.is_there.set()
        while not self.may_go.is_set():
            ctx.raise_if_cancelled()
            await asyncio.sleep(0.01)
        return Done("finished all the same")

    @step
    def thread_looks(self, ctx: Context[str]) -> Outcome[str]:
        self._begin()
        while not ctx.cancelled and not self.may_go.is_set():
            time.sleep(0.01)
        self.saw.append(f"{ctx.cancelled}")
        return Done("finished all the same")

    @step
    def thread_raises_if(self, ctx: Context[str]) -> Outcome[str]:
        self._begin()
        while not self.may_go.is_set():
            ctx.raise_if_cancelled()
            time.sleep(0.01)
        return Done("finished all the same")

    @step
    async def fails_when_cancelled(self, ctx: Context[str]) -> Outcome[str]:
        self.is_there.set()
        while not ctx.cancelled:
            await asyncio.sleep(0.01)
        raise ConnectionError("the bank hung up")

    @step(interrupt=True)
    async def sleeps(self, ctx: Context[str]) -> Outcome[str]:
        self.is_there.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self.saw.append("cut off")
        return Done("slept for an hour")

    @step(interrupt=True)
    async def swallows(self, ctx: Context[str]) -> Outcome[str]:
        self.is_there.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.saw.append("swallowed")
        return Next(self.looks)

    @step
    async def deaf(self, ctx: Context[str]) -> Outcome[str]:
        self.is_there.set()
        while not self.may_go.is_set():
            await asyncio.sleep(0.01)
        return Done("finished all the same")

    @step
    def thread_deaf(self, ctx: Context[str]) -> Outcome[str]:
        self._begin()
        self.may_go.wait()
        return Done("finished all the same")

    def handle(self, error: Exception, ctx: Context[str]) -> Outcome[str]:
        self.handled.append(error)
        return Stop(error)
