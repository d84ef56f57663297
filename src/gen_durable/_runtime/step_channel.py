"""The channel from running steps to their worker: checkpoints, progress, items of streams, large content on demand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from .._channel import CLOSE
from .._core.codec import decode, encode
from .._core.model import ChildContent, Execution, Lease
from .._core.registry import Registry
from .._core.settle import Bounds
from .._db import pick as picks
from .._db import step_data
from .._db.failures import StatementError, is_outage, is_race
from .._db.plan import Plan
from .._polling import Pace
from ..errors import LeaseLostError, UsageError
from ..progress import Progress
from ..streams import Stream, stream_of
from .database_status import DatabaseRetry, DatabaseStatus
from .stream_writer import StreamWriter

__all__ = ["BaseChannel", "WorkerChannel"]


class BaseChannel:
    """What the channels of a worker and of a process of its pool have in common."""

    def __init__(self, registry: Registry, bounds: Bounds) -> None:
        self._registry = registry
        self._bounds = bounds
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        # Of executions whose checkpoint is stored now: an earlier call must not overwrite the value of a later one.
        self._storing: WeakValueDictionary[Lease, asyncio.Lock] = WeakValueDictionary()

    def wait(self, call: Coroutine[Any, Any, Any], method: str, /) -> Any:
        """Run a call of this channel on the event loop, and wait for its result. For methods of steps in threads."""
        try:
            self._check_may_block(method)
        except UsageError:
            call.close()
            raise
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def _check_may_block(self, method: str) -> None:
        if threading.get_ident() == self._thread:
            raise UsageError(
                f"{method} would block the event loop",
                f"in an `async def` step, use {method.removesuffix('_sync')}",
            )

    def publish(self, execution: Execution, stream: Any, item: object, /) -> Coroutine[Any, Any, None]:
        """Encode an item; return the call that publishes it. `CLOSE` closes the stream."""
        return self._publish(execution, *self._encoded(execution, stream, item))

    def publish_sync(self, execution: Execution, stream: Any, item: object, /) -> None:
        """Publish an item. For steps in threads: it takes no turn of the event loop, unless the buffer is full."""
        method = "ctx.close_stream_sync" if item is CLOSE else "ctx.publish_sync"
        self._check_may_block(method)
        name, text = self._encoded(execution, stream, item)
        while not self.add_item(execution, name, text):
            self.wait(self.room(execution), method)

    async def _publish(self, execution: Execution, name: str, text: str | None) -> None:
        while not self.add_item(execution, name, text):
            await self.room(execution)

    def _encoded(
        self, execution: Execution, stream: Stream[Any] | str, item: object
    ) -> tuple[str, str | None]:
        stream = stream_of(stream)
        if item is CLOSE:
            return stream.name, None
        what = f"an item of stream '{stream.name}'"
        declared = self._registry.find(execution.fsm, execution.version).definition.streams
        item_type = declared.get(stream.name, stream.item_type)
        return stream.name, encode(item, item_type, what, self._bounds.max_payload)

    def add_item(self, execution: Execution, stream: str, item: str | None) -> bool:
        """Buffer an item (JSON), or the close of a stream (`None`). Returns whether there was room. In any thread."""
        raise NotImplementedError

    async def room(self, execution: Execution) -> None:
        """Wait until the buffer of an execution has room."""
        raise NotImplementedError

    def checkpoint(self, execution: Execution, value: object, /) -> Coroutine[Any, Any, None]:
        """Encode the checkpoint of a step; return the call that stores it."""
        text = encode(value, self._checkpoint_type(execution), _what(execution), self._bounds.max_payload)
        return self._checkpoint(execution, text)

    def last_checkpoint(self, execution: Execution, /) -> Any:
        """Decode the last checkpoint of a step; `None` if there is none."""
        if execution.checkpoint is None:
            return None
        return decode(execution.checkpoint, self._checkpoint_type(execution), _what(execution))

    def _checkpoint_type(self, execution: Execution) -> Any:
        step = self._registry.find(execution.fsm, execution.version).definition.steps.get(execution.step)
        return Any if step is None else step.checkpoint

    async def _checkpoint(self, execution: Execution, text: str) -> None:
        async with self._storing.setdefault(execution.lease, asyncio.Lock()):
            if not await self.store_checkpoint(execution, text):
                raise LeaseLostError(execution.id, execution.fsm, execution.step, execution.step_seq + 1)
            # Not a copy: `handle` of this attempt gets a context of the same execution.
            msgspec.structs.force_setattr(execution, "checkpoint", text)

    async def store_checkpoint(self, execution: Execution, text: str) -> bool:
        """Store the checkpoint of a step, as JSON. Returns whether the execution still owns its lease."""
        raise NotImplementedError


class WorkerChannel(BaseChannel):
    """The channel of a worker, which has the database connections."""

    def __init__(
        self,
        registry: Registry,
        bounds: Bounds,
        run: Callable[[Plan[Any]], Awaitable[Any]],
        report: Callable[[Execution, Progress], None],
        writer: StreamWriter,
        database_status: DatabaseStatus | None = None,
    ) -> None:
        super().__init__(registry, bounds)
        self._run = run
        self._report = report
        self._writer = writer
        self._database_status = database_status

    def report(self, execution: Execution, progress: Progress, /) -> None:
        """Keep how far a step is, until the worker stores it. From any thread."""
        self._report(execution, progress)

    def add_item(self, execution: Execution, stream: str, item: str | None) -> bool:
        return self._writer.add(execution, stream, item)

    async def room(self, execution: Execution) -> None:
        await self._writer.room(execution)

    async def store_checkpoint(self, execution: Execution, text: str) -> bool:
        # After a crash, a step continues at its checkpoint: what it has published until then must not be lost.
        if execution.lease in self._writer.buffers:
            await self._writer.flush(execution.lease)
        retry, pace = DatabaseRetry("checkpoint", self._database_status), Pace()
        # The drain of the worker has released the lease of a step that it has left behind.
        while not self._writer.is_closed:
            try:
                # Safe to repeat after a lost reply: the guard and the value are the same.
                is_stored: bool | None = await self._run(step_data.checkpoint(execution, text))
            except StatementError as error:
                if not is_outage(error) and not is_race(error):
                    raise
                await asyncio.sleep(retry.pause(error))
                continue
            retry.succeeded()
            if is_stored is not None:
                return is_stored
            await asyncio.sleep(pace.pause() or 0.0)
        return False

    # Loading does not check the lease: the commit of the execution does.
    async def signals(self, execution: Execution, ids: Sequence[int]) -> Mapping[int, str]:
        """Load payloads of unread signals, by id."""
        found: Mapping[int, str] = await self._run(picks.signal_content(execution.id, ids))
        return found

    async def children(self, execution: Execution, ids: Sequence[int]) -> Mapping[int, ChildContent]:
        """Load states and results of children, by id."""
        found: Mapping[int, ChildContent] = await self._run(picks.child_content(execution.id, ids))
        return found


def _what(execution: Execution) -> str:
    return f"the checkpoint of {execution.fsm} {execution.id}, step {execution.step}"
