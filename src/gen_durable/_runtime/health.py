"""Health checks over HTTP: whether a worker is alive, and whether it is ready.

Implements only what a probe needs: one request per connection, without a body. A blocked event loop does not answer,
so the probe fails, as it should.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, TypeAlias

from ..errors import UsageError

__all__ = ["Answer", "Health"]

Answer: TypeAlias = tuple[HTTPStatus, str]

# A probe sends a request line and a few headers at once. Drop clients that send more, or slowly.
_MAX_HEAD: Final = 8192
_TIMEOUT: Final = 5.0
_MAX_CLIENTS: Final = 32
_METHODS: Final = ("GET", "HEAD")


class Health:
    """An HTTP server with a function per path that returns the current status."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], Answer]]) -> None:
        self._host = host
        self._port = port
        self._pages = pages
        # In order of arrival.
        self._clients: dict[asyncio.StreamWriter, None] = {}
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Start to listen.

        Raises:
            UsageError: the address is in use, or not allowed.
        """
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_MAX_HEAD)
        except OSError as error:
            raise UsageError(
                f"cannot listen for health checks on {self._host}:{self._port}: {error.strerror or error}",
                "give another port with health= or --health",
            ) from error

    def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._clients):
            writer.transport.abort()

    @property
    def port(self) -> int:
        """The port; if port 0 was given, the one that the system chose."""
        if self._server is None:
            return self._port
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= _MAX_CLIENTS:
            # Drop the oldest connection, not this one: idle connections must not keep probes out.
            oldest = next(iter(self._clients))
            del self._clients[oldest]
            oldest.transport.abort()
        self._clients[writer] = None
        try:
            async with asyncio.timeout(_TIMEOUT):
                writer.write(await self._reply(reader))
                await writer.drain()
        except (TimeoutError, OSError):
            writer.transport.abort()  # the client does not read, or has gone
        finally:
            self._clients.pop(writer, None)
            writer.close()

    async def _reply(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return _response(HTTPStatus.BAD_REQUEST, "not an HTTP request")
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST, "not an HTTP request")
        method, target, _ = words
        if method not in _METHODS:
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "use GET or HEAD")
        page = self._pages.get(target.partition("?")[0])
        if page is None:
            return _response(HTTPStatus.NOT_FOUND, f"not found; available: {', '.join(self._pages)}")
        return _response(*page(), has_body=method == "GET")


def _response(status: HTTPStatus, text: str, *, has_body: bool = True) -> bytes:
    body = f"{text}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if has_body else b"")
