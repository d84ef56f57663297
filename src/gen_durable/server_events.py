"""An ASGI endpoint that streams changes and items of instances to browsers, as server-sent events.

    app = ServerEvents(client, secret="whsec_…")     # mount it in an ASGI application: app.mount("/live", …)

    GET /id/42/watch                     changes of an instance: events of type `change`
    GET /key/order:42/stream/tokens      items of a stream: events of type `item`

A browser cannot sign a request or send headers with an `EventSource`, so the URL is signed: `signed_path` returns path
and query, valid for one instance, for what is read, and for a few minutes.

The id of an event is its position. A browser that reconnects sends it as `Last-Event-ID`, and continues behind it. The
last event has the type `end`: close the `EventSource`. A comment every 15 seconds keeps the connection open.

Answers: 401: the token is missing, wrong or has expired. 404: there is no such instance. 204: everything was read. 503
with Retry-After: the database is unreachable, or there are too many connections.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, quote, urlencode

import msgspec

from ._asgi import (
    Endpoint,
    Receive,
    Refusal,
    Scope,
    Send,
    Unavailable,
    headers_of,
    path_of,
    unavailable,
)
from ._checks import checked_delay
from ._db.failures import StatementError
from .async_client import AsyncClient
from .errors import NoTargetError, NotConnectedError, UnreachableError, UsageError
from .instance import Change, ExecutionRecord
from .refs import Target, target_value
from .sinks.signing import checked_secret
from .streams import Stream, StreamItem, stream_of

__all__ = ["ServerEvents", "signed_path"]

# Milliseconds after which a browser reconnects.
_RETRY: Final = 2000
_END: Final = "end"
_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
)
_DIGITS: Final = re.compile(r"\d{1,18}", re.ASCII)
_CHANGE_ID: Final = re.compile(r"\d{1,18}:\d{1,9}", re.ASCII)
_MAX_VALIDITY: Final = timedelta(days=1)


class _Request(NamedTuple):
    """What a request reads."""

    target: int | str
    stream: str | None
    """`None`: the changes of the instance."""


def signed_path(
    secret: str | bytes,
    target: Target,
    stream: Stream[Any] | str | None = None,
    *,
    expires_in: timedelta = timedelta(minutes=5),
) -> str:
    """Return path and query of a URL of `ServerEvents`, below its mount point.

        url = "/live" + signed_path(secret, chat, Chat.tokens)

    Check first that the user may read this instance. The URL is valid for this instance and for what is read, changes
    or one stream. It has to be valid when a connection begins, also when a browser reconnects.

    Args:
        secret: the secret of the endpoint.
        target: what `insert` returned, an id, or a correlation key.
        stream: the stream to read; default: the changes of the instance.
        expires_in: how long the URL is valid, at most a day.

    Raises:
        UsageError: the secret is too short, or the validity is not between 0 and a day.
    """
    checked_delay(expires_in, "expires_in")
    if expires_in > _MAX_VALIDITY:
        raise UsageError(f"expires_in is {expires_in}", "give at most a day; make a new URL for each page")
    path = _path(_Request(target_value(target), None if stream is None else stream_of(stream).name))
    # Rounded up: a validity of less than a second is one.
    now = time.time()  # noqa: TID251 - the endpoint compares it with its own clock
    moment = int(now + expires_in.total_seconds()) + 1
    return f"{path}?{urlencode({'expires': moment, 'token': _token(checked_secret(secret), path, moment)})}"


def _path(request: _Request) -> str:
    kind = "id" if isinstance(request.target, int) else "key"
    read = "watch" if request.stream is None else f"stream/{_quoted(request.stream)}"
    return f"/{kind}/{_quoted(str(request.target))}/{read}"


def _quoted(part: str) -> str:
    return quote(part, safe="", errors="surrogatepass")


def _token(key: bytes, path: str, moment: int) -> str:
    signed = hmac.new(key, f"gen_durable.read:{path}:{moment}".encode(), hashlib.sha256)
    return urlsafe_b64encode(signed.digest()).rstrip(b"=").decode()


class ServerEvents(Endpoint):
    """An ASGI application that streams changes and items of instances, as server-sent events.

        app.mount("/live", ServerEvents(client, secret="whsec_…"))

    Changes have status, step, progress and what the instance awaits, and the executions that have ended; not its state,
    its result, its errors and its keys.

    Served alone, it opens its client when the server starts and closes it when the server stops. Mounted in another
    application, it needs an open client: `FastAPI(lifespan=client.lifespan)`.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        secret: str | bytes | Iterable[str | bytes] | None,
        max_connections: int = 1000,
        heartbeat: timedelta = timedelta(seconds=15),
    ) -> None:
        """Configure the endpoint.

        Args:
            client: reads the instances.
            secret: the secret of `signed_path`; several during a rotation. `None` accepts every request: use it only
                behind a proxy that authenticates users, and decides what each may read.
            max_connections: maximum number of connections at a time; others are answered 503.
            heartbeat: pause between two comments on a connection without events. Proxies close silent connections.

        Raises:
            UsageError: a secret is too short, or the list of secrets is empty.
        """
        super().__init__(client, secret)
        self._max_connections = max_connections
        self._connections = 0
        self._heartbeat = checked_delay(heartbeat, "heartbeat").total_seconds()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            raise Refusal(405, "only GET is allowed")
        request = _read_path(path_of(scope))
        self._authorize(request, scope["query_string"])
        last = headers_of(scope).get("last-event-id", "")
        if last == _END:
            # The browser reconnects although everything was read. This answer ends that.
            await send(
                {"type": "http.response.start", "status": 204, "headers": [(b"cache-control", b"no-store")]}
            )
            await send({"type": "http.response.body", "body": b""})
            return
        if self._connections >= self._max_connections:
            raise Unavailable("too many connections; retry")
        self._connections += 1
        try:
            events = self._events(request, last, await self._find(request))
            async with aclosing(events):
                await self._stream(events, receive, send)
        finally:
            self._connections -= 1

    def _authorize(self, request: _Request, query: bytes) -> None:
        if not self._secrets:
            return
        given = parse_qs(query.decode("latin-1"))
        expires, token = (given.get(name, [""]) for name in ("expires", "token"))
        if len(expires) != 1 or len(token) != 1 or not _DIGITS.fullmatch(expires[0]):
            raise Refusal(401, "the token is missing; make the URL with signed_path(secret, target)")
        path, moment = _path(request), int(expires[0])
        claim = token[0].encode()
        # All secrets are compared, so the time does not tell which one matches.
        matching = [hmac.compare_digest(_token(key, path, moment).encode(), claim) for key in self._secrets]
        if not any(matching):
            raise Refusal(401, "the token does not match this path")
        if moment < time.time():  # noqa: TID251 - signed_path took it from its own clock
            raise Refusal(401, "the token has expired")

    async def _find(self, request: _Request) -> int:
        """Return the id of the instance."""
        try:
            if request.stream is not None:
                stream_of(request.stream)
            instance = await self._client.get(request.target, with_deleted=True)
        except UsageError as error:
            raise Refusal(400, str(error)) from None
        except (NotConnectedError, StatementError, UnreachableError) as error:
            raise unavailable(error, f"events not sent: {request.target!r}") from error
        if instance is None:
            raise Refusal(404, f"there is no instance {request.target!r}")
        return instance.id

    def _events(self, request: _Request, last: str, id: int) -> AsyncGenerator[bytes]:
        wanted = _CHANGE_ID if request.stream is None else _DIGITS
        if last and not wanted.fullmatch(last):
            raise Refusal(400, f"Last-Event-ID is {last!r}, which is not a position")
        if request.stream is None:
            return _change_events(self._client, id, last)
        return _item_events(self._client, id, request.stream, last)

    async def _stream(self, events: AsyncIterator[bytes], receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        await _send_text(send, f"retry: {_RETRY}\n\n".encode())
        loop = asyncio.get_running_loop()
        gone = loop.create_task(_disconnect(receive))
        following = loop.create_task(_next(events))
        try:
            while not gone.done():
                done, _ = await asyncio.wait(
                    {gone, following}, timeout=self._heartbeat, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    await _send_text(send, b":\n\n")
                if following in done:
                    text = following.result()
                    if text is None:
                        break
                    await _send_text(send, text)
                    following = loop.create_task(_next(events))
        except (NotConnectedError, StatementError, UnreachableError):
            pass  # the browser reconnects, and is answered 503
        except OSError:
            return  # the browser has gone; some servers raise this
        finally:
            for task in (gone, following):
                task.cancel()
            await asyncio.wait({gone, following})
        await send({"type": "http.response.body", "body": b""})


def _read_path(path: list[str]) -> _Request:
    match path:
        case ["id" | "key" as kind, target, "watch"]:
            stream = None
        case ["id" | "key" as kind, target, "stream", stream]:
            pass
        case _:
            raise Refusal(404, "get /id/ID/watch, /id/ID/stream/NAME, or /key/KEY/… for a correlation key")
    if kind == "key":
        return _Request(target, stream)
    if not _DIGITS.fullmatch(target):
        raise Refusal(404, f"{target!r} is not an id")
    return _Request(int(target), stream)


async def _send_text(send: Send, text: bytes) -> None:
    await send({"type": "http.response.body", "body": text, "more_body": True})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _next(events: AsyncIterator[bytes]) -> bytes | None:
    return await anext(events, None)


def _event(kind: str, id: object, data: object) -> bytes:
    # JSON has no line breaks, so it is one line of data.
    return f"event: {kind}\nid: {id}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


async def _change_events(client: AsyncClient, id: int, last: str) -> AsyncGenerator[bytes]:
    try:
        async for change in client.watch(id, after=last or None):
            yield _event("change", change.position, _change_data(change))
    except NoTargetError:
        pass  # it was removed
    yield _event(_END, _END, {})


async def _item_events(client: AsyncClient, id: int, stream: str, last: str) -> AsyncGenerator[bytes]:
    try:
        async for item in client.stream(id, stream, after=int(last or 0)):
            yield _event("item", item.position, _item_data(item))
    except NoTargetError:
        pass  # it was removed
    yield _event(_END, _END, {})


def _change_data(change: Change[Any, Any]) -> Mapping[str, Any]:
    instance = change.instance
    names = ("id", "machine", "version", "status", "step", "step_seq", "attempt", "progress", "awaits")
    more = ("await_deadline", "children_pending", "eligible_at", "updated_at", "finished_at")
    return {
        **{name: getattr(instance, name) for name in (*names, *more)},
        "executions": [_execution_data(one) for one in change.executions],
    }


def _execution_data(one: ExecutionRecord) -> Mapping[str, Any]:
    names = ("attempt", "step", "step_seq", "outcome", "started_at", "finished_at")
    return {name: getattr(one, name) for name in names}


def _item_data(item: StreamItem[Any]) -> Mapping[str, Any]:
    names = ("position", "value", "step", "attempt", "execution", "created_at")
    return {name: getattr(item, name) for name in names}
