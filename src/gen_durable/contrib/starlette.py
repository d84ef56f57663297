"""Starlette: the client that an application opened, wherever a request is.

    app = Starlette(routes=[...], lifespan=client.lifespan)

    async def place_order(request: Request) -> Response:
        order = await get_client(request).insert(Checkout, Order(42))

`client` may be a `Worker`: then its machines run in the process of the application. Needs the extra `fastapi`, or
Starlette alone.
"""

from __future__ import annotations

from typing import Any

try:
    from starlette.requests import HTTPConnection
except ImportError as error:
    raise ImportError(
        "gen_durable.contrib.starlette needs Starlette: pip install 'gen_durable[fastapi]'", name="starlette"
    ) from error

from ..async_client import AsyncClient
from ..errors import UsageError

__all__ = ["get_client"]


def get_client(connection: HTTPConnection) -> AsyncClient:
    """The client of the application that a request, or a websocket, came to.

    Raises:
        UsageError: its lifespan does not open one.
    """
    found: Any = getattr(connection.state, "durable", None)
    if not isinstance(found, AsyncClient):
        raise UsageError(
            "this application has opened no client",
            "say lifespan=client.lifespan, or pass on what that yields: "
            "async with client.lifespan(app) as state: yield {**state, …}",
        )
    return found
