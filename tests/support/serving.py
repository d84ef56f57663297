"""Serve an ASGI application with uvicorn on a free port, with its lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

__all__ = ["serving"]


@asynccontextmanager
async def serving(app: Any, **options: Any) -> AsyncIterator[str]:
    """Yield the address, without a slash at its end."""
    config = uvicorn.Config(
        app, port=0, log_level="warning", timeout_graceful_shutdown=1, lifespan="on", **options
    )
    server = uvicorn.Server(config)
    running = asyncio.get_running_loop().create_task(server.serve())
    async with asyncio.timeout(30):
        while not server.started:
            assert not running.done()
            await asyncio.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running
