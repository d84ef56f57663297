"""`python -m tests.db.boot DSN SCHEMA WHEN`: open a client at a monotonic time."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from gen_durable import AsyncClient, Settings


async def boot(dsn: str, schema: str) -> None:
    async with AsyncClient(dsn, settings=Settings(schema=schema)) as client:
        os.write(1, f"{await client.count()}\n".encode())


if __name__ == "__main__":
    time.sleep(max(0.0, float(sys.argv[3]) - time.monotonic()))
    asyncio.run(boot(sys.argv[1], sys.argv[2]))
