"""Open pages without a browser: `python -m bench.dashboard.soak_clients ADDRESS TOKEN COUNT`, visits on stdin.

Each page keeps a stream of its live topics, and makes the requests of its page: at first all, then those that the page
repeats. It parses nothing, so that 50 of them cost little. At SIGTERM it prints the number of answers by status.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

import msgspec

from .pages import Visit

__all__: list[str] = []

_PART: Final = 2**16
# Answers by status.
_answers: Final = Counter[str]()


class _Page:
    """The connections of one page."""

    def __init__(self, address: str, token: str, visit: Visit) -> None:
        self._where = urlsplit(address)
        self._token = token
        self._visit = visit
        self._one_at_a_time = asyncio.Lock()
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def stay_open(self) -> None:
        """Behave as the page until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            for url in self._visit.gets:
                await self._get(url)
            for url, per_second in self._visit.reloads.items():
                group.create_task(self._reload(url, per_second))

    async def _reload(self, url: str, per_second: float) -> None:
        while True:
            await asyncio.sleep(random.uniform(0.9, 1.1) / per_second)
            await self._get(url)

    async def _listen(self) -> None:
        if not self._visit.events:
            return
        reader, _ = await self._ask(self._visit.events)
        while await reader.read(_PART):
            pass
        raise ConnectionError(f"{self._visit.events} has ended")

    async def _get(self, url: str) -> None:
        async with self._one_at_a_time:
            try:
                reader, head = await self._head(url)
            except (asyncio.IncompleteReadError, ConnectionError):
                # As browsers do: the server had closed an idle connection.
                self._connection = None
                reader, head = await self._head(url)
            status, length = head.split(b" ", 2)[1], _length(head.split(b"\r\n"))
            await reader.readexactly(length)
        _answers[status.decode()] += 1

    async def _head(self, url: str) -> tuple[asyncio.StreamReader, bytes]:
        reader, _ = self._connection = await self._ask(url, self._connection)
        return reader, await reader.readuntil(b"\r\n\r\n")

    async def _ask(
        self, url: str, connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert self._where.hostname is not None  # noqa: S101 - the address of a server
        if connection is None:
            connection = await asyncio.open_connection(self._where.hostname, self._where.port, limit=2**20)
        connection[1].write(
            f"GET {url} HTTP/1.1\r\nHost: {self._where.netloc}\r\nAuthorization: Bearer {self._token}\r\n\r\n".encode()
        )
        return connection


def _length(lines: Iterable[bytes]) -> int:
    for line in lines:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise ConnectionError("an answer without a length")


async def _open(address: str, token: str, count: int, visits: list[Visit]) -> None:
    pages = [_Page(address, token, visit) for visit in itertools.islice(itertools.cycle(visits), count)]
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(page.stay_open()) for page in pages]
    loop.add_signal_handler(signal.SIGTERM, lambda: [task.cancel() for task in tasks])
    print("open", flush=True)
    await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error
    print(json.dumps(_answers))


def main(address: str, token: str, count: str) -> None:
    """Keep the pages open until SIGTERM."""
    visits = msgspec.convert(json.load(sys.stdin), list[Visit])
    asyncio.run(_open(address, token, int(count), visits))


if __name__ == "__main__":
    main(*sys.argv[1:])
