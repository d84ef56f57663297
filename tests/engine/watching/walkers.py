"""A machine of many steps, some of which fail once.

`python -m tests.engine.watching.walkers DSN SETTINGS-AS-JSON` runs a worker for it.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

import msgspec

from gen_durable import Context, Done, Machine, Next, Outcome, Retry, Settings, Worker, step

__all__ = ["Walker"]


class Walker(Machine[int, int]):
    """Takes as many steps as its state says; every seventh one fails at first."""

    @step
    async def walk(self, ctx: Context[int]) -> Outcome[int]:
        await asyncio.sleep(0.002)
        if ctx.state % 7 == 0 and ctx.attempt == 0:
            return Retry(timedelta(0))
        return Next(self.walk, ctx.state - 1) if ctx.state > 1 else Done(0)


async def _run(dsn: str, settings: Settings) -> None:
    async with Worker([Walker], dsn=dsn, settings=settings):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Settings)))
