"""One interface for both clients."""

from __future__ import annotations

import asyncio
from typing import Any

from gen_durable import Client


class Awaitable:
    """A blocking client with the methods of the async one, so that one test covers both."""

    def __init__(self, client: Client) -> None:
        self.blocking = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.blocking, name)

        async def call(*args: Any, **options: Any) -> Any:
            return await asyncio.to_thread(method, *args, **options)

        return call
