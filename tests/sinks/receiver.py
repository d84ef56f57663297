"""An HTTP server that records requests and gives configured answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    def __init__(self) -> None:
        self.got: list[Request] = []
        self.status = 204
        self.more = ""
        self.body = b""
        self.connections = 0
        self.delay = 0.0
        self.port = 0
        self._clients: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/events"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        self.connections += 1
        try:
            while line := await reader.readline():
                method, path, _ = line.decode().split(" ", 2)
                headers: dict[str, str] = {}
                while (text := (await reader.readline()).decode().strip()) != "":
                    name, _, value = text.partition(":")
                    headers[name.strip().lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.got.append(Request(method, path, headers, body))
                await asyncio.sleep(self.delay)
                writer.write(
                    f"HTTP/1.1 {self.status} X\r\ncontent-length: {len(self.body)}\r\n{self.more}\r\n".encode()
                )
                writer.write(self.body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._clients.discard(writer)
            writer.close()

    async def hang_up(self) -> None:
        """Close the server and all its connections."""
        # A connection that was accepted last is known some iterations of the loop later.
        await asyncio.sleep(0.01)
        for writer in self._clients:
            writer.transport.abort()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        await found.hang_up()
