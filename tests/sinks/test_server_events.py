"""`ServerEvents`: changes and items as server-sent events, for signed URLs only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from gen_durable import AsyncClient, Context, Done, Machine, Outcome, Stream, step
from gen_durable._db.failures import StatementError
from gen_durable.errors import UnreachableError, UsageError
from gen_durable.server_events import ServerEvents, signed_path

SECRET = "0123456789abcdef0123456789abcdef"
OTHER = "another secret, long enough"


class Chat(Machine[dict[str, Any], str]):
    tokens = Stream("tokens", str)

    @step
    async def answer(self, ctx: Context[dict[str, Any]]) -> Outcome[str]:
        return Done("secret result")


class Browser:
    """One request of an `EventSource`."""

    def __init__(self, app: Any, url: str, last: str = "", method: str = "GET", **scope: Any) -> None:
        parts = urlsplit(url)
        headers = [(b"last-event-id", last.encode())] if last else []
        self.scope = {
            "type": "http",
            "method": method,
            "path": parts.path,
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "headers": headers,
            **scope,
        }
        self.gone = asyncio.Event()
        self.messages = asyncio.Queue[Any]()
        self.task = asyncio.ensure_future(app(self.scope, self._receive, self._send))
        self.text = ""

    async def _receive(self) -> Any:
        if not self.scope.get("sent"):
            self.scope["sent"] = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.messages.put_nowait(message)

    async def status(self) -> int:
        async with asyncio.timeout(10):
            start = await self.messages.get()
        self.headers = {name.decode(): value.decode() for name, value in start["headers"]}
        status: int = start["status"]
        return status

    async def chunk(self) -> str:
        async with asyncio.timeout(10):
            message = await self.messages.get()
        text: str = message["body"].decode()
        return text

    async def event(self) -> tuple[str, str, Any]:
        """Type, id and data of the next event."""
        while not (text := await self.chunk()).startswith("event: "):
            pass
        kind, id, data, *end = text.split("\n")
        assert end == ["", ""]
        return kind.removeprefix("event: "), id.removeprefix("id: "), json.loads(data.removeprefix("data: "))

    async def leave(self) -> None:
        self.gone.set()
        await asyncio.wait_for(self.task, 10)


@asynccontextmanager
async def opened(app: Any, url: str, last: str = "", **scope: Any) -> AsyncIterator[Browser]:
    browser = Browser(app, url, last, **scope)
    try:
        assert await browser.status() == 200
        yield browser
    finally:
        await browser.leave()


async def refused(app: Any, url: str, last: str = "", method: str = "GET") -> tuple[int, str]:
    browser = Browser(app, url, last, method)
    status, body = await browser.status(), await browser.chunk()
    await browser.leave()
    return status, json.loads(body)["error"] if body else ""


@pytest.fixture
async def client(durable_dsn: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(durable_dsn) as opened:
        yield opened


async def publish(db: Any, id: int, *values: str) -> None:
    await db.execute(
        """insert into gen_durable.stream_items
                  (instance_id, stream, position, step, step_seq, execution, attempt, number, value)
           select $1, 'tokens', ord + (select count(*) from gen_durable.stream_items), 'answer', 1, 1, 0, ord, to_jsonb(value)
             from unnest($2::text[]) with ordinality as item (value, ord)""",
        id,
        list(values),
    )


async def end(db: Any) -> None:
    await db.execute(
        """update gen_durable.gen_durable set status = 'done', finished_at = now(), result = '"secret result"'"""
    )


@pytest.mark.clause("SSE-1")
async def test_changes_are_streamed_without_state_and_result(client: AsyncClient, db: Any) -> None:
    app = ServerEvents(client, secret=[OTHER, SECRET])
    chat = await client.insert(Chat, {"password": "secret state"}, correlation_key="chat:4/2")
    position = ""
    targets: list[Any] = [chat, "chat:4/2"]
    for target in targets:
        await db.execute(
            "update gen_durable.gen_durable set status = 'runnable', finished_at = null, result = null"
        )
        async with opened(app, signed_path(SECRET, target)) as browser:
            assert browser.headers == {
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-store",
                "x-accel-buffering": "no",
            }
            assert await browser.chunk() == "retry: 2000\n\n"
            kind, _, data = await browser.event()
            assert (kind, data["status"], data["step"], data["executions"]) == (
                "change",
                "runnable",
                "answer",
                [],
            )
            await end(db)
            kind, position, data = await browser.event()
            assert (kind, data["status"]) == ("change", "done")
            assert "secret" not in str(data)
            assert "chat:4/2" not in str(data)
            assert await browser.event() == ("end", "end", {})
            assert not await browser.chunk()
    # The browser comes back behind its last event.
    async with opened(app, signed_path(SECRET, chat), last=position) as browser:
        assert (await browser.event())[0] == "change"
    status, _ = await refused(app, signed_path(SECRET, chat), last="end")
    assert status == 204


@pytest.mark.clause("SSE-1")
async def test_items_are_streamed_and_continue_behind_the_last_one(client: AsyncClient, db: Any) -> None:
    app = ServerEvents(client, secret=SECRET)
    chat = await client.insert(Chat, {})
    await publish(db, chat.id, "Hello\n", "data: x")
    async with opened(app, signed_path(SECRET, chat, Chat.tokens)) as browser:
        found = [await browser.event() for _ in range(2)]
        assert [(id, data["value"]) for _, id, data in found] == [("1", "Hello\n"), ("2", "data: x")]
    await publish(db, chat.id, "!")
    async with opened(app, signed_path(SECRET, chat, "tokens"), last="2") as browser:
        assert (await browser.event())[1] == "3"
        await end(db)
        assert (await browser.event())[0] == "end"


@pytest.mark.clause("SSE-2")
async def test_only_signed_urls_are_answered(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    app = ServerEvents(client, secret=SECRET)
    chat, other = await client.insert(Chat, {}), await client.insert(Chat, {})
    url = signed_path(SECRET, chat)
    path, _, query = url.partition("?")
    expires, token = query.split("&")
    late = expires.replace("expires=", "expires=9")
    urls = [
        path,
        f"{path}?{expires}",
        f"{path}?{token}",
        f"{path}?{late}&{token}",
        f"{path}?{query[:-1]}",
        f"{path}?{query}&{token}",
        f"{path}?expires=x&{token}",
        f"{path}?expires={10**30}&{token}",
        f"/id/{other.id}/watch?{query}",
        f"/key/{chat.id}/watch?{query}",
        f"/id/{chat.id}/stream/tokens?{query}",
        signed_path(OTHER, chat),
        signed_path(SECRET, chat, Chat.tokens).replace("tokens", "others"),
        f"{path}?{expires}&token=%C3%A9",
    ]
    for each in urls:
        assert (await refused(app, each))[0] == 401, each
    monkeypatch.setattr("gen_durable.server_events.time.time", lambda: 4_000_000_000.0)
    assert await refused(app, url) == (401, "the token has expired")


@pytest.mark.clause("SSE-2")
async def test_without_a_secret_all_requests_are_answered(client: AsyncClient) -> None:
    chat = await client.insert(Chat, {})
    async with opened(ServerEvents(client, secret=None), f"/id/{chat.id}/watch") as browser:
        assert (await browser.event())[0] == "change"


async def test_mounted_endpoint_reads_the_path_below_its_mount_point(client: AsyncClient) -> None:
    chat = await client.insert(Chat, {})
    app = ServerEvents(client, secret=SECRET)
    async with opened(app, "/app/live" + signed_path(SECRET, chat), root_path="/app/live") as browser:
        assert (await browser.event())[0] == "change"


async def test_bad_requests_are_refused(client: AsyncClient) -> None:
    app = ServerEvents(client, secret=None)
    chat = await client.insert(Chat, {})
    url = f"/id/{chat.id}"
    assert (await refused(app, f"{url}/watch", method="POST"))[0] == 405
    for path in (
        "/",
        url,
        f"{url}/read",
        f"{url}/stream",
        f"{url}/stream/a/b",
        "/id/x/watch",
        "/id/4711/watch",
        "/key/no/watch",
    ):
        assert (await refused(app, path))[0] == 404, path
    assert (await refused(app, f"{url}/watch", last="7"))[0] == 400
    assert (await refused(app, f"{url}/stream/tokens", last="1:2"))[0] == 400
    assert (await refused(app, f"/key/{'k' * 5000}/watch"))[0] == 400
    assert (await refused(app, f"{url}/stream/{'s' * 300}"))[0] == 400


@pytest.mark.clause("SSE-3")
async def test_silent_connection_gets_comments(client: AsyncClient) -> None:
    app = ServerEvents(client, secret=None, heartbeat=timedelta(milliseconds=50))
    chat = await client.insert(Chat, {})
    async with opened(app, f"/id/{chat.id}/stream/tokens") as browser:
        assert [await browser.chunk() for _ in range(3)] == ["retry: 2000\n\n", ":\n\n", ":\n\n"]


@pytest.mark.clause("SSE-3")
async def test_connections_are_limited_and_a_disconnect_frees_one(client: AsyncClient) -> None:
    app = ServerEvents(client, secret=None, max_connections=2)
    chat = await client.insert(Chat, {})
    url = f"/id/{chat.id}/watch"
    async with opened(app, url) as first:
        await first.event()
        async with opened(app, url):
            browser = Browser(app, url)
            assert await browser.status() == 503
            assert browser.headers["retry-after"] == "5"
            await browser.leave()
        async with opened(app, url) as again:
            await again.event()
    # A reader that has left is not polled for.
    assert client._waiting is not None
    assert not client._waiting._readers


@pytest.mark.clause("SSE-4")
@pytest.mark.parametrize(
    "error",
    [UnreachableError("localhost", "it is gone", "start it"), StatementError("57P01", "terminated")],
    ids=["network", "shutdown"],
)
async def test_outage_is_answered_503(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def unreachable(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(client, "get", unreachable)
    browser = Browser(ServerEvents(client, secret=None), "/id/1/watch")
    assert await browser.status() == 503
    assert browser.headers["retry-after"] == "5"
    await browser.leave()


@pytest.mark.clause("SSE-4")
async def test_closed_client_ends_connections(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn) as client:
        app = ServerEvents(client, secret=None)
        chat = await client.insert(Chat, {})
        browser = Browser(app, f"/id/{chat.id}/watch")
        assert await browser.status() == 200
        await browser.event()
    assert not await browser.chunk()
    assert (await refused(app, f"/id/{chat.id}/watch"))[0] == 503


async def test_removed_instance_ends_the_events(client: AsyncClient, db: Any) -> None:
    chat = await client.insert(Chat, {})
    async with opened(ServerEvents(client, secret=None), f"/id/{chat.id}/watch") as browser:
        await browser.event()
        await db.execute("delete from gen_durable.gen_durable")
        assert (await browser.event())[0] == "end"


async def test_lifespan_opens_and_closes_the_client(durable_dsn: str) -> None:
    client = AsyncClient(durable_dsn)
    app = ServerEvents(client, secret=None)
    stop, sent = asyncio.Event(), asyncio.Queue[Any]()
    began = False

    async def receive() -> Any:
        nonlocal began
        if began:
            await stop.wait()
        began = True
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.put_nowait(message["type"])

    running = asyncio.ensure_future(app({"type": "lifespan"}, receive, send))
    assert await sent.get() == "lifespan.startup.complete"
    assert await client.count() == 0
    stop.set()
    await running
    assert await sent.get() == "lifespan.shutdown.complete"


def test_invalid_arguments_are_rejected() -> None:
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: signed_path("short", 1), "too short"),
        (lambda: signed_path(SECRET, 1, expires_in=timedelta(days=2)), "expires_in is 2 days"),
        (lambda: signed_path(SECRET, 1, expires_in=timedelta(seconds=-1)), "expires_in is negative"),
        (lambda: signed_path(SECRET, 1, ""), "the name of a stream"),
        (lambda: ServerEvents(AsyncClient(), secret=[]), "secret= is empty"),
        (lambda: ServerEvents(AsyncClient(), secret="short"), "too short"),
    ]
    for call, problem in calls:
        with pytest.raises(UsageError, match=problem):
            call()
