"""Wait for instances and watch them: one poller per client, for any number of readers and instances."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias

from .._core.change_cursor import ChangeCursor, Condition, EndCursor, wait_cursor
from .._db import changes
from .._db.changes import News
from .._db.collect import collect_done
from .._db.failures import StatementError
from .._db.pool import Database
from ..errors import NoTargetError
from .database_status import DatabaseStatus
from .poller import Poller

__all__ = ["Waiting"]

_Row: TypeAlias = Mapping[str, Any]
_Cursor: TypeAlias = EndCursor | ChangeCursor
_Answer: TypeAlias = tuple[_Row, Sequence[_Row]]
"""A row, and the executions that have ended since the reader's last row."""

# Rows that one query returns. If it is full, the next one follows at once.
_PAGE: Final = 250
# A query for all readers runs for at most this part of the time.
_MAX_LOAD: Final = 0.1


class Waiting(Poller):
    """Polls the instances of all readers that wait for news, in one statement.

    Changes that this process commits, and new readers, are polled for at once and alone; the instances of all readers
    at the pace of the poller. A reader that works on its news is not polled for: what happens meanwhile is in its next
    news, so it neither delays other readers nor fills the memory.
    """

    name = "wait"

    def __init__(self, database: Database, database_status: DatabaseStatus | None = None) -> None:
        super().__init__(database, database_status)
        # All of this is used on the event loop only. The readers that wait for news, in the order in which they came:
        self._futures: dict[_Cursor, asyncio.Future[_Answer]] = {}
        # Instances to poll before the next query for all; when that is due; and whether the last query was one.
        self._urgent: set[int] = set()
        self._due = 0.0
        self._is_full = True
        self._took = 0.0
        # By instance, the readers that have not read its end; and how many of them read changes.
        self._readers: defaultdict[int, set[_Cursor]] = defaultdict(set)
        self._watched: Counter[int] = Counter()
        # Instances that are not kept, and are not deleted yet because a reader reads their end. If it stops before, the
        # collector deletes them.
        self._kept: set[int] = set()
        self.is_needed: Callable[[int], bool] = lambda _: False
        """Whether something else of this client still reads an instance that was kept."""

    def keep(self, id: int) -> bool:
        """Whether an instance is read. The commit of its end then leaves it, and it is deleted after it was read."""
        if id not in self._readers:
            return False
        self._kept.add(id)
        return True

    def is_watching(self) -> bool:
        """Whether any reader reads changes."""
        return bool(self._watched)

    def ended_or_parked(self, ids: Iterable[int]) -> None:
        """Poll now for those of these instances that are read: some have ended or parked in this process."""
        if self._readers:
            self._hurry(self._readers.keys() & set(ids))

    def changed(self, ids: Iterable[int]) -> None:
        """Poll now for these instances, if changes of them are read."""
        self._hurry(self._watched.keys() & set(ids))

    async def until(self, id: int, condition: Condition) -> _Row:
        """Return the row of an instance once a condition holds, or the instance has ended."""
        cursor = wait_cursor(id, condition)
        with self._reading(cursor):
            row, _ = await self._next(cursor)
            return row

    async def changes(self, cursor: ChangeCursor) -> AsyncIterator[_Answer]:
        """Yield the changes of an instance until it has ended."""
        with self._reading(cursor):
            while not cursor.is_over:
                yield await self._next(cursor)

    @contextmanager
    def _reading(self, cursor: _Cursor) -> Iterator[None]:
        self._readers[cursor.id].add(cursor)
        if isinstance(cursor, ChangeCursor):
            self._watched[cursor.id] += 1
        try:
            yield
        finally:
            if isinstance(cursor, ChangeCursor):
                self._watched[cursor.id] -= 1
                if not self._watched[cursor.id]:
                    del self._watched[cursor.id]
            if self._leave(cursor):
                self._kept.discard(cursor.id)

    def _leave(self, cursor: _Cursor) -> bool:
        """Note that a reader needs its instance no more. Returns whether it was the last one."""
        readers = self._readers.get(cursor.id)
        if readers is None or cursor not in readers:
            return False
        readers.remove(cursor)
        if readers:
            return False
        del self._readers[cursor.id]
        return True

    async def _next(self, cursor: _Cursor) -> _Answer:
        self._start()
        future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._futures[cursor] = future
        if cursor.id in self._urgent:
            self.hint()
        elif isinstance(cursor, EndCursor) or cursor.row_version == "":
            self._hurry([cursor.id])
        try:
            return await future
        finally:
            self._futures.pop(cursor, None)

    def _hurry(self, ids: Iterable[int]) -> None:
        before = len(self._urgent)
        self._urgent.update(ids)
        if len(self._urgent) > before:
            self.hint()

    def _has_waiters(self) -> bool:
        return bool(self._futures)

    async def _ask(self) -> bool:
        # Half of the time at most, however many commits of this process hurry it.
        await asyncio.sleep(min(self._took, max(0.0, self._due - time.monotonic())))
        self._is_full = time.monotonic() >= self._due
        # Readers that come during the query are not among them: they may expect what it has not seen.
        asked = [cursor for cursor in self._futures if self._is_full or cursor.id in self._urgent]
        # The others are urgent once their readers are back from their last news.
        self._urgent -= {cursor.id for cursor in asked}
        self._urgent &= self._watched.keys()
        if not asked:
            return False
        began = time.monotonic()
        news = await self._read(asked)
        answered = [asked[one.place] for one in news if self._answer(asked[one.place], one)]
        await self._delete({cursor.id for cursor in answered if cursor.is_over})
        self._took = time.monotonic() - began
        if self._is_full:
            self._due = began + self._took / _MAX_LOAD
        if len(news) == _PAGE:
            self._urgent.update(cursor.id for cursor in asked)
            self.hint()
        return bool(answered)

    async def _read(self, asked: Sequence[_Cursor]) -> Sequence[News]:
        try:
            return await self._database.run(changes.read(asked, _PAGE))
        except StatementError:
            # Also those that were not asked, because they work on their news.
            for readers in self._readers.values():
                for reader in readers:
                    reader.forget()
            raise

    def _answer(self, cursor: _Cursor, news: News) -> bool:
        """Give a reader its news. Returns whether it has got an answer."""
        # Taken out now: the poller may ask again before the reader runs.
        if news.row is None:
            verb = "wait" if isinstance(cursor, EndCursor) else "watch"
            self._fail(cursor, NoTargetError(cursor.id, verb))
            return True
        if not cursor.take(news.row, news.executions, most=changes.MOST_EXECUTIONS):
            return False
        future = self._futures.pop(cursor, None)
        if future is not None and not future.done():
            future.set_result((news.row, news.executions))
        if cursor.is_over:
            self._leave(cursor)
        return True

    def _pause(self, pause: float, took: float) -> float:
        now = time.monotonic()
        if self._is_full:
            self._due = max(self._due, now + pause)
        return max(0.0, self._due - now)

    async def _delete(self, ended: Iterable[int]) -> None:
        """Delete instances that were kept for their readers. If this fails, the collector deletes them later."""
        # A reader that began after the query reads the row with the next one.
        kept = self._kept.intersection(ended).difference(self._readers)
        self._kept -= kept
        if read := [id for id in kept if not self.is_needed(id)]:
            with suppress(StatementError):
                await self._database.run(collect_done(read))

    def _fail(self, cursor: _Cursor, error: BaseException) -> None:
        future = self._futures.pop(cursor, None)
        if future is not None and not future.done():
            future.set_exception(error)

    def fail(self, error: BaseException) -> None:
        for cursor in list(self._futures):
            self._fail(cursor, error)
