"""Payloads, states and results that a step fetches when it needs them."""

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
    """Reads them from the database. Plain reads: whether the execution still has its lease is asked by its commit."""

    def __init__(self, run: Callable[[Plan[Any]], Awaitable[Any]]) -> None:
        self._run = run

    async def signals(self, execution: Execution, ids: Sequence[int]) -> Mapping[int, str]:
        """The payloads of unread signals of this execution."""
        found: Mapping[int, str] = await self._run(picks.signal_content(execution.id, ids))
        return found

    async def children(self, execution: Execution, ids: Sequence[int]) -> Mapping[int, ChildContent]:
        """States and results of children of this execution."""
        found: Mapping[int, ChildContent] = await self._run(picks.child_content(execution.id, ids))
        return found


def waiter(loop: asyncio.AbstractEventLoop) -> Wait:
    """How a step on a thread waits for what is fetched on this loop."""

    def wait(fetching: Coroutine[Any, Any, Any]) -> Any:
        try:
            is_on_loop = asyncio.get_running_loop() is loop
        except RuntimeError:
            is_on_loop = False
        if is_on_loop:
            fetching.close()
            raise UsageError(
                "load_sync and stream_sync block the event loop",
                "use `await load()` and `async for … in stream()`",
            )
        return asyncio.run_coroutine_threadsafe(fetching, loop).result()

    return wait
