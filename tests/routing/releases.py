"""Two releases of one shop. The new one has a new type, and a new version of another type.

Run as a program, this is a worker of one of them: `python -m tests.routing.releases DSN SETTINGS RELEASE SOURCE`.
It tells what it runs, one JSON object per line.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from gen_durable import (
    Backoff,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Settings,
    Spec,
    Worker,
    job,
    step,
)
from gen_durable.telemetry import HandlerMissing, PickStop
from tests.support.crashing_workers import print_json

__all__ = ["NEW", "OLD", "Month", "MonthV2", "charge", "nap", "refund"]

# A kill costs an execution, so the limit is high enough for several.
_PATIENT: Final = Backoff(max_attempts=10)


@job("shop.charge.v1", retry=_PATIENT)
async def charge(number: int, ctx: Context[int]) -> str:
    """A type of both releases."""
    print_json(ran=ctx.machine, version=ctx.version, id=ctx.id)
    await asyncio.sleep(0.01)
    return f"charged {number}"


@job("shop.refund.v1", retry=_PATIENT)
async def refund(number: int, ctx: Context[int]) -> str:
    """A type of the new release only."""
    print_json(ran=ctx.machine, version=ctx.version, id=ctx.id)
    await asyncio.sleep(0.01)
    return f"refunded {number}"


class Month(Machine[int, int], name="shop.month", retry=_PATIENT):
    """Schedules charges as children."""

    @step
    async def begin(self, ctx: Context[int]) -> Outcome[int]:
        print_json(ran=ctx.machine, version=ctx.version, id=ctx.id)
        return Next(self.split, requeue=True)

    @step
    async def split(self, ctx: Context[int]) -> Outcome[int]:
        return ScheduleChildren([Spec(charge, number) for number in range(ctx.state)], then=self.join)

    @step
    async def join(self, ctx: Context[int]) -> Outcome[int]:
        return Done(sum(child.is_done for child in ctx.children))


class MonthV2(Month, name="shop.month", version=2):
    """Schedules refunds too."""

    @step
    async def split(self, ctx: Context[int]) -> Outcome[int]:
        specs = [Spec(each, number) for number in range(ctx.state) for each in (charge, refund)]
        return ScheduleChildren(specs, then=self.join)


@job("shop.nap.v1", retry=_PATIENT)
async def nap(file: str, ctx: Context[str]) -> int:
    """Waits until a file exists."""
    print_json(ran=ctx.machine, version=ctx.version, id=ctx.id, attempt=ctx.attempt, key=ctx.idempotency_key)
    while not Path(file).exists():
        await asyncio.sleep(0.01)
    return ctx.attempt


OLD: Final = (charge, Month, nap)
NEW: Final = (charge, refund, Month, MonthV2, nap)


def _main(dsn: str, settings: str, release: str, source: str) -> None:
    logging.basicConfig(level=logging.INFO)
    sources: dict[str, Any] = {
        "queue": {"queues": {"default": 4}},
        "prefix": {"prefixes": {"shop.": 4}, "on_unknown": "leave"},
    }
    worker = Worker(
        NEW if release == "new" else OLD,
        dsn=dsn,
        settings=msgspec.json.decode(settings, type=Settings),
        **sources[source],
    )

    def on_first_look(_: PickStop) -> None:
        unsubscribe()
        print_json(ready=True)

    unsubscribe = worker.telemetry.subscribe(on_first_look, PickStop)
    worker.telemetry.subscribe(lambda event: print_json(missing=event.fsm), HandlerMissing)
    worker.run()
    print_json(ended=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
