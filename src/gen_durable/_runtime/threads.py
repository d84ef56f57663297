"""A bounded pool of daemon threads for plain `def` steps.

Not `concurrent.futures`: its threads are joined when the interpreter exits, and a step that hangs in one would hold
up a shutdown for ever. These die with the process; the lease of what they were doing brings the step back.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, TypeAlias

__all__ = ["Threads"]

_Work: TypeAlias = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]
_STOP: Final = None


class Threads:
    """At most `limit` threads, made as they are needed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        # Both are touched on the event loop only. A call counts until its thread is free again, waited for or not.
        self._busy = 0
        self._started = 0

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function in a thread and wait for it.

        A wait that is cancelled leaves a running call to itself, and takes back one that has not begun.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        self._busy += 1
        if self._busy > self._started and self._started < self._limit:
            self._started += 1
            threading.Thread(
                target=self._serve, name=f"gen_durable step {self._started}", daemon=True
            ).start()
        self._work.put((loop, future, lambda: context.run(function, *args)))
        return await future

    def close(self) -> None:
        """Let idle threads end; busy ones end after what they are doing."""
        for _ in range(self._started):
            self._work.put(_STOP)

    def _serve(self) -> None:
        while (work := self._work.get()) is not _STOP:
            loop, future, call = work
            result, error = None, None
            if not future.cancelled():
                try:
                    result = call()
                except BaseException as raised:  # noqa: BLE001 - carried over to whoever awaits the future
                    error = raised
            try:
                loop.call_soon_threadsafe(self._settle, future, result, error)
            except RuntimeError:
                return  # the loop is closed: the worker is gone, and with it everybody who could want this
            del work, future, call, result, error

    def _settle(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if future.done():
            return  # cancelled meanwhile
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):
            future.set_exception(RuntimeError("a step raised StopIteration"))  # a future cannot carry it
        else:
            future.set_exception(error)
