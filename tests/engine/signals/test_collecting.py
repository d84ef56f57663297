"""A step that collects several signals runs once per arrival and consumes them together."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import AsyncClient, Await, Context, Done, Machine, Next, Outcome, Worker, step
from tests.support.rows import inbox_of, row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE

SIZE = 5


class Pack(Machine[None, list[list[int]]]):
    """Collects five parts."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @step
    async def start(self, ctx: Context[None]) -> Outcome[list[list[int]]]:
        return Await("part", then=self.collect)

    @step
    async def collect(self, ctx: Context[None]) -> Outcome[list[list[int]]]:
        self.seen.append(len(ctx.awaited))
        if len(ctx.awaited) < SIZE:
            return Await("part", then=self.collect)
        return Next(self.use)

    @step
    async def use(self, ctx: Context[None]) -> Outcome[list[list[int]]]:
        return Done([[message.payload for message in ctx.inbox]])


@pytest.mark.clause("SIG-11", "SIG-12", "SIG-9")
async def test_collecting_step_runs_once_per_signal(durable_dsn: str) -> None:
    machine = Pack()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine)
        for n in range(SIZE):
            parked = await worker.wait(ref, timeout=PATIENCE, until="parked")
            assert (parked.step, parked.attempt, parked.step_seq) == ("collect", 0, n + 1)
            await worker.signal(ref, "part", n)
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert machine.seen == [1, 2, 3, 4, 5]
    assert ended.result == [[]], "the transition consumed all parts"


async def test_collecting_step_does_not_spin_when_signals_arrive_together(durable_dsn: str) -> None:
    machine = Pack()
    async with (
        Worker([machine], dsn=durable_dsn, settings=CALM) as worker,
        AsyncClient(durable_dsn, settings=CALM) as sender,
    ):
        refs = [await worker.insert(machine) for _ in range(10)]
        for n in range(SIZE):
            for ref in refs:
                await sender.signal(ref, "part", n)
        ended = await worker.wait_all(refs, timeout=PATIENCE)
    assert [one.result for one in ended] == [[[]]] * 10
    assert machine.seen.count(SIZE) == 10
    assert len(machine.seen) <= 10 * (SIZE + 1)


async def test_collecting_step_is_parked_between_signals(durable_dsn: str, db: Any) -> None:
    machine = Pack()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine)
        for n in range(3):
            await worker.wait(ref, timeout=PATIENCE, until="parked")
            await worker.signal(ref, "part", n)
        before = await worker.wait(ref, timeout=PATIENCE, until="parked")
        # Another instance runs to its end meanwhile.
        second = await worker.insert(machine)
        for n in range(SIZE):
            await worker.signal(second, "part", n)
        await worker.wait(second, timeout=PATIENCE)
        row = await row_of(db, ref.id)
    assert (row["status"], row["step"], row["step_seq"]) == ("awaiting_signal", "collect", before.step_seq)
    assert row["execution"] == 1 + 3
    assert await inbox_of(db, ref.id) == ["part"] * 3


async def test_duplicate_signal_does_not_wake_a_collecting_step(durable_dsn: str, db: Any) -> None:
    machine = Pack()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(machine)
        await worker.wait(ref, timeout=PATIENCE, until="parked")
        await worker.signal(ref, "part", 0, dedup_key="part 0")
        await worker.wait(ref, timeout=PATIENCE, until="parked")
        before = await row_of(db, ref.id)
        for _ in range(5):
            await worker.signal(ref, "part", 0, dedup_key="part 0")
        after = await row_of(db, ref.id)
    assert (after["status"], after["execution"]) == ("awaiting_signal", before["execution"])
    assert machine.seen == [1]
