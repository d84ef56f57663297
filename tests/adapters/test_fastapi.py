"""FastAPI and Starlette: the application opens the client, and requests get it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from gen_durable import AsyncClient
from gen_durable.contrib import fastapi as adapter
from gen_durable.contrib.fastapi import DurableClient
from gen_durable.contrib.starlette import get_client
from gen_durable.errors import NotConnectedError, UsageError
from gen_durable.sinks import bound_secret, sign
from tests.clients.machines import Number
from tests.support.asgi import served

SECRET = "0123456789abcdef0123456789abcdef"


@pytest.mark.clause("ADAPT-11", "ADAPT-12")
async def test_example(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_DSN", dsn)
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    monkeypatch.delitem(sys.modules, "examples.fastapi_app", raising=False)
    module = importlib.import_module("examples.fastapi_app")
    async with served(module.app) as requests:
        response = await requests.post("/orders/42")
        assert (response.status_code, list(response.json())) == (200, ["id"])
        assert (await requests.get("/orders/42")).json() == {"status": "awaiting_signal"}
        body = b'{"amount": 100}'
        unsigned = await requests.post("/hooks/order:42/payment", content=body, headers={"webhook-id": "1"})
        assert unsigned.status_code == 401
        for answer in (202, 200):
            signed = sign(bound_secret(SECRET, "order:42", "payment"), "1", body)
            found = await requests.post("/hooks/order:42/payment", content=body, headers=signed)
            assert found.status_code == answer
        assert (await requests.get("/orders/42")).json() == {
            "status": "done",
            "result": "order 42: 100 paid",
        }
        assert (await requests.get("/orders/43")).status_code == 404
        await requests.post("/orders/43")
        event = (
            b'{"specversion":"1.0","id":"1","source":"bank","type":"payment","subject":"order:43","data":{}}'
        )
        headers = {"content-type": "application/cloudevents+json", **sign(SECRET, "1", event)}
        assert (await requests.post("/hooks", content=event, headers=headers)).status_code == 307
        assert (await requests.post("/hooks/", content=event, headers=headers)).status_code == 202
        failed = (await requests.get("/orders/43")).json()
        assert (failed["status"], "amount" in failed["why"]) == ("failed", True)
        await requests.post("/orders/44")
        await module.durable.cancel("order:44", reason="changed their mind")
        order = (await requests.get("/orders/44")).json()
        assert order == {"status": "cancelled", "why": "changed their mind"}


@pytest.mark.clause("ADAPT-11")
async def test_custom_lifespan_can_merge_the_client_state(dsn: str) -> None:
    client = AsyncClient(dsn)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
        async with client.lifespan(app) as state:
            yield {**state, "mailer": "post"}

    async def place(request: Request) -> PlainTextResponse:
        found = await get_client(request).insert(Number, 1)
        return PlainTextResponse(f"{request.state.mailer} {type(found).__name__}")

    app = Starlette(routes=[Mount("/shop", routes=[Route("/", place)])], lifespan=lifespan)
    async with served(app) as requests:
        assert (await requests.get("/shop/")).text == "post Inserted"
    with pytest.raises(NotConnectedError):
        await client.insert(Number, 1)


@pytest.mark.clause("ADAPT-11")
async def test_missing_client_raises_with_advice() -> None:
    app = FastAPI()

    @app.get("/")
    async def look(durable: DurableClient) -> None: ...

    async with served(app) as requests:
        with pytest.raises(UsageError, match=r"has not opened a client; pass lifespan=client\.lifespan"):
            await requests.get("/")


@pytest.mark.clause("ADAPT-11")
async def test_websocket_gets_the_client(dsn: str) -> None:
    client = AsyncClient(dsn)
    app = FastAPI(lifespan=client.lifespan)

    @app.websocket("/")
    async def talk(socket: WebSocket, durable: DurableClient) -> None:
        await socket.accept()
        await socket.send_text(str(durable is client))
        await socket.close()

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async with client.lifespan(app) as state:
        scope = {"type": "websocket", "path": "/", "headers": [], "query_string": b"", "state": dict(state)}
        await app(scope, receive, send)
    assert [message.get("text") for message in sent] == [None, "True", None]


@pytest.mark.clause("ADAPT-13")
@pytest.mark.parametrize("name", ["fastapi", "starlette", "django"])
def test_missing_library_raises_with_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [each for each in sys.modules if each.split(".")[0] == name or f".contrib.{name}" in each]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    extra = "django" if name == "django" else "fastapi"
    with pytest.raises(ImportError, match=rf"contrib\.{name} needs .+: pip install 'gen_durable\[{extra}\]'"):
        importlib.import_module(f"gen_durable.contrib.{name}")


def test_exported_names() -> None:
    assert adapter.get_client is get_client
