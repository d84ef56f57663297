"""Load payloads, states and results that were too large to come with the pick, when a step asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from .._core.model import ChildContent, Execution
from .._db import pick as picks
from .._db.plan import Plan
from .._loading import Wait
from ..errors import UsageError

__all__ = ["ContentLoader", "waiter"]


class ContentLoader:
    """Loads content from the database. Does not check the lease: the commit of the execution does."""

    def __init__(self, run: Callable[[Plan[Any]], Awaitable[Any]]) -> None:
        self._run = run

    async def signals(self, execution: Execution, ids: Sequence[int]) -> Mapping[int, str]:
        """Load payloads of unread signals, by id."""
        found: Mapping[int, str] = await self._run(picks.signal_content(execution.id, ids))
        return found

    async def children(self, execution: Execution, ids: Sequence[int]) -> Mapping[int, ChildContent]:
        """Load states and results of children, by id."""
        found: Mapping[int, ChildContent] = await self._run(picks.child_content(execution.id, ids))
        return found


def waiter(loop: asyncio.AbstractEventLoop) -> Wait:
    """Return a function by which a step in a thread waits for a coroutine on this loop."""

    def wait(fetching: Coroutine[Any, Any, Any]) -> Any:
        try:
            is_on_loop = asyncio.get_running_loop() is loop
        except RuntimeError:
            is_on_loop = False
        if is_on_loop:
            fetching.close()
            raise UsageError(
                "load_sync and stream_sync would block the event loop",
                "use `await load()` and `async for … in stream()`",
            )
        return asyncio.run_coroutine_threadsafe(fetching, loop).result()

    return wait
