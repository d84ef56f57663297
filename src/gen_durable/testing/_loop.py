"""An event loop for code that does not await, in the thread that calls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..errors import UsageError

__all__ = ["Loop"]

T = TypeVar("T")


class Loop:
    """One loop for many calls: what a step leaves open on it is still there at the next.

    `asyncio.run` would do, but for its habit to take away the loop that an async plugin has set for this thread.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T], what: str, instead: str) -> T:
        """Run a coroutine to its end. Where a loop runs already, that cannot be: `instead` says what can."""
        if _is_async():
            work.close()
            raise UsageError(f"{what} blocks, and an event loop is running in this thread", instead)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        """Cancel what is left on the loop, and close it."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        try:
            if tasks := asyncio.all_tasks(loop):
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(tasks))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()


def _is_async() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
