"""Whether a worker is alive and whether it is ready, over HTTP, for whoever supervises it.

Only as much of HTTP as a probe speaks: one request per connection, no body, an answer and good-bye. A loop that is
stuck answers nobody, which is the point.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, TypeAlias

from ..errors import UsageError

__all__ = ["Answer", "Health"]

Answer: TypeAlias = tuple[HTTPStatus, str]

# A probe sends a line and a few headers at once. Whoever sends more, or slowly, is none.
_MAX_HEAD: Final = 8192
_PATIENCE: Final = 5.0
_MAX_CLIENTS: Final = 32
_METHODS: Final = ("GET", "HEAD")


class Health:
    """A tiny server: paths, and what each of them says now."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], Answer]]) -> None:
        self._host = host
        self._port = port
        self._pages = pages
        # In the order of their arrival.
        self._clients: dict[asyncio.StreamWriter, None] = {}
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen.

        Raises:
            UsageError: somebody else does so there already, or it may not be done.
        """
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_MAX_HEAD)
        except OSError as error:
            raise UsageError(
                f"health checks cannot listen on {self._host}:{self._port}: {error.strerror or error}",
                "give another port with health= or --health",
            ) from error

    def close(self) -> None:
        """Listen no longer, and hang up on everybody."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._clients):
            writer.transport.abort()

    @property
    def port(self) -> int:
        """Where it listens; with port 0, the one that was free."""
        if self._server is None:
            return self._port
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= _MAX_CLIENTS:
            # The oldest connection, not this one: idle connections must not keep probes out.
            oldest = next(iter(self._clients))
            del self._clients[oldest]
            oldest.transport.abort()
        self._clients[writer] = None
        try:
            async with asyncio.timeout(_PATIENCE):
                writer.write(await self._reply(reader))
                await writer.drain()
        except (TimeoutError, OSError):
            writer.transport.abort()  # it does not read, or has gone: nothing of it is kept waiting
        finally:
            self._clients.pop(writer, None)
            writer.close()

    async def _reply(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return _response(HTTPStatus.BAD_REQUEST, "that is no request")
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST, "that is no request")
        method, target, _ = words
        if method not in _METHODS:
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
        page = self._pages.get(target.partition("?")[0])
        if page is None:
            return _response(HTTPStatus.NOT_FOUND, f"there are {', '.join(self._pages)}")
        return _response(*page(), has_body=method == "GET")


def _response(status: HTTPStatus, text: str, *, has_body: bool = True) -> bytes:
    body = f"{text}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if has_body else b"")
