"""A worker process with the code in PYTHONPATH. It stops at the end of its standard input."""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import timedelta

from gen_durable import Settings, Worker
from gen_durable._db.migrate import LATEST
from tests.upgrades.machines import ALL


async def main(dsn: str, name: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    settings = Settings(poll_interval=timedelta(milliseconds=50), lease=timedelta(seconds=6))
    async with Worker(
        ALL, dsn=dsn, settings=settings, queues={"default": 10, name: 10}, sinks=publish
    ) as worker:
        sys.stdout.write(f"{LATEST} {worker.name}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


async def publish(event: object) -> None:
    """Accept every event."""


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
