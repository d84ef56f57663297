"""The `async with` block of a worker: an engine error ends it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

__all__ = ["FailureScope"]


class FailureScope:
    """The task inside `async with`. It is cancelled when the worker fails, as `asyncio.TaskGroup` does it."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - `async with` is inside of one
        self._task = task
        # Cancellations of this task that have nothing to do with us.
        self._cancelling = task.cancelling()
        self._has_cancelled = False
        self._is_left = False
        self._error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """End the block with this error."""
        if self._error is not None:
            return
        self._error = error
        if not self._is_left:
            self._has_cancelled = self._task.cancel()

    async def leave(self) -> None:
        """Cancel the task no more: what it awaits from here on is the shutdown."""
        self._is_left = True
        if self._has_cancelled:
            # The cancellation may still be pending, and would hit the first await of the shutdown.
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    def conclude(self, raised: BaseException | None) -> None:
        """Raise the error, unless the block raised one of its own or was cancelled from outside as well."""
        if self._error is None:
            return
        is_ours = not self._has_cancelled or self._task.uncancel() <= self._cancelling
        if raised is None or (isinstance(raised, asyncio.CancelledError) and self._has_cancelled and is_ours):
            raise self._error
        raised.add_note(str(self._error))
