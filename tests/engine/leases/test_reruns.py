"""A step that runs again after a crash or a shutdown gets the same inputs."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Await,
    Context,
    Done,
    Machine,
    Outcome,
    ScheduleChildren,
    Spec,
    Status,
    Worker,
    step,
)
from gen_durable.telemetry import ReaperReaped
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE, Events, holds

# Releases running steps at once when it stops.
ABRUPT = msgspec.structs.replace(CALM, drain_timeout=timedelta(0))
Seen = tuple[str, int, str, list[str], list[str], bool, list[int]]

ways = pytest.mark.parametrize("way", ["crash", "shutdown"])


class Leaf(Machine[int, int]):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


class Interrupted(Machine[str, None]):
    """Is woken in the way its state names; the first woken execution never ends."""

    def __init__(self) -> None:
        self.seen: dict[str, list[Seen]] = {}
        self._arrivals = asyncio.Semaphore(0)

    async def is_there(self) -> None:
        async with asyncio.timeout(PATIENCE.total_seconds()):
            await self._arrivals.acquire()

    @step
    async def start(self, ctx: Context[str]) -> Outcome[None]:
        if ctx.state == "children":
            return ScheduleChildren([Spec(Leaf, 1), Spec(Leaf, 2)], then=self.woken)
        return Await("go", then=self.woken, timeout=timedelta(0) if ctx.state == "clock" else PATIENCE)

    @step
    async def woken(self, ctx: Context[str]) -> Outcome[None]:
        names = [[message.name for message in box] for box in (ctx.awaited, ctx.inbox)]
        children = [child.result for child in ctx.children]
        seen = self.seen.setdefault(ctx.state, [])
        seen.append((ctx.step, ctx.attempt, ctx.idempotency_key, *names, ctx.timed_out, children))  # type: ignore[arg-type]
        if len(seen) == 1:
            self._arrivals.release()
            await asyncio.Event().wait()
        return Done()


async def _interrupt(
    way: str, first: AsyncExitStack, dsn: str, db: Any, ids: list[int], machines: list[Any]
) -> None:
    """End the first executions, and let another worker repeat them."""
    if way == "shutdown":
        await first.aclose()
    else:
        await db.execute(
            "update gen_durable.gen_durable set lease_expires_at = now() where id = any ($1)", ids
        )
    async with Worker(machines, dsn=dsn, settings=FAST) as heir:
        if way == "crash":
            await Events(heir).wait(ReaperReaped)
            await db.execute(
                "update gen_durable.gen_durable set eligible_at = now() where status = 'runnable'"
            )
        await heir.wait_all(ids, timeout=PATIENCE)


@pytest.mark.clause("CRASH-9", "CHD-10")
@ways
async def test_rerun_sees_the_same_signals_children_and_timeout(
    durable_dsn: str, db: Any, way: str, subtests: pytest.Subtests
) -> None:
    machine = Interrupted()
    machines: list[Any] = [machine, Leaf]
    async with AsyncExitStack() as first:
        worker = await first.enter_async_context(Worker(machines, dsn=durable_dsn, settings=ABRUPT))
        refs = {waker: await worker.insert(machine, waker) for waker in ("signal", "clock", "children")}
        await worker.wait(refs["signal"], timeout=PATIENCE, until="parked")
        await worker.signal(refs["signal"], "chatter")
        await worker.signal(refs["signal"], "go")
        for _ in refs:
            await machine.is_there()
        await _interrupt(way, first, durable_dsn, db, [ref.id for ref in refs.values()], machines)
    for waker, ref in refs.items():
        with subtests.test(waker=waker):
            awaited, inbox = (["go"], ["chatter", "go"]) if waker == "signal" else ([], [])
            children = [1, 2] if waker == "children" else []
            assert machine.seen[waker] == [
                ("woken", attempt, f"{ref.id}:2", awaited, inbox, waker == "clock", children)
                for attempt in (0, 1 if way == "crash" else 0)
            ]


@pytest.mark.clause("CON-5")
@ways
async def test_key_of_an_interrupted_step_is_released(durable_dsn: str, db: Any, way: str) -> None:
    machine = Interrupted()
    async with AsyncExitStack() as first, AsyncClient(durable_dsn, settings=CALM) as client:
        await first.enter_async_context(Worker([machine], dsn=durable_dsn, settings=ABRUPT))
        held = await client.insert(machine, "", step="woken", concurrency_key="one")
        await machine.is_there()
        line = await client.insert_all(
            [Spec(machine, "", step="woken", concurrency_key="one") for _ in range(5)]
        )
        # They are gated: picks skip them until the key is free.
        await holds(db, "select gated from gen_durable.gen_durable where id = $1", line[0].id)
        await _interrupt(way, first, durable_dsn, db, [held.id], [machine])
        async with Worker([machine], dsn=durable_dsn, settings=FAST):
            ended = await client.wait_all([held, *line], timeout=PATIENCE)
    assert {one.status for one in ended} == {Status.DONE}
    assert len(machine.seen[""]) == 7


async def test_waiters_of_a_key_do_not_wait_for_a_crashed_holders_backoff(
    durable_dsn: str, db: Any, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Interrupted()
    async with (
        Worker([machine], dsn=durable_dsn, settings=ABRUPT) as worker,
        AsyncClient(durable_dsn, settings=CALM) as client,
    ):
        held = await client.insert(machine, "", step="woken", concurrency_key="one")
        await machine.is_there()
        line = await client.insert_all(
            [Spec(machine, "", step="woken", concurrency_key="one") for _ in range(3)]
        )
        await holds(db, "select gated from gen_durable.gen_durable where id = $1", line[0].id)
        # The sixth crash in a row: the next try is 30 s away.
        await db.execute(
            "update gen_durable.gen_durable set lease_expires_at = now(), crash_count = 5 where id = $1",
            held.id,
        )
        async with Worker([machine], dsn=durable_dsn, settings=FAST):
            ended = await client.wait_all(line, timeout=PATIENCE)
        dead = await worker.get(held)
    assert {one.status for one in ended} == {Status.DONE}
    assert dead is not None
    assert (dead.status, dead.crash_count) == (Status.RUNNABLE, 6)
    assert "should not happen" not in caplog.text, "the reaper let them in, and not the sweep behind it"
