"""The stream writer: appends what running steps publish, in batches.

One batch is in flight at a time, so the items of an execution are stored in order. Before the outcome of a step
commits, its items are stored, or dropped if its lease is lost.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from .._core.model import Execution, Lease
from .._db import streams
from .._db.failures import StatementError, is_data
from .._db.plan import Plan
from .database_status import DatabaseRetry, DatabaseStatus
from .wake import Wakes

__all__ = ["StreamWriter"]

_log: Final = logging.getLogger("gen_durable.worker")
# Seconds between the starts of two batches, unless a buffer is half full or a step waits for its items.
_INTERVAL: Final = 0.05
# What one execution may have published and not stored. Per execution, so that one whose row is locked by another
# transaction delays no other.
_MAX_ITEMS: Final = 2000
_MAX_BYTES: Final = 512 * 1024
# What one batch takes, a buffer more at most: items, and their bytes.
_BATCH: Final = 4000
_BATCH_BYTES: Final = 4 * 1024 * 1024


class _Buffer:
    """Items of one execution that are not stored yet."""

    __slots__ = ("added", "bytes", "execution", "is_locked", "next_numbers", "pending", "stored", "waiters")

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.pending: dict[str, list[str | None]] = {}
        """Items that wait for a batch, by stream."""
        self.next_numbers: dict[str, int] = {}
        """By stream, the number of the first pending item within the execution."""
        # Items that were published, and how many of them are stored or refused.
        self.added = self.stored = 0
        # Of the pending items and those of the batch in flight.
        self.bytes = 0
        self.is_locked = False
        """Whether the last batch found the row locked by another transaction."""
        self.waiters: list[asyncio.Future[None]] = []

    @property
    def items(self) -> int:
        return self.added - self.stored

    @property
    def is_full(self) -> bool:
        return self.items >= _MAX_ITEMS or self.bytes >= _MAX_BYTES

    @property
    def is_half_full(self) -> bool:
        return self.items >= _MAX_ITEMS // 2 or self.bytes >= _MAX_BYTES // 2

    def take(self) -> dict[str, list[str | None]]:
        """Remove the pending items and return them. Of a locked row only the first one, to try whether it is free."""
        taken, self.pending = self.pending, {}
        if self.is_locked:
            self.pending = taken
            stream = next(iter(taken))
            taken = {stream: [self.pending[stream].pop(0)]}
            if not self.pending[stream]:
                del self.pending[stream]
        return taken

    def wake(self) -> None:
        """Let those that wait look at the buffer again."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


class _Taken(NamedTuple):
    """Items of a batch."""

    buffer: _Buffer
    chunk: streams.Chunk
    bytes: int


class StreamWriter:
    """Buffers published items, and appends them about every 50 ms. Steps in any thread may add items."""

    def __init__(
        self,
        run: Callable[[Plan[Any]], Awaitable[Any]],
        wakes: Wakes,
        database_status: DatabaseStatus | None = None,
    ) -> None:
        self._run = run
        self._wakes = wakes
        self._retry = DatabaseRetry("stream", database_status)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        # Guards the buffers: steps in threads add to them.
        self._lock = threading.Lock()
        self.buffers: dict[Lease, _Buffer] = {}
        """The executions that have published."""
        # Those with pending items, the longest waiting first.
        self._pending: dict[Lease, _Buffer] = {}
        self._arrived = asyncio.Event()
        self._urgent = asyncio.Event()
        self._began = 0.0
        self.is_closed = False
        """Whether the worker has stopped. A step that it has left behind publishes nothing more."""

    def add(self, execution: Execution, stream: str, value: str | None) -> bool:
        """Buffer an item (JSON), or the close of a stream (`None`). Returns whether there was room.

        May be called in any thread. Items of a step that has ended are dropped.
        """
        lease = execution.lease
        with self._lock:
            if self.is_closed:
                return True
            buffer = self.buffers.get(lease)
            if buffer is None or buffer.execution.step_seq < execution.step_seq:
                buffer = self.buffers[lease] = _Buffer(execution)
            elif buffer.execution.step_seq > execution.step_seq:
                return True
            if buffer.is_full:
                return False
            buffer.pending.setdefault(stream, []).append(value)
            buffer.added += 1
            buffer.bytes += _size(value)
            is_first = lease not in self._pending
            self._pending[lease] = buffer
            is_urgent = buffer.is_half_full
        if is_first or is_urgent:
            self._call(self._signal, is_urgent)
        return True

    async def room(self, execution: Execution) -> None:
        """Wait until the buffer of an execution has room."""
        while (buffer := self.buffers.get(execution.lease)) is not None and buffer.is_full:
            await self._changed(buffer)

    async def flush(self, lease: Lease) -> None:
        """Wait until what an execution has published so far is stored, or dropped because its lease is lost.

        Not for what is published meanwhile: a task or thread that a step has left behind may publish forever.
        """
        if (buffer := self.buffers.get(lease)) is None:
            return
        published = buffer.added
        while buffer.stored < published and self.buffers.get(lease) is buffer:
            self._signal(True)
            await self._changed(buffer)

    def discard(self, lease: Lease) -> None:
        """Forget an execution that has ended."""
        with self._lock:
            self._pending.pop(lease, None)
            buffer = self.buffers.pop(lease, None)
        if buffer is not None:
            buffer.wake()

    def close(self) -> None:
        """Drop what is left, and let those that wait go on."""
        with self._lock:
            self.is_closed = True
        for lease in list(self.buffers):
            self.discard(lease)

    async def run(self) -> None:
        """Write batches until cancelled."""
        while True:
            await self._arrived.wait()
            try:
                async with asyncio.timeout(max(0.0, self._began + _INTERVAL - time.monotonic())):
                    await self._urgent.wait()
            except TimeoutError:
                pass
            await self.write()

    async def write(self) -> None:
        """Append one batch. Items of locked rows stay in their buffers."""
        self._arrived.clear()
        self._urgent.clear()
        self._began = time.monotonic()
        if batch := self._take():
            await self._append(batch)
        if self._pending:
            self._arrived.set()

    async def _append(self, batch: list[_Taken]) -> None:
        appended: streams.Appended | None = None
        while appended is None:
            try:
                appended = await self._run(streams.append([taken.chunk for taken in batch]))
            except StatementError as error:
                if is_data(error):
                    await self._isolate(error, batch)
                    return
                await asyncio.sleep(self._retry.pause(error))
        self._retry.succeeded()
        lost, locked = appended
        # All items of an execution or none, because `flush` counts them. Those that are stored are skipped next time.
        put_back = {batch[place].buffer for place in locked}
        for place, taken in enumerate(batch):
            taken.buffer.is_locked = taken.buffer in put_back
            if taken.buffer.is_locked:
                self._put_back(taken)
            elif place in lost:
                self._drop(taken.buffer)
            else:
                self._free(taken)
        if len(lost) + len(locked) < len(batch):
            self._wakes.items()

    async def _isolate(self, error: StatementError, batch: list[_Taken]) -> None:
        """Append the chunks of a refused batch one by one, and drop the refused one."""
        if len(batch) > 1:
            for taken in batch:
                await self._append([taken])
            return
        (taken,) = batch
        execution = taken.buffer.execution
        _log.error(
            "items refused by the database: %s %d, step %s, stream '%s': %s; they are dropped",
            *(execution.fsm, execution.id, execution.step, taken.chunk.stream, error),
        )
        self._free(taken)

    def _take(self) -> list[_Taken]:
        batch: list[_Taken] = []
        left: list[_Buffer] = []
        count = size = 0
        with self._lock:
            while self._pending and count < _BATCH and size < _BATCH_BYTES:
                lease = next(iter(self._pending))
                buffer = self._pending.pop(lease)
                for stream, values in buffer.take().items():
                    first = buffer.next_numbers.get(stream, 1)
                    buffer.next_numbers[stream] = first + len(values)
                    chunk = streams.Chunk(*lease, buffer.execution.step_seq, stream, first, values)
                    batch.append(taken := _Taken(buffer, chunk, sum(map(_size, values))))
                    count += len(values)
                    size += taken.bytes
                if buffer.pending:
                    left.append(buffer)
            self._pending.update((buffer.execution.lease, buffer) for buffer in left)
        return batch

    def _put_back(self, taken: _Taken) -> None:
        buffer, chunk = taken.buffer, taken.chunk
        with self._lock:
            if self.buffers.get(buffer.execution.lease) is buffer:
                buffer.pending[chunk.stream] = chunk.values + buffer.pending.get(chunk.stream, [])
                buffer.next_numbers[chunk.stream] = chunk.first
                self._pending[buffer.execution.lease] = buffer

    def _free(self, taken: _Taken) -> None:
        with self._lock:
            taken.buffer.stored += len(taken.chunk.values)
            taken.buffer.bytes -= taken.bytes
        taken.buffer.wake()

    def _drop(self, buffer: _Buffer) -> None:
        """Drop the items of an execution that has lost its lease."""
        if self.buffers.get(buffer.execution.lease) is buffer:
            self.discard(buffer.execution.lease)

    def _signal(self, is_urgent: bool) -> None:
        self._arrived.set()
        if is_urgent:
            self._urgent.set()

    def _call(self, function: Callable[[bool], None], is_urgent: bool) -> None:
        if threading.get_ident() == self._thread:
            function(is_urgent)
        else:
            self._loop.call_soon_threadsafe(function, is_urgent)

    async def _changed(self, buffer: _Buffer) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        buffer.waiters.append(waiter)
        await waiter


def _size(value: str | None) -> int:
    return 1 if value is None else len(value)
