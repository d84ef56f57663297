"""Machines for fault injection.

Each execution of a step writes begin, effect and end to the journal. Every state carries the signature of the execution
that returned it, so the next step shows whose outcome was committed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

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
from tests.chaos.journal import Journal

__all__ = [
    "LEDGER",
    "MACHINES",
    "Blocker",
    "Brief",
    "Chain",
    "Collector",
    "Fan",
    "Payer",
    "Result",
    "Stubborn",
    "Work",
]

# No unique index: a repeated payment must be visible.
LEDGER: Final = (
    "create table ledger (instance bigint not null, step_seq bigint not null, signature text not null)"
)
_PAY: Final = "insert into ledger (instance, step_seq, signature) values ($1, $2, $3)"


class Work(msgspec.Struct):
    """The state of all these machines."""

    steps: int = 1
    """How many steps are left."""
    pace: float = 0.0
    """How long each of them takes, in seconds."""
    saw: str = ""
    """The signature of the execution that made this state."""
    requeues: bool = False
    fails: int = 0
    """How many attempts of each step raise."""
    kill: str = ""
    """Where the first execution of a step takes its process with it: `effect@2` is after the effect of step 2."""
    until: str = ""
    """A file: steps go on when it is there."""
    heirs_until: str = ""
    """The same for executions that are not the first of their step."""
    wants: int = 0
    tokens: list[str] = msgspec.field(default_factory=list)
    timeout: float = 0.0
    queue: str = "default"
    """Where the children go that are made of this."""
    rounds: list[list[Work]] = msgspec.field(default_factory=list)
    """For each barrier, the work of the children; those with rounds of their own fan out in turn."""


class Result(msgspec.Struct):
    saw: str
    tokens: list[str] = msgspec.field(default_factory=list)


class Page:
    """What one execution writes to the journal."""

    journal: ClassVar[Journal]

    def __init__(self, ctx: Context[Any], **facts: Any) -> None:
        self._ctx = ctx
        self.signature = f"{os.getpid()}:{secrets.token_hex(4)}"
        children = [[child.id, child.status.value] for child in ctx.children]
        self._note("begin", saw=ctx.state.saw, **({"children": children} if children else {}), **facts)

    def effect(self) -> None:
        """An external effect, repeated when the step runs again."""
        self._note("effect")

    def end(self, *, spawns: int = 0, pays: bool = False, deletes: bool = False, **changes: Any) -> Any:
        """The signed state of this execution."""
        self._note(
            "end",
            signature=self.signature,
            **({"spawns": spawns} if spawns else {}),
            **({"pays": True} if pays else {}),
            **({"deletes": True} if deletes else {}),
        )
        return msgspec.structs.replace(self._ctx.state, saw=self.signature, **changes)

    def ended(self, *, pays: bool = False, deletes: bool = False) -> Result:
        """The signed result of this execution."""
        state = self.end(pays=pays, deletes=deletes)
        return Result(state.saw, state.tokens)

    def _note(self, what: str, **facts: Any) -> None:
        ctx = self._ctx
        self.journal.note(
            what, instance=ctx.id, step=ctx.step, step_seq=ctx.step_seq, attempt=ctx.attempt, **facts
        )
        self.dies(what)

    def dies(self, point: str) -> None:
        if self._ctx.attempt == 0 and self._ctx.state.kill == f"{point}@{self._ctx.step_seq}":
            os.kill(os.getpid(), signal.SIGKILL)


async def _takes_its_time(ctx: Context[Work]) -> None:
    await asyncio.sleep(ctx.state.pace)
    until = ctx.state.heirs_until if ctx.attempt else ctx.state.until
    while until and not Path(until).exists():
        await asyncio.sleep(0.01)


class Chain(Machine[Work, Result]):
    """Steps on the event loop and in threads, alternating."""

    @step
    async def hop(self, ctx: Context[Work]) -> Outcome[Result]:
        page = Page(ctx)
        await _takes_its_time(ctx)
        page.effect()
        if ctx.state.steps <= 1:
            return Done(page.ended(deletes=not self.__definition__.keep))
        return Next(self.walk, page.end(steps=ctx.state.steps - 1), requeue=ctx.state.requeues)

    @step
    def walk(self, ctx: Context[Work]) -> Outcome[Result]:
        page = Page(ctx)
        time.sleep(ctx.state.pace)
        page.effect()
        if ctx.state.steps <= 1:
            return Done(page.ended(deletes=not self.__definition__.keep))
        return Next(self.hop, page.end(steps=ctx.state.steps - 1), requeue=ctx.state.requeues)


class Brief(Chain, keep=False):
    """A chain whose row is deleted when it is done."""


class Blocker(Machine[Work, Result]):
    """Blocks the event loop."""

    @step
    async def block(self, ctx: Context[Work]) -> Outcome[Result]:
        page = Page(ctx)
        time.sleep(ctx.state.pace)
        page.effect()
        return Done(page.ended())


class Stubborn(Machine[Work, Result]):
    """Raises on the first attempts of each step."""

    @step
    async def go(self, ctx: Context[Work]) -> Outcome[Result]:
        page = Page(ctx)
        await _takes_its_time(ctx)
        if ctx.attempt < ctx.state.fails:
            raise RuntimeError("not yet")
        page.effect()
        if ctx.state.steps <= 1:
            return Done(page.ended())
        return Next(self.go, page.end(steps=ctx.state.steps - 1))

    def handle(self, error: Exception, ctx: Context[Work]) -> Outcome[Result]:
        return Retry(timedelta(milliseconds=20)) if str(error) == "not yet" else Stop(error)


class Collector(Machine[Work, Result]):
    """Ends when it has enough tokens."""

    token: ClassVar = Signal("token", str)

    @step
    async def start(self, ctx: Context[Work]) -> Outcome[Result]:
        page = Page(ctx)
        if len(ctx.state.tokens) >= ctx.state.wants:
            return Done(page.ended())
        timeout = timedelta(seconds=ctx.state.timeout) if ctx.state.timeout else None
        return Await(self.token, then=self.take, timeout=timeout, state=page.end())

    @step
    async def take(self, ctx: Context[Work]) -> Outcome[Result]:
        page = Page(ctx)
        await _takes_its_time(ctx)
        page.effect()
        came = [message.payload for message in ctx.awaited]
        return Next(self.start, page.end(tokens=ctx.state.tokens + came))


class Fan(Machine[Work, Result]):
    """Two rounds of children."""

    @step
    async def spawn(self, ctx: Context[Work]) -> Outcome[Result]:
        page = Page(ctx)
        page.effect()
        if not ctx.state.rounds:
            return Done(page.ended())
        children = _specs(ctx.state.rounds[0])
        state = page.end(rounds=ctx.state.rounds[1:], spawns=len(children))
        return ScheduleChildren(children, then=self.spawn, state=state)


class Payer(Machine[Work, Result]):
    """Pays in every step, with one statement and with several, alternating."""

    @step
    async def pay(self, ctx: Context[Work]) -> Outcome[Result]:
        page = Page(ctx)
        await _takes_its_time(ctx)
        page.effect()
        row = (ctx.id, ctx.step_seq, page.signature)
        if ctx.state.steps <= 1:
            return Done(page.ended(pays=True), effect=Sql(_PAY, *row))

        async def slowly(transaction: Transaction) -> None:
            await transaction.execute(_PAY, *row)
            page.dies("paid")
            await asyncio.sleep(ctx.state.pace)
            assert await transaction.fetchval("select count(*) from ledger where signature = $1", row[2]) == 1

        effect = slowly if ctx.step_seq % 2 else Sql(_PAY, *row)
        return Next(self.pay, page.end(steps=ctx.state.steps - 1, pays=True), effect=effect)


MACHINES: Final = (Blocker, Brief, Chain, Collector, Fan, Payer, Stubborn)


def _specs(children: Sequence[Work]) -> list[Spec[Work, Result]]:
    return [Spec(Fan if child.rounds else Chain, child, queue=child.queue) for child in children]
