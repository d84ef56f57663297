"""Worker processes for tests of limits, and a wait for their results."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

from gen_durable import AsyncClient, Status
from tests.support.forkserver import Child, launch


async def finished(client: AsyncClient, count: int) -> None:
    async with asyncio.timeout(60):
        while await client.count(status=Status.DONE) < count:
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def worker_process(dsn: str, lease: float, concurrency: int = 10) -> AsyncIterator[Child]:
    process = launch("tests.limits.machines", dsn, str(lease), str(concurrency), output=2)
    try:
        yield process
    finally:
        process.send(signal.SIGKILL)
        await process.ends()
