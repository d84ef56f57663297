"""A proxy in front of PostgreSQL that parses messages and can interfere with them.

It sees the statements that a client runs. At each of them it can hold what the client asks or what the server answers,
pass it on, cut the connection there, let the request arrive after its client is gone, or fall silent.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from tests.support.wire_proxy import _names, _socket_of

__all__ = [
    "BEGIN",
    "COMMIT",
    "DELETE_DONE",
    "FINISH",
    "FLUSH",
    "INBOX",
    "INSERT",
    "INSERT_PLAIN",
    "LOCK_FOR_EFFECT",
    "PICK",
    "PLAIN",
    "REAP",
    "RENEW",
    "SIGNAL",
    "SWEEP",
    "UNGATE",
    "Exchange",
    "HeldExchange",
    "Match",
    "Proxy",
    "Trap",
    "Verdict",
    "When",
    "saying",
]

_CANCEL: Final = 80877102
_BEGINS: Final = re.compile(r"\bbegin isolation level", re.IGNORECASE)
_HEADER: Final = struct.Struct("!ci")

# The statements of the engine, by the names that they have in its files; and those that begin and end a transaction.
PICK: Final = "pick"
INBOX: Final = "inboxes"
PLAIN: Final = "commit_plain"
DELETE_DONE: Final = "delete_done"
FLUSH: Final = "commit"
LOCK_FOR_EFFECT: Final = "lock_for_effect"
FINISH: Final = "finish"
SWEEP: Final = "sweep"
UNGATE: Final = "ungate"
RENEW: Final = "renew"
REAP: Final = "reap"
INSERT: Final = "insert"
INSERT_PLAIN: Final = "insert_plain"
SIGNAL: Final = "deliver"
BEGIN: Final = "BEGIN"
COMMIT: Final = "COMMIT"


class Verdict(Enum):
    PASS = auto()
    CUT = auto()
    """Both sides lose their connection. A request is not passed on; an answer is not either."""
    LATE = auto()
    """Of a request: the client loses its connection now, and the server gets the request a while later."""
    SILENCE = auto()
    """Nothing more is passed on, and the connection stays open."""


@dataclass(frozen=True)
class Exchange:
    """A statement that a client runs, and what its transaction ran before."""

    statement: str
    earlier: tuple[str, ...]


Match: TypeAlias = Callable[[Exchange], bool]
When: TypeAlias = Literal["asked", "answered"]


def saying(statement: str, *, after: str | None = None) -> Match:
    """Match one statement of the engine; with `after`, only later in the transaction of that statement."""
    known = {*_names().values(), BEGIN, COMMIT}
    assert statement in known, f"the engine has no statement {statement!r}"
    assert after is None or after in known, f"the engine has no statement {after!r}"

    def matches(exchange: Exchange) -> bool:
        return exchange.statement == statement and (after is None or after in exchange.earlier)

    return matches


@dataclass
class HeldExchange:
    """An exchange that waits for a verdict."""

    exchange: Exchange
    verdict: asyncio.Future[Verdict] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def give(self, verdict: Verdict) -> None:
        if not self.verdict.done():
            self.verdict.set_result(verdict)


@dataclass
class _Rule:
    match: Match
    when: When
    decide: Callable[[Exchange], Awaitable[Verdict]]
    left: int | None
    skips: int = 0


class Trap:
    """Holds exchanges one by one, for a test to decide about."""

    def __init__(self) -> None:
        self._held: asyncio.Queue[HeldExchange] = asyncio.Queue()

    async def decide(self, exchange: Exchange) -> Verdict:
        held = HeldExchange(exchange)
        self._held.put_nowait(held)
        return await held.verdict

    async def springs(self, within: float = 20.0) -> HeldExchange:
        """Wait for something to be held."""
        async with asyncio.timeout(within):
            return await self._held.get()


class Proxy:
    def __init__(self, dsn: str) -> None:
        self._server = urlsplit(dsn)
        self._socket = None if self._server.hostname else _socket_of(dsn)
        self._names = _names()
        self._rules: list[_Rule] = []
        self._links: set[asyncio.Task[None]] = set()
        self._open: set[_Link] = set()
        self._swallows_new = False
        self.dsn = ""
        """The same database, by way of the proxy."""
        self.cuts = 0
        self.silences = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str) -> AsyncIterator[Proxy]:
        proxy = cls(dsn)
        server = await asyncio.start_server(proxy._accept, "127.0.0.1", 0)
        who, port = proxy._server.netloc.rpartition("@")[0], server.sockets[0].getsockname()[1]
        proxy.dsn = f"postgresql://{who}@127.0.0.1:{port}{proxy._server.path}?sslmode=disable"
        try:
            yield proxy
        finally:
            server.close()
            # Who was accepted at the last moment gets a link some rounds of the loop later.
            await asyncio.sleep(0.02)
            while links := list(proxy._links):
                for link in links:
                    link.cancel()
                await asyncio.wait(links)
                await asyncio.sleep(0)

    def trap(self, match: Match, when: When, *, times: int | None = 1, skips: int = 0) -> Trap:
        """Hold the next such exchanges, after letting some go."""
        trap = Trap()
        self._rules.append(_Rule(match, when, trap.decide, times, skips))
        return trap

    def on(self, match: Match, when: When, verdict: Callable[[], Verdict], *, times: int | None = 1) -> None:
        """Deal with such exchanges by themselves."""

        async def decide(_: Exchange) -> Verdict:
            return verdict()

        self._rules.append(_Rule(match, when, decide, times))

    def swallow(self, *, new: bool = False) -> None:
        """Stop forwarding on all connections, and with `new` on later ones; they stay open."""
        for link in self._open:
            link.is_silent = True
        self._swallows_new = new

    def name_of(self, text: str) -> str:
        """What a statement is called; one that is not of the engine is called by its first word."""
        if _BEGINS.search(text):
            return BEGIN
        if text.endswith("; commit"):  # the end of a transaction that an effect ran in
            return COMMIT
        return self._names.get(text) or text.split(None, 1)[0].upper()

    def rule_for(self, exchange: Exchange) -> _Rule | None:
        for rule in self._rules:
            if rule.left == 0 or not rule.match(exchange):
                continue
            if rule.skips:
                rule.skips -= 1
                continue
            if rule.left is not None:
                rule.left -= 1
            return rule
        return None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._links.add(task)
        task.add_done_callback(self._links.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._swallows_new:
                await asyncio.Event().wait()
            link = _Link(self, (reader, writer), await self._connected())
            self._open.add(link)
            try:
                await link.run()
            finally:
                self._open.discard(link)
        except OSError:
            pass  # the server is away; so is the proxy, then
        finally:
            writer.transport.abort()

    async def _connected(self) -> _Streams:
        if self._socket is not None:
            return await asyncio.open_unix_connection(self._socket)
        return await asyncio.open_connection(self._server.hostname, self._server.port)


_Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One client and its connection to the server."""

    def __init__(self, proxy: Proxy, client: _Streams, server: _Streams) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._prepared: dict[bytes, str] = {}
        self._earlier: list[str] = []
        # What to do with the answer that is under way; None lets it flow.
        self._answer: tuple[_Rule, Exchange] | None = None
        self.is_silent = False

    async def run(self) -> None:
        tasks = [
            asyncio.get_running_loop().create_task(self._requests()),
            asyncio.get_running_loop().create_task(self._answers()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError, OSError, EOFError):
                    await task
            self._hang_up()

    def _hang_up(self) -> None:
        for writer in (self._to_client, self._to_server):
            writer.transport.abort()

    async def _requests(self) -> None:
        with suppress(OSError, EOFError):
            if not await self._startup():
                return
            while True:
                group, exchange = await self._group()
                if self.is_silent:
                    continue
                rule = None if exchange is None else self._proxy.rule_for(exchange)
                if rule is not None and exchange is not None:
                    if rule.when == "asked":
                        if not await self._asked(await rule.decide(exchange), group):
                            return
                        continue
                    self._answer = (rule, exchange)
                self._to_server.write(group)
                await self._to_server.drain()

    async def _asked(self, verdict: Verdict, group: bytes) -> bool:
        """Deal with a request; whether the connection goes on."""
        match verdict:
            case Verdict.PASS:
                self._to_server.write(group)
                return True
            case Verdict.SILENCE:
                self._proxy.silences += 1
                await asyncio.Event().wait()
            case Verdict.LATE:
                self._proxy.cuts += 1
                self.is_silent = True
                self._to_client.transport.abort()
                await asyncio.sleep(0.4)
                self._to_server.write(group)
                await asyncio.sleep(0.2)
            case Verdict.CUT:
                self._proxy.cuts += 1
        return False

    async def _answers(self) -> None:
        with suppress(OSError, EOFError):
            kept = b""
            while True:
                kind, message = await self._message(self._from_server)
                if self.is_silent:
                    continue
                if self._answer is None:
                    self._to_client.write(message)
                    await self._to_client.drain()
                    continue
                kept += message
                if kind != b"Z":
                    continue
                # The server is ready for the next query: whatever this one did is done and committed.
                (rule, exchange), self._answer = self._answer, None
                verdict = await rule.decide(exchange)
                if verdict is Verdict.SILENCE:
                    self._proxy.silences += 1
                    self.is_silent = True
                elif verdict is Verdict.PASS:
                    self._to_client.write(kept)
                else:
                    self._proxy.cuts += 1
                    return
                kept = b""

    async def _startup(self) -> bool:
        """The first message has no type. A request to cancel is all that such a connection says."""
        length = await self._from_client.readexactly(4)
        body = await self._from_client.readexactly(struct.unpack("!i", length)[0] - 4)
        self._to_server.write(length + body)
        await self._to_server.drain()
        return bool(struct.unpack("!i", body[:4])[0] != _CANCEL)

    async def _group(self) -> tuple[bytes, Exchange | None]:
        """Everything up to the point where the client waits for an answer, and the statement that it runs, if any."""
        group, text, runs = b"", "", False
        while True:
            kind, message = await self._message(self._from_client)
            group += message
            match kind:
                case b"P":
                    name, query, _ = message[5:].split(b"\0", 2)
                    text = self._prepared[name] = query.decode()
                case b"B":
                    _, name, _ = message[5:].split(b"\0", 2)
                    text = self._prepared.get(name, "")
                case b"E":
                    runs = True
                case b"Q":
                    return group, self._exchange(message[5:-1].decode())
                case b"S":
                    return group, self._exchange(text) if runs else None
                case b"H" | b"X":
                    return group, None

    def _exchange(self, text: str) -> Exchange:
        statement = self._proxy.name_of(text)
        exchange = Exchange(statement, tuple(self._earlier))
        if statement == BEGIN:
            self._earlier = [BEGIN]
        elif statement in (COMMIT, "ROLLBACK"):
            self._earlier = []
        elif self._earlier:
            self._earlier.append(statement)
        return exchange

    async def _message(self, reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
        header = await reader.readexactly(5)
        kind, length = _HEADER.unpack(header)
        return kind, header + await reader.readexactly(length - 4)
