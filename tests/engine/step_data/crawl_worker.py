"""A worker for the machines of `crawler`: `python -m tests.engine.step_data.crawl_worker DSN SETTINGS-AS-JSON`."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from gen_durable import Settings, Worker
from tests.engine.step_data.crawler import MACHINES


async def main(dsn: str, settings: str) -> None:
    async with Worker(MACHINES, dsn=dsn, settings=msgspec.json.decode(settings, type=Settings)):
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
