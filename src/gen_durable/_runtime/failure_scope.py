"""The `async with` block of a worker: a failure of the worker cancels it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

__all__ = ["FailureScope"]


class FailureScope:
    """Cancels the task inside `async with` when the worker fails, as `asyncio.TaskGroup` does."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - `async with` runs in a task
        self._task = task
        # Cancellation requests that are not from here.
        self._earlier_requests = task.cancelling()
        self._has_cancelled = False
        self._is_left = False
        self._error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """Cancel the block; `conclude` raises this error."""
        if self._error is not None:
            return
        self._error = error
        if not self._is_left:
            self._has_cancelled = self._task.cancel()

    async def leave(self) -> None:
        """Stop cancelling the task: the shutdown begins."""
        self._is_left = True
        if self._has_cancelled:
            # The cancellation may be pending: consume it, or it would hit the first await of the shutdown.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    def conclude(self, raised: BaseException | None) -> None:
        """Raise the error, unless the block raised another one or was also cancelled from outside."""
        if self._error is None:
            return
        is_ours = not self._has_cancelled or self._task.uncancel() <= self._earlier_requests
        if raised is None or (isinstance(raised, asyncio.CancelledError) and self._has_cancelled and is_ours):
            raise self._error
        raised.add_note(str(self._error))
