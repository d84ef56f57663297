"""What scenarios share: timings for workers that are going to die, a record of events, and looks at bare rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TypeVar

from gen_durable import Settings, Worker
from gen_durable.telemetry import Event

EventT = TypeVar("EventT", bound=Event)

# Leases run out while somebody watches, and nothing waits long for a poll.
FAST: Final = Settings.load(
    lease=timedelta(seconds=1),
    heartbeat=timedelta(milliseconds=300),
    reap_interval=timedelta(milliseconds=100),
    poll_interval=timedelta(milliseconds=100),
    min_poll_interval=timedelta(milliseconds=100),
    drain_timeout=timedelta(seconds=5),
)
# Nobody loses a lease unless a test takes it away, and a chain breaks for no other reason than the test's.
CALM: Final = Settings.load(
    chain_time=timedelta(minutes=1),
    poll_interval=timedelta(milliseconds=100),
    min_poll_interval=timedelta(milliseconds=100),
    drain_timeout=timedelta(seconds=1),
)
AN_HOUR: Final = timedelta(hours=1)
# Long enough for a busy machine; a test that gets here has failed.
PATIENCE: Final = timedelta(seconds=45)


class Events:
    """Everything a worker tells, for tests that wait for a fact."""

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


async def happens_to_the_deaf(event: asyncio.Event) -> None:
    """Waits on when it is cancelled: so does a step that hears of the loss of its lease and returns its outcome anyway."""
    while not event.is_set():
        with suppress(asyncio.CancelledError):
            await event.wait()


async def row_of(db: Any, id: int) -> dict[str, Any]:
    """Every column of an instance, as it is stored."""
    found = await db.fetchrow(
        "select *, statement_timestamp() as now from gen_durable.gen_durable where id = $1", id
    )
    assert found is not None
    return dict(found)


async def inbox_of(db: Any, id: int) -> list[str]:
    """The names of unread signals."""
    rows = await db.fetch(
        "select name from gen_durable.signals where target_id = $1 and consumed_seq is null order by id", id
    )
    return [row["name"] for row in rows]


async def signal_rows(db: Any, id: int) -> int:
    """All that is left of signals, those included that stay for their dedup_key."""
    count: int = await db.fetchval("select count(*) from gen_durable.signals where target_id = $1", id)
    return count


async def holds(db: Any, query: str, *args: Any) -> None:
    """Wait for a fact that only the database knows."""
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while not await db.fetchval(query, *args):
            await asyncio.sleep(0.05)


def has_no_lease(row: dict[str, Any]) -> bool:
    return all(
        row[name] is None for name in ("lease_token", "lease_expires_at", "locked_by", "concurrency_slot")
    )


def is_about(moment: Any, row: dict[str, Any], ahead: timedelta = timedelta(0)) -> bool:
    """Whether a moment lies so far ahead of the last change of the row, by the database's own clock."""
    return bool(abs(moment - row["updated_at"] - ahead) < timedelta(milliseconds=500))
