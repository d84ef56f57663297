"""FastAPI: the client as a dependency.

    app = FastAPI(lifespan=client.lifespan)

    @app.post("/orders")
    async def place_order(order: Order, durable: DurableClient) -> int:
        return (await durable.insert(Checkout, order)).id

If `client` is a `Worker`, its machines run in the process of the application. Needs the extra `fastapi`.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

try:
    from fastapi import Depends
except ImportError as error:
    raise ImportError(
        "gen_durable.contrib.fastapi needs FastAPI: pip install 'gen_durable[fastapi]'", name="fastapi"
    ) from error

from ..async_client import AsyncClient
from .starlette import get_client

__all__ = ["DurableClient", "get_client"]

DurableClient: TypeAlias = Annotated[AsyncClient, Depends(get_client)]
"""Annotate a parameter with it to get the client of the application."""
