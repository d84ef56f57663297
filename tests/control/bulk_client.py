"""A client process that runs a bulk verb or a batch and may be killed during it.

Run it as `python -m tests.control.bulk_client DSN VERB ID…`.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from gen_durable import AsyncClient
from gen_durable._verbs import batches


async def _main(dsn: str, verb: str, *ids: str) -> None:
    async with AsyncClient(dsn) as client:
        match verb:
            case "cancel":
                await client.cancel_all()
            case "delete":
                await client.delete_all()
            case "retry":
                await client.retry_all()
            case "batch":
                batches._LEASE = timedelta(seconds=2)  # type: ignore[misc]
                await client.run_batch(int(ids[0]))
            case "restore":
                for id in ids:
                    await client.restore(int(id))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
