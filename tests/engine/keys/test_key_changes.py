"""An instance keeps its concurrency key from step to step, unless an outcome changes it."""

from __future__ import annotations

import asyncio
from typing import Any

from gen_durable import Await, Context, Done, Machine, Next, Outcome, Worker, step
from gen_durable.telemetry import ConcurrencyContended
from tests.support.rows import row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events, happens


class Mover(Machine[str, str]):
    """Continues with the same key, another, or none."""

    def __init__(self) -> None:
        self.begun: dict[str, asyncio.Event] = {name: asyncio.Event() for name in ("two", "three", "other")}
        self.may_go = asyncio.Event()

    @step
    async def keep(self, ctx: Context[str]) -> Outcome[str]:
        return Next(self.two)

    @step
    async def switch(self, ctx: Context[str]) -> Outcome[str]:
        return Next(self.two, concurrency_key="new")

    @step
    async def release(self, ctx: Context[str]) -> Outcome[str]:
        return Next(self.two, concurrency_key=None)

    @step
    async def park(self, ctx: Context[str]) -> Outcome[str]:
        return Await("go", then=self.two)

    @step
    async def two(self, ctx: Context[str]) -> Outcome[str]:
        self.begun["two"].set()
        await self.may_go.wait()
        return Done("moved")

    @step
    async def other(self, ctx: Context[str]) -> Outcome[str]:
        self.begun["other"].set()
        return Done("other")


async def test_next_keeps_the_key(durable_dsn: str, db: Any) -> None:
    machine = Mover()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(machine, "", step="keep", concurrency_key="old")
        await happens(machine.begun["two"])
        other = await worker.insert(machine, "", step="other", concurrency_key="old")
        await events.wait(ConcurrencyContended)
        assert (await row_of(db, ref.id))["concurrency_key"] == "old"
        assert not machine.begun["other"].is_set()
        machine.may_go.set()
        assert [one.result for one in await worker.wait_all([ref, other], timeout=PATIENCE)] == [
            "moved",
            "other",
        ]


async def test_next_may_release_the_key(durable_dsn: str, db: Any) -> None:
    machine = Mover()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine, "", step="release", concurrency_key="old")
        await happens(machine.begun["two"])
        assert (await row_of(db, ref.id))["concurrency_key"] is None
        other = await worker.insert(machine, "", step="other", concurrency_key="old")
        assert (await worker.wait(other, timeout=PATIENCE)).result == "other"
        machine.may_go.set()
        await worker.wait(ref, timeout=PATIENCE)


async def test_next_may_switch_to_another_key(durable_dsn: str, db: Any) -> None:
    machine, holding = Mover(), Mover()

    class Holder(Mover, name="Holder"):
        pass

    holder = Holder()
    holder.begun, holder.may_go = holding.begun, holding.may_go
    async with Worker([machine, holder], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        held = await worker.insert(holder, "", step="two", concurrency_key="new")
        await happens(holding.begun["two"])
        ref = await worker.insert(machine, "", step="switch", concurrency_key="old")
        await events.wait(ConcurrencyContended, lambda event: event.id == ref.id)
        row = await row_of(db, ref.id)
        assert (row["status"], row["step"], row["concurrency_key"]) == ("runnable", "two", "new")
        # The old key is free while it waits for the new one.
        other = await worker.insert(machine, "", step="other", concurrency_key="old")
        assert (await worker.wait(other, timeout=PATIENCE)).result == "other"
        holding.may_go.set()
        await happens(machine.begun["two"])
        machine.may_go.set()
        assert [one.result for one in await worker.wait_all([held, ref], timeout=PATIENCE)] == [
            "moved",
            "moved",
        ]
