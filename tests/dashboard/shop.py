"""A database in which every page of the dashboard has something to show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final, NamedTuple

from gen_durable import (
    AsyncClient,
    ConcurrencyLimit,
    Context,
    Done,
    Event,
    Machine,
    Outcome,
    Queue,
    RateLimit,
    Schedule,
    Settings,
    Spec,
    Status,
    Worker,
    job,
    step,
)
from gen_durable.events import CloudEvent, Rejected
from tests.dashboard.machines import MACHINES, Checkout, Order, Payment, fragile, parcel

__all__ = ["Shop", "shop"]


class Shop(NamedTuple):
    """Instances of the shop."""

    order: int
    """Is done, with children, transitions and a consumed signal."""
    waiting: int
    running: int


class Announce(Machine[str, None], name="shop.announce"):
    """Emit an event."""

    @step(initial=True)
    async def notify(self, ctx: Context[str]) -> Outcome[None]:
        return Done(emit=Event("shop.announced.v1", {"text": ctx.state}, sink=ctx.state))


@job("shop.stocktaking", queue="slow")
async def stocktaking(_: None, ctx: Context[None]) -> None:
    """Run until the worker stops."""
    ctx.progress(3, 10, "third shelf")
    await asyncio.Event().wait()


async def _accept(_: CloudEvent) -> None:
    pass


async def _refuse(_: CloudEvent) -> None:
    raise Rejected("410 Gone")


_ENDED: Final = (Status.DONE, Status.FAILED)


@asynccontextmanager
async def shop(dsn: str, client: AsyncClient) -> AsyncIterator[Shop]:
    """Fill the database; the worker runs meanwhile."""
    worker = Worker(
        [*MACHINES, Announce, stocktaking],
        dsn=dsn,
        queues={"default": Queue(concurrency=10), "slow": Queue(concurrency=2)},
        limits=[RateLimit("crm", 8, burst=16), ConcurrencyLimit("tenant", 2)],
        schedules=[
            Schedule("nightly", Spec(parcel, 1), cron="30 2 * * *", tz="Europe/Berlin"),
            Schedule("often", Spec(parcel, 2), every=timedelta(hours=1)),
        ],
        sinks={"webhooks": _accept, "mail": _refuse},
        settings=Settings(drain_timeout=timedelta(0)),
    )
    async with worker:
        orders = [await client.insert(Checkout, Order(n), correlation_key=f"order:{n}") for n in range(3)]
        await client.insert(Checkout, Order(-1))
        for text in ("postcode 123 refused", "postcode 456 refused", "timeout after 3 s"):
            await client.insert(fragile, text)
        for sink in ("webhooks", "mail"):
            await client.insert(Announce, sink)
        running = await client.insert(stocktaking, None)
        unserved = await client.insert(parcel, 7, queue="gpu")
        await client.insert(parcel, 8, schedule_in=timedelta(hours=1), concurrency_key=("tenant", "9"))
        for parked in orders:
            await client.wait(parked, until="parked", timeout=timedelta(seconds=20))
        await client.signal(orders[0], Checkout.paid, Payment(cents=100))
        await client.wait(orders[0], timeout=timedelta(seconds=20))
        await client.cancel(orders[1], reason="customer has called", actor="ann")
        await client.soft_delete(unserved, reason="a mistake", actor="ann")
        await client.insert(parcel, 9, queue="gpu")
        await client.pause_queue("imports", reason="wrong prices", actor="ann")
        await client.set_queue("slow", concurrency=3, actor="ann")
        await client.pause_schedule("often", reason="holidays", actor="ann")
        async with asyncio.timeout(20):
            while await client.count(fragile, status=Status.FAILED) != 3:
                await asyncio.sleep(0.02)
            while not await client.events(state="dead"):
                await asyncio.sleep(0.02)
        started = await client.start_batch("retry", where="status:failed machine:shop.fragile", actor="ann")
        await client.run_batch(started.id)
        async with asyncio.timeout(20):
            while await client.count(fragile, status=Status.FAILED) != 3:
                await asyncio.sleep(0.02)
        yield Shop(orders[0].id, orders[2].id, running.id)
