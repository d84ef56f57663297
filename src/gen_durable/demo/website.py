"""The dashboard of the demo."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from ..async_client import AsyncClient

__all__ = ["dashboard"]


@asynccontextmanager
async def dashboard(client: AsyncClient, on_new_url: Callable[[str], None]) -> AsyncGenerator[str | None]:
    """Serve the dashboard on loopback. Yields its URL, or `None` if the extra `dash` is not installed.

    `on_new_url` gets another URL when one whose token has been used is opened.
    """
    try:
        from ..dashboard.serve import Server, bind_default, local_dashboard, url_of
    except ImportError:
        yield None
        return
    app, token = local_dashboard(client, environment="demo")
    with bind_default() as listening:
        app.on_new_token = lambda token: on_new_url(url_of(listening, token))
        server = Server(app, lambda: None)
        async with app.opened(), asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listening]))
            try:
                yield url_of(listening, token)
            finally:
                server.stop()
