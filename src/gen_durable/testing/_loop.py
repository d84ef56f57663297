"""An event loop for blocking code, in the calling thread."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..errors import UsageError

__all__ = ["Loop"]

T = TypeVar("T")


class Loop:
    """One event loop for many calls, so connections that a step opened stay usable.

    Not `asyncio.run`, which removes the event loop that a pytest plugin has set for this thread.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T], what: str, instead: str) -> T:
        """Run a coroutine to its end. If a loop already runs in this thread, raise with the advice `instead`."""
        if _is_async():
            work.close()
            raise UsageError(f"{what} blocks, and an event loop is running in this thread", instead)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        """Cancel remaining tasks and close the loop."""
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
