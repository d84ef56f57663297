"""Starlette: the client of an application in its requests.

    app = Starlette(routes=[...], lifespan=client.lifespan)

    async def place_order(request: Request) -> Response:
        order = await get_client(request).insert(Checkout, Order(42))

If `client` is a `Worker`, its machines run in the process of the application. Needs Starlette, for example by the extra
`fastapi`.
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
    """Return the client of the application of a request or websocket.

    Raises:
        UsageError: the lifespan of the application does not open a client.
    """
    found: Any = getattr(connection.state, "durable", None)
    if not isinstance(found, AsyncClient):
        raise UsageError(
            "this application has not opened a client",
            "pass lifespan=client.lifespan to it, or merge its state: "
            "async with client.lifespan(app) as state: yield {**state, …}",
        )
    return found
