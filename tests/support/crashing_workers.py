"""Machines for worker processes that tests kill, stop and signal.

As a program, this is such a worker: `python -m tests.support.crashing_workers DSN SETTINGS-AS-JSON`. It prints what its
steps and its engine do, one JSON object per line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from gen_durable import Context, Done, Machine, Outcome, Settings, Stop, Worker, job, step
from gen_durable.telemetry import Event, PickStop, SchedulerSaturation

__all__ = ["Hog", "Killer", "Sleeper", "poison", "print_json"]

_CHATTER: Final = (PickStop, SchedulerSaturation)


def print_json(**what: Any) -> None:
    sys.stdout.write(json.dumps({"pid": os.getpid(), **what}) + "\n")
    sys.stdout.flush()


class Sleeper(Machine[str, str]):
    """Runs until the file that its state names exists."""

    @step
    async def sleep(self, ctx: Context[str]) -> Outcome[str]:
        print_json(begun=ctx.step, id=ctx.id, attempt=ctx.attempt, key=ctx.idempotency_key)
        while not Path(ctx.state).exists():
            await asyncio.sleep(0.05)
        return Done(f"{os.getpid()}")

    @step
    async def block_loop(self, ctx: Context[str]) -> Outcome[str]:
        """Blocks the event loop, so it is not cancelled when its lease is lost."""
        print_json(begun=ctx.step, id=ctx.id, attempt=ctx.attempt, key=ctx.idempotency_key)
        while not Path(ctx.state).exists():
            time.sleep(0.01)
        return Done(f"{os.getpid()}")

    @step
    def block(self, ctx: Context[str]) -> Outcome[str]:
        print_json(begun=ctx.step, id=ctx.id, attempt=ctx.attempt, key=ctx.idempotency_key)
        threading.Event().wait()
        return Stop("unreachable")

    @step
    async def ignore(self, ctx: Context[str]) -> Outcome[str]:
        print_json(begun=ctx.step, id=ctx.id, attempt=ctx.attempt, key=ctx.idempotency_key)
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                print_json(ignored=ctx.id)

    def handle(self, error: Exception, ctx: Context[str]) -> Outcome[str]:
        print_json(handled=str(error), id=ctx.id)
        return Stop(error)


class Hog(Machine[float, int]):
    """Blocks the event loop for this many seconds."""

    @step
    async def block(self, ctx: Context[float]) -> Outcome[int]:
        print_json(begun=ctx.step, id=ctx.id, attempt=ctx.attempt)
        time.sleep(ctx.state)
        return Done(os.getpid())

    @step
    async def compute(self, ctx: Context[float]) -> Outcome[int]:
        print_json(begun=ctx.step, id=ctx.id, attempt=ctx.attempt)
        until = time.monotonic() + ctx.state
        while time.monotonic() < until:
            sum(range(10_000))
        return Done(os.getpid())


class Killer(Machine[None, None]):
    """Kills its process."""

    @step
    async def kill(self, ctx: Context[None]) -> Outcome[None]:
        print_json(begun=ctx.step, id=ctx.id, attempt=ctx.attempt, key=ctx.idempotency_key)
        os.kill(os.getpid(), signal.SIGKILL)
        return Stop("unreachable")

    def handle(self, error: Exception, ctx: Context[None]) -> Outcome[None]:
        print_json(handled=str(error), id=ctx.id)
        return Stop(error)


class Rescued(Machine[None, str]):
    """Kills its process, then its next step kills another one; the second attempt at that step ends it."""

    @step(on_failure="mend")
    async def kill(self, ctx: Context[None]) -> Outcome[str]:
        print_json(begun=ctx.step, id=ctx.id)
        os.kill(os.getpid(), signal.SIGKILL)
        return Stop("unreachable")

    @step
    async def mend(self, ctx: Context[None]) -> Outcome[str]:
        print_json(begun=ctx.step, id=ctx.id)
        if not ctx.attempt:
            os.kill(os.getpid(), signal.SIGKILL)
        failure = ctx.failure
        return Done(
            f"{failure.type} {failure.step}, {ctx.idempotency_key}" if failure else "the failure is lost"
        )


@job("crashing.poison.v1", max_attempts=9, dead_letter="crashing.dead.v1")
async def poison(number: int, ctx: Context[int]) -> None:
    print_json(begun="poison", id=ctx.id, attempt=ctx.attempt)
    os.kill(os.getpid(), signal.SIGKILL)


def _on_event(event: Event) -> None:
    if not isinstance(event, _CHATTER):
        print_json(event=event.name, **msgspec.to_builtins(event))


def _main(dsn: str, settings: str) -> None:
    logging.basicConfig(level=logging.INFO)
    worker = Worker(
        [Hog, Killer, Rescued, Sleeper, poison],
        dsn=dsn,
        settings=msgspec.json.decode(settings, type=Settings),
    )

    def on_first_look(_: PickStop) -> None:
        unsubscribe()
        print_json(ready=True)

    unsubscribe = worker.telemetry.subscribe(on_first_look, PickStop)
    worker.telemetry.subscribe(_on_event)
    worker.run()
    print_json(ended=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
