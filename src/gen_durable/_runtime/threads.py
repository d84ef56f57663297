"""A bounded pool of daemon threads for plain `def` steps.

Not `concurrent.futures`: its threads are joined when the interpreter exits, and a step that hangs in one would hold
up a shutdown for ever. These die with the process; the lease of what they were doing brings the step back.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

from ..errors import StepTimeoutError

__all__ = ["Threads"]

_log: Final = logging.getLogger("gen_durable.worker")
_STOP: Final = None
# Seconds until a thread that could not be started is tried again.
_AGAIN: Final = 0.5


class _Call:
    """One call, and whoever awaits it."""

    __slots__ = ("function", "future", "is_abandoned", "is_over", "loop", "timeout", "timer")

    def __init__(self, function: Callable[[], Any], timeout: StepTimeoutError | None) -> None:
        self.function = function
        self.timeout = timeout
        self.timer: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        # The thread sets the one, the loop the other, each under the lock of the pool and never both.
        self.is_over = False
        self.is_abandoned = False


class Threads:
    """At most `limit` threads, made as they are needed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._work: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        # Touched on the event loop only. A call counts until its thread is free again, waited for or not.
        self._busy = 0
        self._started = 0
        self._made = 0
        self._lock = threading.Lock()

    async def run(
        self, function: Callable[..., Any], *args: Any, timeout: StepTimeoutError | None = None
    ) -> Any:
        """Call the function in a thread and wait for it.

        A wait that is cancelled leaves a running call to itself, and takes back one that has not begun.

        Args:
            function: what to call, with `args`.
            timeout: what to raise when the call has run for as long as it says. The call goes on all the same, on a
                thread that counts no longer.
        """
        context = contextvars.copy_context()
        call = _Call(lambda: context.run(function, *args), timeout)
        self._busy += 1
        self._start_thread()
        self._work.put(call)
        # No frame in the traceback of an exception may refer to its future: a cycle would keep all that the call had.
        outcome = self._outcome(call.future)
        del call
        return await outcome

    async def _outcome(self, future: asyncio.Future[Any]) -> Any:
        result, error = await future
        del future
        try:
            # Raised here, not by the future: that would pass a GeneratorExit on as if we were thrown away.
            if error is not None:
                raise error
            return result
        finally:
            del error

    def close(self) -> None:
        """Let idle threads end; busy ones end after what they are doing."""
        for _ in range(self._started):
            self._work.put(_STOP)

    def _start_thread(self) -> None:
        if self._busy <= self._started or self._started >= self._limit:
            return
        self._made += 1
        thread = threading.Thread(target=self._serve, name=f"gen_durable step {self._made}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has none to give just now: those that there are take turns
            _log.warning("a step waits for a thread: %s; trying again", error)
            asyncio.get_running_loop().call_later(_AGAIN, self._start_thread)
        else:
            self._started += 1

    def _serve(self) -> None:
        while (call := self._work.get()) is not _STOP:
            result, error = None, None
            try:
                if not call.future.cancelled():
                    if call.timeout is not None:
                        call.loop.call_soon_threadsafe(self._watch, call)
                    try:
                        result = call.function()
                    except BaseException as raised:  # noqa: BLE001 - carried over to whoever awaits the future
                        error = raised
                with self._lock:
                    call.is_over = True
                    if call.is_abandoned:
                        return  # another thread has this one's place
                call.loop.call_soon_threadsafe(self._finish, call, result, error)
            except RuntimeError:
                return  # the loop is closed: the worker is gone, and with it everybody who could want this
            del call, result, error

    def _watch(self, call: _Call) -> None:
        """The call has begun: give it its time."""
        assert call.timeout is not None  # noqa: S101 - only such a call is watched
        call.timer = call.loop.call_later(call.timeout.timeout.total_seconds(), self._abandon, call)

    def _abandon(self, call: _Call) -> None:
        with self._lock:
            if call.is_over:
                return
            call.is_abandoned = True
        self._busy -= 1
        self._started -= 1
        self._start_thread()
        if not call.future.done():
            assert call.timeout is not None  # noqa: S101 - only such a call is abandoned
            _log.warning("%s; its thread is left to itself, and what it returns is dropped", call.timeout)
            call.future.set_exception(call.timeout)

    def _finish(self, call: _Call, result: Any, error: BaseException | None) -> None:
        if call.timer is not None:
            call.timer.cancel()  # or it would keep the call for as long as it might have taken
        self._settle(call.future, result, error)

    def _settle(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if future.done():
            return  # cancelled meanwhile
        if isinstance(error, StopIteration):
            error = RuntimeError("a step raised StopIteration")  # a coroutine cannot
        future.set_result((result, error))
