"""Follow streams: one poller per client, for any number of readers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

from .._core.stream_cursor import StreamCursor
from .._db import streams
from .._db.collect import collect_done
from .._db.failures import StatementError
from .._db.pool import Database
from .._typing import ItemT
from ..streams import StreamItem
from .database_status import DatabaseStatus
from .poller import Poller
from .waiting import Waiting

__all__ = ["Following"]

_Rows: TypeAlias = list[Mapping[str, Any]]

# Items that one query reads of all streams together, and the least that it reads of each.
_PAGE: Final = 2000
_LEAST: Final = 10


class Following(Poller):
    """Polls all streams whose readers wait for items, in one statement.

    A reader that works on its items is not polled for. So a slow reader keeps one page in memory, and a reader
    that has stopped keeps nothing.
    """

    name = "stream"

    def __init__(
        self, database: Database, waiting: Waiting, database_status: DatabaseStatus | None = None
    ) -> None:
        super().__init__(database, database_status)
        self._waiting = waiting
        self._futures: dict[StreamCursor[Any], asyncio.Future[_Rows]] = {}
        # The number of readers by instance; and instances that are not kept, and are not deleted yet because of them.
        self._readers: Counter[int] = Counter()
        self._kept: set[int] = set()

    def is_followed(self, id: int) -> bool:
        """Whether a stream of this instance is read."""
        return id in self._readers

    def keep(self, id: int) -> bool:
        """Whether a stream of an instance is read. The commit of its end then leaves it; the last reader deletes it."""
        if id not in self._readers:
            return False
        self._kept.add(id)
        return True

    async def items(self, cursor: StreamCursor[ItemT]) -> AsyncIterator[StreamItem[ItemT]]:
        """Yield the items of a stream until the instance has ended or the stream is closed."""
        self._readers[cursor.id] += 1
        try:
            # At once for a new reader, and for one whose page was full. Others wait for the next query: many readers
            # come back at the same time after each one.
            is_urgent = True
            while not cursor.is_over:
                rows = await self._next(cursor, is_urgent=is_urgent)
                is_urgent = len(rows) >= _LEAST
                for item in cursor.take(rows):
                    yield item
        finally:
            await self._release(cursor.id)

    async def _next(self, cursor: StreamCursor[Any], *, is_urgent: bool) -> _Rows:
        self._start()
        future: asyncio.Future[_Rows] = asyncio.get_running_loop().create_future()
        self._futures[cursor] = future
        if is_urgent:
            self.hint()
        try:
            return await future
        finally:
            self._futures.pop(cursor, None)

    async def _release(self, id: int) -> None:
        self._readers[id] -= 1
        if self._readers[id]:
            return
        del self._readers[id]
        if id in self._kept:
            self._kept.discard(id)
            # A waiter that has begun in the meantime deletes it.
            if not self._waiting.keep(id):
                with suppress(StatementError):
                    await self._database.run(collect_done([id]))

    def _has_waiters(self) -> bool:
        return bool(self._futures)

    async def _ask(self) -> bool:
        asked = list(self._futures.items())
        most = max(_LEAST, _PAGE // len(asked))
        found: dict[int, _Rows] = {}
        for place, row in await self._database.run(streams.read([cursor for cursor, _ in asked], most)):
            found.setdefault(place, []).append(row)
        for place, rows in found.items():
            cursor, future = asked[place]
            # Taken out now: the poller may ask again before the reader runs.
            if self._futures.pop(cursor, None) is not None and not future.done():
                future.set_result(rows)
        return bool(found)

    def fail(self, error: BaseException) -> None:
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)
