"""Machines with steps in the process pool, at the top level of a module, so that other processes can import them."""

from __future__ import annotations

import asyncio
import decimal
import os
import signal
import subprocess
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from gen_durable import (
    Await,
    Context,
    Discard,
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
    job,
    step,
    upgrade,
)
from gen_durable._runtime.processes.child import IS_CHILD


class Work(msgspec.Struct):
    what: str
    file: str = ""
    number: int = 0


class Declined(Exception):  # noqa: N818
    """A user's own exception."""


class Part(Machine[int, int]):
    @step(pool="process")
    def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state * 2)


class Pressed(Machine[list[int], int], name="Press", version=2):
    """Upgrades instances of version 1, whose state is a number."""

    @upgrade(from_version=1)
    @staticmethod
    def wrap(state: int) -> list[int]:
        return [state]

    @step(pool="process", was="squeeze")
    def press(self, ctx: Context[list[int]]) -> Outcome[int]:
        if ctx.attempt == 0:
            raise ValueError("once more")
        return Next(self.deliver, [*ctx.state, ctx.version])

    @step(pool="process")
    def deliver(self, ctx: Context[list[int]]) -> Outcome[int]:
        return Done(sum(ctx.state))

    def handle(self, error: Exception, ctx: Context[list[int]]) -> Any:
        assert ctx.state == [40]
        return Retry()


class Press(Machine[int, int], version=1):
    """Version 1 with its own code."""

    @step(pool="process")
    def squeeze(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


async def book(transaction: Transaction) -> None:
    await transaction.execute("insert into booked values ('by a function')")


def _begun(ctx: Context[Work]) -> None:
    with Path(ctx.state.file).open("a") as file:
        file.write(f"{os.getpid()} {ctx.attempt}\n")


class Crunch(Machine[Work, Any]):
    paid = Signal("paid", int)

    @step(pool="process")
    def run(self, ctx: Context[Work]) -> Outcome[Any]:  # noqa: C901 - one line for each
        match ctx.state.what:
            case "pid":
                return Done([os.getpid(), os.getppid(), ctx.id, ctx.idempotency_key])
            case "chain":
                ctx.state.number += 1
                return Next(self.run) if ctx.state.number < 5 else Done(ctx.state.number)
            case "loop":
                return Done(asyncio.run(_five()))
            case "await":
                return Await(self.paid, then=self.got, timeout=timedelta(hours=1))
            case "children":
                return ScheduleChildren([Spec(Part, number) for number in range(3)], then=self.join)
            case "raise":
                raise Declined("no money")
            case "discard":
                raise Discard("for good")
            case "retry" if ctx.attempt == 0:
                return Retry()
            case "encode":
                return Done(object())
            case "resources":
                return Done(ctx.resources.pool)
            case _:
                return Done(ctx.attempt)

    @step(pool="process")
    def got(self, ctx: Context[Work]) -> Outcome[Any]:
        return Done(ctx.awaited.get(self.paid))

    @step(pool="process")
    def join(self, ctx: Context[Work]) -> Outcome[Any]:
        return Done(ctx.children.results(Part))

    @step(pool="process")
    def effect(self, ctx: Context[Work]) -> Outcome[Any]:
        match ctx.state.what:
            case "sql":
                values = (
                    1,
                    "text",
                    True,
                    None,
                    decimal.Decimal("1.50"),
                    uuid.UUID(int=7),
                    b"\0\1",
                    ["a", "b"],
                )
                moment = datetime(2026, 1, 31, 9, tzinfo=UTC)
                query = "insert into typed values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
                return Done(effect=Sql(query, *values, moment, timedelta(seconds=90)))
            case "function":
                return Done(effect=book)
            case _:

                async def local(transaction: Transaction) -> None: ...

                return Done(effect=local)

    @step(pool="process", timeout=timedelta(milliseconds=300))
    def slow(self, ctx: Context[Work]) -> Outcome[Any]:
        _begun(ctx)
        time.sleep(3600)
        return Done()

    @step(pool="process")
    def long(self, ctx: Context[Work]) -> Outcome[Any]:
        """Start a program that does not end, and wait for it."""
        # Killing only the process of the step would leave this program running.
        with subprocess.Popen(["sleep", "3600"]) as program:
            with Path(ctx.state.file).open("a") as file:
                file.write(f"{os.getpid()} {ctx.attempt} {program.pid}\n")
            program.wait()
        return Done()

    @step(pool="process")
    def die(self, ctx: Context[Work]) -> Outcome[Any]:
        if ctx.attempt < ctx.state.number:
            if ctx.state.what == "exit":
                os._exit(7)
            if ctx.state.what == "fork":
                subprocess.Popen(["sleep", "3600"], close_fds=False)
            os.kill(os.getpid(), signal.SIGKILL)
        return Done(ctx.attempt)

    @step
    async def beside(self, ctx: Context[Work]) -> Outcome[Any]:
        await asyncio.sleep(ctx.state.number / 1000)
        return Done(os.getpid())

    def handle(self, error: Exception, ctx: Context[Work]) -> Outcome[Any]:
        where = "there" if IS_CHILD.is_set() else "here"
        return Stop(f"{type(error).__name__} {isinstance(error, Declined)} {where}: {error}")


async def _five() -> int:
    return 5


@job("crunch.v1", pool="process", max_attempts=2)
def crunch(number: int, ctx: Context[int]) -> int:
    if ctx.attempt == 0:
        raise ValueError("first")
    return sum(range(number))


class Undone(Machine[None, None]):
    """Its second step kills its process; the first one is undone."""

    @step(undo="release")
    async def reserve(self, ctx: Context[None]) -> Outcome[None]:
        return Next(self.die)

    @step(pool="process")
    def die(self, ctx: Context[None]) -> Outcome[None]:
        os._exit(7)

    @step
    async def release(self, ctx: Context[None]) -> Outcome:
        return Done()
