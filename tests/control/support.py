"""Machines to be cancelled, deleted and retried, and looks at what is left of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from typing import Any, Final

from gen_durable import Await, Context, Done, Machine, Next, Outcome, Signal, Stop, step
from tests.scenarios.support import PATIENCE

REASON: Final = "no longer wanted"
ACTOR: Final = "ann"


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
    """Gives its state back; nobody runs it unless a test wants it to."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


class Sitter(Machine[str, str]):
    """Begins, and stays inside of its step until it may go on, or until it has looked and seen a cancel."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.is_there, self.may_go = asyncio.Event(), threading.Event()
        self.saw: list[str] = []
        """What the steps said before they ended."""
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


async def audit(db: Any, id: int) -> list[tuple[str, str | None, str | None]]:
    """Event, actor and reason of everything that was noted about an instance."""
    rows = await db.fetch(
        "select event, actor, reason from gen_durable.audit_events where instance_id = $1 order by id", id
    )
    return [(row["event"], row["actor"], row["reason"]) for row in rows]


async def job_states(db: Any, ids: Iterable[int]) -> list[str]:
    rows = await db.fetch(
        "select state from gen_durable.gen_durable_job_state where job_id = any ($1::bigint[]) order by job_id",
        list(ids),
    )
    return [row["state"] for row in rows]


async def eventually(client: Any, target: Any, status: str) -> Any:
    """The instance, as soon as it has this status."""
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while True:
            found = await client.get(target, with_deleted=True)
            if found is not None and found.status == status:
                return found
            await asyncio.sleep(0.1)
