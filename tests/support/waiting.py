"""Wait for an event, a row or a fact, with a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from gen_durable import Worker
from gen_durable.telemetry import Event

EventT = TypeVar("EventT", bound=Event)

# Long enough for a busy machine; a test that gets here has failed.
PATIENCE: Final = timedelta(seconds=45)


class Events:
    """Records all events of a worker."""

    def __init__(self, worker: Worker) -> None:
        self.seen: list[Event] = []
        self._arrived = asyncio.Event()
        worker.telemetry.subscribe(self._note)

    def of(self, kind: type[EventT], where: Callable[[EventT], bool] = lambda _: True) -> list[EventT]:
        return [event for event in self.seen if isinstance(event, kind) and where(event)]

    async def wait(
        self, kind: type[EventT], where: Callable[[EventT], bool] = lambda _: True, *, count: int = 1
    ) -> EventT:
        """The first event of that kind, or the `count`th."""
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while len(found := self.of(kind, where)) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return found[count - 1]

    def _note(self, event: Event) -> None:
        self.seen.append(event)
        self._arrived.set()


async def happens(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE.total_seconds()):
        await event.wait()


async def until_true(is_true: Callable[[], bool]) -> None:
    """Poll until a condition of this process is true."""
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while not is_true():
            await asyncio.sleep(0.01)


async def wait_ignoring_cancel(event: asyncio.Event) -> None:
    """Wait for an event, ignoring cancellation, as a step that returns its outcome after its lease is lost."""
    while not event.is_set():
        with suppress(asyncio.CancelledError):
            await event.wait()


async def holds(db: Any, query: str, *args: Any) -> None:
    """Poll a query until it returns true."""
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while not await db.fetchval(query, *args):
            await asyncio.sleep(0.05)


async def eventually(client: Any, target: Any, status: str) -> Any:
    """Wait until the instance has this status, and return it."""
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while True:
            found = await client.get(target, with_deleted=True)
            if found is not None and found.status == status:
                return found
            await asyncio.sleep(0.1)


async def process_ends(pid: int) -> None:
    """Wait until a process has ended; a zombie has."""
    async with asyncio.timeout(PATIENCE.total_seconds()):
        with suppress(FileNotFoundError, ProcessLookupError):
            while "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
                await asyncio.sleep(0.02)
