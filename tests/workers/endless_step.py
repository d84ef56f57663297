"""A worker with a process step that does not end: `python -m tests.workers.endless_step DSN FILE`."""

from __future__ import annotations

import asyncio
import sys

from gen_durable import Worker
from tests.workers.pool_machines import Crunch, Work


async def main(dsn: str, file: str) -> None:
    async with Worker([Crunch], dsn=dsn) as worker:
        await worker.insert(Crunch, Work("", file=file), step="long")
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
