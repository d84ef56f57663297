"""Wait for the dispatcher."""

from __future__ import annotations

import asyncio

from gen_durable import AsyncClient
from tests.support.waiting import PATIENCE


async def all_published(client: AsyncClient, sink: str | None = None) -> None:
    # Short, because leases of a killed process must expire.
    async with asyncio.timeout(3 * PATIENCE.total_seconds()):
        while await client.events(state="pending", sink=sink):
            await asyncio.sleep(0.02)
