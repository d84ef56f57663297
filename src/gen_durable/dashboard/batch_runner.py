"""Run batches in the process of the dashboard: those that a user starts, and those whose process has died."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from .._db import batches
from .._db.plan import Plan
from ..async_client import AsyncClient
from ..errors import GenDurableError

__all__ = ["BatchRunner"]

Read: TypeAlias = Callable[[Plan[dict[int, bool]]], Awaitable[dict[int, bool]]]

_log: Final = logging.getLogger("gen_durable.dashboard")
# Seconds between two looks for batches whose lease has expired, while any is unfinished: one probe of an index that is
# nearly empty.
_EVERY: Final = 15.0
# Batches that this process runs at a time, beside those that its users start.
_MOST: Final = 2
_MOST_READ: Final = 100


class BatchRunner:
    """Runs batches until they have ended. What it has not finished when it is closed, another process continues."""

    def __init__(self, client: AsyncClient, read: Read) -> None:
        self._client = client
        self._read = read
        self._running: dict[int, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no task exists."""
        return self._watching is None and not self._running

    def run(self, id: int) -> None:
        """Run a batch in the background, once."""
        if id not in self._running:
            self._running[id] = asyncio.get_running_loop().create_task(self._run(id))
        self.watch()

    def watch(self) -> None:
        """Continue batches whose process has died, until no batch is unfinished.

        Called when the dashboard starts, when a page shows batches, and when one is started: nothing is queried while
        no page is open and all have ended.
        """
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Stop running batches; their leases expire."""
        tasks = [*self._running.values(), *([self._watching] if self._watching else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, id: int) -> None:
        try:
            await self._client.run_batch(id)
        except GenDurableError as error:
            _log.error(
                "batch stopped on an error: %d; continue it: gen-durable batches run %d: %s", id, id, error
            )
        finally:
            del self._running[id]

    async def _watch(self) -> None:
        has_failed = False
        try:
            while True:
                try:
                    found = await self._read(batches.unfinished(_MOST_READ))
                except GenDurableError as error:
                    if not has_failed:
                        _log.warning("cannot look for batches without a process: %s", error)
                    has_failed = True
                else:
                    has_failed = False
                    expired = [id for id, is_expired in found.items() if is_expired]
                    for id in expired[: max(_MOST - len(self._running), 0)]:
                        self.run(id)
                    if not found and not self._running:
                        return
                await asyncio.sleep(_EVERY)
        finally:
            self._watching = None
