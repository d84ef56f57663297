"""One machine for each feature of a worker."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

from gen_durable import (
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Signal,
    Spec,
    Sql,
    Stop,
    Transaction,
    step,
)

SOON = timedelta(milliseconds=10)


class Chain(Machine[int, int]):
    """Adds one in each step: the first two are chained, the third is picked from the queue."""

    @step
    async def one(self, ctx: Context[int]) -> Outcome[int]:
        return Next(self.two, ctx.state + 1)

    @step
    def two(self, ctx: Context[int]) -> Outcome[int]:
        return Next(self.three, ctx.state + 1, delay=SOON)

    @step
    async def three(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state + 1)


class Stubborn(Machine[None, int]):
    """Succeeds at the third attempt: the first returns Retry, the second raises."""

    @step
    async def work(self, ctx: Context[None]) -> Outcome[int]:
        if ctx.attempt == 0:
            return Retry(SOON)
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return Done(ctx.attempt)

    def handle(self, error: Exception, ctx: Context[None]) -> Outcome[int]:
        return Retry(SOON)


class Waiter(Machine[float, list[str]]):
    """Waits for a signal, with a timeout."""

    note = Signal("note", str)

    @step
    async def wait(self, ctx: Context[float]) -> Outcome[list[str]]:
        return Await(self.note, then=self.read, timeout=timedelta(seconds=ctx.state))

    @step
    async def read(self, ctx: Context[float]) -> Outcome[list[str]]:
        if ctx.timed_out:
            return Done(["nothing came"])
        return Done([str(message.payload) for message in ctx.awaited])


class Parent(Machine[int, int]):
    """Adds up the results of its children."""

    @step
    async def spawn(self, ctx: Context[int]) -> Outcome[int]:
        return ScheduleChildren([Spec(Chain, number) for number in range(ctx.state)], then=self.add)

    @step
    async def add(self, ctx: Context[int]) -> Outcome[int]:
        return Done(sum(child.result or 0 for child in ctx.children))


class Alone(Machine[str, None]):
    """Records how many instances run concurrently under one key."""

    running = 0
    most = 0

    @step
    async def work(self, ctx: Context[str]) -> Outcome[None]:
        kind = type(self)
        kind.running += 1
        kind.most = max(kind.most, kind.running)
        await asyncio.sleep(0.005)
        kind.running -= 1
        return Done()


class Payment(Machine[int, None]):
    """Writes to the ledger, once by a statement and once by a function; the ledger refuses a negative amount."""

    @step
    async def pay(self, ctx: Context[int]) -> Outcome[None]:
        return Next(self.note, effect=Sql("insert into ledger values ($1, $2, 'paid')", ctx.id, ctx.state))

    @step
    async def note(self, ctx: Context[int]) -> Outcome[None]:
        async def write(transaction: Transaction) -> None:
            paid = await transaction.fetchval("select amount from ledger where id = $1", ctx.id)
            await transaction.execute("insert into ledger values ($1, $2, 'noted')", ctx.id, paid)

        return Done(effect=write)

    def handle(self, error: Exception, ctx: Context[int]) -> Outcome[None]:
        return Stop(error)


class Slow(Machine[float, int]):
    """Runs much longer than a lease."""

    @step
    async def work(self, ctx: Context[float]) -> Outcome[int]:
        await asyncio.sleep(ctx.state)
        return Done(ctx.attempt)


ALL: Final[list[Any]] = [Chain, Stubborn, Waiter, Parent, Alone, Payment, Slow]
