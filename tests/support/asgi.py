"""Send requests to an ASGI application in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Send requests to a started application, with the state of its lifespan."""
    async with app.router.lifespan_context(app) as state:

        async def handle(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx.ASGITransport(app=handle)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as requests:
            yield requests
