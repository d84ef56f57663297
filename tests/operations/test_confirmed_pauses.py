"""`pause_queue(wait=True)` returns when every live worker has confirmed the pause."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Client,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    PauseTimeoutError,
    Spec,
    UsageError,
    Worker,
    step,
)
from gen_durable._runtime.override_poller import OverridePoller
from gen_durable._runtime.picker import Picker
from gen_durable._runtime.registration import Registration
from tests.support.machines import Sitter
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, happens, holds

# Long enough to notice a missing confirmation: workers poll twice in this time.
SLOW = msgspec.structs.replace(CALM, poll_interval=timedelta(seconds=1.2))
_STRANGER = """
insert into gen_durable.workers (name, host, pid, version, schema_version, seen_at, expires_at, queues, prefixes,
                                 leaves_unknown, fsms, fsm_versions)
values ('stranger', 'h', 1, '1', 1, now(), now() + $1, '{}', '{}', false, '{}', '{}')"""


class Chain(Machine[int, None]):
    """Runs short steps forever."""

    def __init__(self) -> None:
        self.began: list[float] = []

    @step
    async def go(self, ctx: Context[int]) -> Outcome[None]:
        self.began.append(time.monotonic())
        await asyncio.sleep(0.001)
        return Next(self.go)


@pytest.fixture
async def client(durable_dsn: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(durable_dsn) as opened:
        yield opened


async def _begins(chain: Chain, more: int = 20) -> None:
    wanted = len(chain.began) + more
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while len(chain.began) < wanted:
            await asyncio.sleep(0.01)


@pytest.mark.clause("OPS-10")
@pytest.mark.parametrize(
    "sources", [{"queues": {"default": 2}}, {"prefixes": {"Ch": 2}}], ids=["queue", "prefix"]
)
async def test_nothing_begins_after_a_confirmed_pause(
    durable_dsn: str, client: AsyncClient, sources: Any
) -> None:
    chains = Chain(), Chain()
    async with (
        Worker([chains[0]], dsn=durable_dsn, settings=SLOW, **sources) as worker,
        Worker([chains[1]], dsn=durable_dsn, settings=SLOW, **sources),
    ):
        await worker.insert_all([Spec(chains[0], n) for n in range(8)])
        for kind in ("AsyncClient", "Client"):
            await asyncio.gather(*map(_begins, chains))
            if kind == "Client":
                queue = await asyncio.to_thread(_pause_blocking, durable_dsn)
            else:
                queue = await client.pause_queue("default", wait=True, timeout=PATIENCE)
            paused = time.monotonic()
            assert queue.is_paused
            await asyncio.sleep(0.6)
            late = [began - paused for chain in chains for began in chain.began if began > paused]
            assert late == [], kind
            await client.resume_queue("default")


def _pause_blocking(dsn: str) -> Any:
    with Client(dsn) as client:
        return client.pause_queue("default", wait=True, timeout=PATIENCE)


async def test_confirmation_of_an_earlier_pause_does_not_count(
    durable_dsn: str, client: AsyncClient, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pick may find the queue resumed before the worker withdraws its confirmation."""
    chain = Chain()
    async with Worker([chain], dsn=durable_dsn, settings=CALM) as worker:
        await worker.insert(chain, 1)
        await client.pause_queue("default", wait=True, timeout=PATIENCE)
        asleep = asyncio.Event()

        async def tick(self: OverridePoller) -> timedelta:
            await asleep.wait()
            return timedelta(seconds=1)

        monkeypatch.setattr(OverridePoller, "tick", tick)
        await client.resume_queue("default")
        await _begins(chain)
        assert await db.fetchval("select paused_queues from gen_durable.workers") == ["default"]
        with pytest.raises(PauseTimeoutError) as late:
            await client.pause_queue("default", wait=True, timeout=timedelta(seconds=0.5))
        assert late.value.workers == (worker.name,)
        asleep.set()


async def test_worker_confirms_a_pause_after_its_pickers_apply_it(
    durable_dsn: str, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    apply, confirm = Picker.apply_overrides, Registration.confirm

    def applying(self: Picker, overrides: Any) -> None:
        apply(self, overrides)
        if overrides:
            order.append("apply")

    async def confirming(self: Registration, paused: Any) -> None:
        if paused:
            order.append("confirm")
        await confirm(self, paused)

    monkeypatch.setattr(Picker, "apply_overrides", applying)
    monkeypatch.setattr(Registration, "confirm", confirming)
    async with Worker([Chain()], dsn=durable_dsn, settings=CALM, queues={"a": 1, "b": 1}):
        await client.pause_queue("default", wait=True, timeout=PATIENCE)
    assert order[:3] == ["apply", "apply", "confirm"]


async def test_worker_that_does_not_confirm_is_named(client: AsyncClient, db: Any) -> None:
    await db.execute(_STRANGER, timedelta(hours=1))
    with pytest.raises(PauseTimeoutError, match="queue 'q' is paused, but not confirmed by stranger"):
        await client.pause_queue("q", wait=True, timeout=timedelta(seconds=0.3))
    assert await db.fetchval("select is_paused from gen_durable.queues where name = 'q'")


async def test_wait_skips_a_worker_that_dies(client: AsyncClient, db: Any) -> None:
    await db.execute(_STRANGER, timedelta(seconds=1))
    began = time.monotonic()
    await client.pause_queue("q", wait=True, timeout=PATIENCE)
    assert time.monotonic() - began > 0.5


async def test_worker_that_starts_during_the_wait_confirms(
    durable_dsn: str, client: AsyncClient, db: Any
) -> None:
    await db.execute(_STRANGER, timedelta(hours=1))
    waiting = asyncio.get_running_loop().create_task(client.pause_queue("q", wait=True, timeout=PATIENCE))
    async with Worker([Chain()], dsn=durable_dsn, settings=CALM):
        await holds(db, "select bool_or(paused_queues = '{q}') from gen_durable.workers")
        assert not waiting.done()
        await db.execute("delete from gen_durable.workers where name = 'stranger'")
        assert (await waiting).is_paused


async def test_resume_ends_the_wait(client: AsyncClient, db: Any) -> None:
    await db.execute(_STRANGER, timedelta(hours=1))
    waiting = asyncio.get_running_loop().create_task(client.pause_queue("q", wait=True, timeout=PATIENCE))
    await holds(db, "select is_paused from gen_durable.queues where name = 'q'")
    await client.resume_queue("q")
    assert not (await waiting).is_paused


async def test_draining_worker_confirms(durable_dsn: str, client: AsyncClient, db: Any) -> None:
    machine = Sitter()
    settings = msgspec.structs.replace(CALM, drain_timeout=PATIENCE)
    async with Worker([machine], dsn=durable_dsn, settings=settings) as worker:
        await worker.insert(machine, "", step=Sitter.deaf)
        await happens(machine.is_there)
        closing = asyncio.get_running_loop().create_task(worker._close())
        await holds(db, "select is_draining from gen_durable.workers")
        try:
            assert (await client.pause_queue("default", wait=True, timeout=PATIENCE)).is_paused
        finally:
            machine.may_go.set()
        await closing


async def test_wait_is_refused_in_a_callers_transaction(client: AsyncClient, db: Any) -> None:
    async with db.transaction():
        with pytest.raises(UsageError, match="wait=True cannot be used with conn="):
            await client.pause_queue("q", wait=True, conn=db)
    assert await db.fetchval("select count(*) from gen_durable.queues") == 0


async def test_timeout_without_wait_is_refused(client: AsyncClient, db: Any) -> None:
    with pytest.raises(UsageError, match="timeout= is given without wait=True"):
        await client.pause_queue("q", timeout=PATIENCE)
    assert await db.fetchval("select count(*) from gen_durable.queues") == 0


class Quick(Machine[None, None]):
    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        return Done()


async def test_registration_keeps_the_confirmation(durable_dsn: str, client: AsyncClient, db: Any) -> None:
    settings = msgspec.structs.replace(CALM, heartbeat=timedelta(seconds=1))
    async with Worker([Quick], dsn=durable_dsn, settings=settings):
        await client.pause_queue("q", wait=True, timeout=PATIENCE)
        seen = await db.fetchval("select seen_at from gen_durable.workers")
        await holds(db, "select seen_at > $1 from gen_durable.workers", seen)
        assert await db.fetchval("select paused_queues from gen_durable.workers") == ["q"]
