"""A bounded pool of daemon threads for plain `def` steps.

Not `concurrent.futures`: the interpreter joins its threads at exit, so a step that hangs would block the shutdown
forever. Daemon threads end with the process; when the lease expires, the step runs again.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

from .._checks import duration_text
from ..errors import StepTimeoutError

__all__ = ["Threads"]

_log: Final = logging.getLogger("gen_durable.worker")
_STOP: Final = None
# Seconds until the next attempt after a thread could not be started.
_START_RETRY: Final = 0.5


class _Call:
    """One call, and the future of its result."""

    __slots__ = ("function", "future", "is_abandoned", "is_over", "loop", "timeout", "timer")

    def __init__(self, function: Callable[[], Any], timeout: StepTimeoutError | None) -> None:
        self.function = function
        self.timeout = timeout
        self.timer: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        # The thread sets is_over, the loop is_abandoned, under the lock of the pool. Never both.
        self.is_over = False
        self.is_abandoned = False


class Threads:
    """At most `limit` threads, started on demand."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._work: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        # Used on the event loop only. A call counts until its thread is free again, awaited or not.
        self._busy = 0
        self._started = 0
        self._made = 0
        self._lock = threading.Lock()

    async def run(
        self, function: Callable[..., Any], *args: Any, timeout: StepTimeoutError | None = None
    ) -> Any:
        """Call the function in a thread and wait for it.

        If the wait is cancelled, a running call continues unobserved, and one that has not begun is dropped.

        Args:
            function: called with `args`.
            timeout: raised after the call has run for its duration. The call continues in a thread that no longer
                counts towards the limit.
        """
        context = contextvars.copy_context()
        call = _Call(lambda: context.run(function, *args), timeout)
        self._busy += 1
        self._start_thread()
        self._work.put(call)
        # No frame in the traceback of an exception may refer to its future: a cycle would keep the arguments alive.
        outcome = self._outcome(call.future)
        del call
        return await outcome

    async def _outcome(self, future: asyncio.Future[Any]) -> Any:
        result, error = await future
        del future
        try:
            # Raised here, not by the future: a GeneratorExit from the future would look like our own close().
            if error is not None:
                raise error
            return result
        finally:
            del error

    def close(self) -> None:
        """End idle threads now, and busy ones after their current call."""
        for _ in range(self._started):
            self._work.put(_STOP)

    def _start_thread(self) -> None:
        if self._busy <= self._started or self._started >= self._limit:
            return
        self._made += 1
        thread = threading.Thread(target=self._serve, name=f"gen_durable step {self._made}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system refuses a new thread; the started ones serve all calls
            _log.warning("thread not started: %s; retrying in %s s", error, _START_RETRY)
            asyncio.get_running_loop().call_later(_START_RETRY, self._start_thread)
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
                    except BaseException as raised:  # noqa: BLE001 - raised where the future is awaited
                        error = raised
                with self._lock:
                    call.is_over = True
                    if call.is_abandoned:
                        return  # another thread has replaced this one
                call.loop.call_soon_threadsafe(self._finish, call, result, error)
            except RuntimeError:
                return  # the event loop is closed: the worker has ended
            del call, result, error

    def _watch(self, call: _Call) -> None:
        """Start the timeout of a call that has begun."""
        assert call.timeout is not None  # noqa: S101 - only calls with a timeout are watched
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
            timeout = call.timeout
            assert timeout is not None  # noqa: S101 - only calls with a timeout are abandoned
            _log.warning(
                "step timed out: %s, step %s, after %s; its thread keeps running, its result is discarded",
                timeout.machine,
                timeout.step,
                duration_text(timeout.timeout),
            )
            call.future.set_exception(timeout)

    def _finish(self, call: _Call, result: Any, error: BaseException | None) -> None:
        if call.timer is not None:
            call.timer.cancel()  # otherwise the timer keeps the call alive until its timeout
        self._settle(call.future, result, error)

    def _settle(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if future.done():
            return  # cancelled
        if isinstance(error, StopIteration):
            error = RuntimeError("a step raised StopIteration")  # a coroutine cannot raise it
        future.set_result((result, error))
