"""A proxy in front of PostgreSQL that records every statement sent by any driver."""

from __future__ import annotations

import asyncio
import re
import struct
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

from gen_durable._db.plan import in_schema
from tests.support.statement_files import all_statements

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
COMMIT = "COMMIT"
# asyncpg queries these types once per connection, with three statements.
ARRAYS = "select $1::bigint[], $2::int[], $3::interval[], $4::timestamptz[], $5::bytea[], $6::boolean[], $7::text[]"


class Wire:
    """Inside the `with` block, `dsn` leads through the proxy, and `sent` lists the statements.

    Statements of the engine are listed by name, others in upper case.
    """

    def __init__(self, dsn: str) -> None:
        self._upstream = _socket_of(dsn)
        self._directory = tempfile.TemporaryDirectory(prefix="wire-")
        self.dsn = re.sub(r"host=[^&]*", f"host={self._directory.name}", dsn)
        # The proxy's thread appends before it forwards a statement, so the entry exists when the reply arrives.
        self.sent: list[str] = []
        self.round_trips = 0
        """How often a client has waited for the server: messages that end with a query or a Sync."""
        self._names = _names()
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(10)
        self._directory.cleanup()

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        """The statements sent inside the block; the list is filled at the end of the block."""
        found: list[str] = []
        start = len(self.sent)
        yield found
        found.extend(self.sent[start:])

    def _serve(self, ready: threading.Event) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen(ready))

    async def _listen(self, ready: threading.Event) -> None:
        self._done = asyncio.Event()
        path = Path(self._directory.name, self._upstream.name)
        server = await asyncio.start_unix_server(self._connected, path)
        ready.set()
        await self._done.wait()
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, upstream = await asyncio.open_unix_connection(self._upstream)
        session = _Session(self, self._names)
        with suppress(ConnectionError, asyncio.CancelledError):
            async with asyncio.TaskGroup() as both:
                both.create_task(_pass_on(reader, upstream, session))
                both.create_task(_pass_on(answers, writer, None))


class _Session:
    """Parses the messages of one client into statements."""

    def __init__(self, wire: Wire, names: Mapping[str, str]) -> None:
        self._wire = wire
        self._names = names
        self._unread = b""
        self._has_started = False
        self._prepared: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}

    def feed(self, data: bytes) -> None:
        self._unread += data
        while True:
            head = 1 if self._has_started else 0
            if len(self._unread) < head + 4:
                return
            (length,) = struct.unpack_from("!I", self._unread, head)
            if len(self._unread) < head + length:
                return
            kind, body = self._unread[:head], self._unread[head + 4 : head + length]
            self._unread = self._unread[head + length :]
            self._has_started = True
            self._message(kind, body)

    def _message(self, kind: bytes, body: bytes) -> None:
        if kind in (b"Q", b"S"):
            self._wire.round_trips += 1
        if kind == b"Q":
            self._note(body.rstrip(b"\0").decode())
        elif kind == b"P":
            name, query, _ = body.split(b"\0", 2)
            self._prepared[name] = query.decode()
        elif kind == b"B":
            portal, name, _ = body.split(b"\0", 2)
            self._portals[portal] = self._prepared[name]
        elif kind == b"E":
            self._note(self._portals[body.split(b"\0", 1)[0]])

    def _note(self, text: str) -> None:
        self._wire.sent.append(self._names.get(text) or text.upper())


async def _pass_on(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, session: _Session | None
) -> None:
    try:
        while data := await source.read(2**16):
            if session is not None:
                session.feed(data)
            target.write(data)
            await target.drain()
    finally:
        target.close()


def _names() -> dict[str, str]:
    return {in_schema(statement.text, "gen_durable"): statement.name for _, statement in all_statements()}


def _socket_of(dsn: str) -> Path:
    options = parse_qs(urlsplit(dsn).query)
    return Path(unquote(options["host"][0]), f".s.PGSQL.{options['port'][0]}")
