"""50,000 blocked rows at the head of a queue do not slow down the rows behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, ClassVar, Final

import pytest

from gen_durable import Context, Done, Machine, Settings, Worker, step
from gen_durable._db.pick import Machines, Passed, Picked, PickRequest
from gen_durable._runtime import engine
from gen_durable._runtime.admission import Admission
from gen_durable._runtime.pick_source import FromQueue
from gen_durable.telemetry import PickStop
from tests.plans.explain import Explained, Explainer
from tests.plans.statements import LEASES

BLOCKED: Final = 50_000
MACHINES: Final = (["A", "B", "C"], [1, 1, 1])
INSERT: Final = (
    "insert into gen_durable.gen_durable (fsm, fsm_version, step, queue, eligible_at, concurrency_key, rate_limit)"
    " select $1, $2, 's', 'q', statement_timestamp() - $3 * interval '1 s', $4, $5 from generate_series(1, $6::int)"
)
HOLDER: Final = (
    "insert into gen_durable.gen_durable (fsm, step, queue, status, lease_token, concurrency_key, concurrency_slot)"
    " select 'A', 's', 'q', 'executing', 1, 'busy', slot from generate_series(0, $1 - 1) slot"
)
BLOCKING: Final = (
    "select exists (select from gen_durable.gen_durable where status = 'runnable' and not gated"
    " and eligible_at <= statement_timestamp() and num_nonnulls(concurrency_key, rate_limit) > 0)"
)
# Manual vacuums; autovacuum is off.
VACUUMED: Final = "select vacuum_count from pg_stat_user_tables where schemaname = 'gen_durable' and relname = 'gen_durable'"


class A(Machine[None]):
    @step
    def s(self, ctx: Context) -> Done:
        return Done()


@pytest.fixture
async def explainer(direct_dsn: str) -> AsyncIterator[Explainer]:
    async with Explainer.open(direct_dsn) as opened:
        # Older snapshots prevent hint bits and vacuum, so autovacuum must not run.
        await opened.connection.execute("alter table gen_durable.gen_durable set (autovacuum_enabled = off)")
        yield opened


async def insert(explainer: Explainer, count: int, *, fsm: str = "A", version: int = 1, **given: Any) -> None:
    values = (fsm, version, given.get("age", 0), given.get("key"), given.get("rate_limit"), count)
    await explainer.connection.execute(INSERT, *values)


class Picker:
    """Picks rows as a worker does."""

    def __init__(self, explainer: Explainer) -> None:
        self._explainer = explainer
        self._source = FromQueue("q")

    async def pick(self, demand: int = 10) -> tuple[Picked, Explained]:
        plan = self._source.pick(PickRequest(MACHINES, demand, 7, "worker", LEASES))
        picked, (explained, *_) = await self._explainer.run(plan)
        return picked, explained


async def alone(explainer: Explainer) -> Explained:
    """The cost of a pick of ten rows without blocked rows."""
    await insert(explainer, 10, key=None, age=1)
    picked, explained = await Picker(explainer).pick()
    assert len(picked.executions) == 10
    return explained


@pytest.mark.clause("FLOW-15")
@pytest.mark.parametrize(("slots", "count"), [(1, BLOCKED), (3, 10_000)])
async def test_pick_cost_is_bounded_behind_a_busy_key(
    explainer: Explainer, direct_dsn: str, slots: int, count: int
) -> None:
    orderly = await alone(explainer)
    await explainer.connection.execute("select gen_durable.set_concurrency_limit('busy', $1)", slots)
    await explainer.connection.execute(HOLDER, slots)
    insert_blocked = partial(insert, explainer, count, key="busy", age=60)
    await insert_blocked()
    await insert(explainer, 10, key=None, age=30)
    assert await counts_of_picks(direct_dsn, explainer) == [0, 10]
    await check_vacuumed(explainer, direct_dsn, insert_blocked, orderly)


async def test_pick_cost_is_bounded_behind_an_empty_bucket(explainer: Explainer, direct_dsn: str) -> None:
    orderly = await alone(explainer)
    await explainer.connection.execute("select gen_durable.set_rate_limit('crm', 1, '1 hour')")
    insert_blocked = partial(insert, explainer, 10_000, rate_limit="crm", age=60)
    await insert_blocked()
    await insert(explainer, 10, key=None, age=30)
    assert await counts_of_picks(direct_dsn, explainer) == [1, 10]
    await check_vacuumed(explainer, direct_dsn, insert_blocked, orderly)


@pytest.mark.clause("FLOW-11", "FLOW-15")
async def test_pick_cost_is_bounded_behind_an_unknown_limit(explainer: Explainer, direct_dsn: str) -> None:
    orderly = await alone(explainer)
    insert_blocked = partial(insert, explainer, 10_000, rate_limit="gone", age=60)
    await insert_blocked()
    await insert(explainer, 10, key=None, age=30)
    assert await counts_of_picks(direct_dsn, explainer) == [0, 10]
    await check_vacuumed(explainer, direct_dsn, insert_blocked, orderly)


async def counts_of_picks(dsn: str, explainer: Explainer) -> list[int]:
    """The first two picks of a worker; it stops after it has set aside all rows and vacuumed."""
    counts: list[int] = []
    worker = Worker([A], dsn=dsn, queues={"q": 10}, settings=Settings(reaper=False))
    worker.telemetry.subscribe(lambda event: counts.append(event.count), PickStop)
    before = await explainer.connection.fetchval(VACUUMED)
    async with worker, asyncio.timeout(60):
        while await explainer.connection.fetchval(BLOCKING):
            await asyncio.sleep(0.05)
        while await explainer.connection.fetchval(VACUUMED) == before:
            await asyncio.sleep(0.05)
    return counts[:2]


async def check_vacuumed(
    explainer: Explainer, dsn: str, insert_blocked: Callable[[], Awaitable[None]], orderly: Explained
) -> None:
    """Assert that vacuum has removed dead index entries.

    An older transaction in any database of the server can prevent that.
    Then another worker has to vacuum; nothing else does.
    """
    seen: list[int] = []
    while len(seen) < 5:
        await insert(explainer, 10)
        picked, explained = await Picker(explainer).pick()
        assert len(picked.executions) == 10
        if explained.blocks <= 3 * orderly.blocks:
            return
        seen.append(explained.blocks)
        await insert_blocked()
        await counts_of_picks(dsn, explainer)
    pytest.fail(f"{seen} blocks, and {orderly.blocks} without blocked rows")


class Recorded(Admission):
    """Records how many rows each chunk had, and how many rows were picked before the next."""

    chunks: ClassVar[list[int]] = []

    async def set_aside(self, picked: Picked, machines: Machines | None) -> tuple[int, Passed]:
        before = self._rows
        found = await super().set_aside(picked, machines)
        self.chunks.append(self._rows - before)
        return found


@pytest.mark.clause("FLOW-15")
@pytest.mark.parametrize("kind", ["key", "rate_limit"])
async def test_other_rows_start_after_one_chunk_of_blocked_rows(
    explainer: Explainer, direct_dsn: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Ten chunks are at the head of the queue. More urgent rows that arrive meanwhile do not wait for the others."""
    await explainer.connection.execute("select gen_durable.set_rate_limit('busy', 1, '1 hour')")
    await explainer.connection.execute(HOLDER, 1)
    blocked: dict[str, Any] = {kind: "busy"}
    await insert(explainer, 10_000, age=60, **blocked)
    await insert(explainer, 20, age=30)
    monkeypatch.setattr(engine, "Admission", Recorded)
    monkeypatch.setattr(Recorded, "chunks", [])
    picks: list[tuple[int, int]] = []
    worker = Worker([A], dsn=direct_dsn, queues={"q": 10}, settings=Settings(reaper=False))
    worker.telemetry.subscribe(lambda event: picks.append((len(Recorded.chunks), event.count)), PickStop)
    async with worker, asyncio.timeout(60):
        while await explainer.connection.fetchval(BLOCKING):
            await asyncio.sleep(0.01)
    # The number of chunks before each pick that leased rows. Of a bucket, one row has a token.
    started = [chunks for chunks, count in picks for _ in range(count)]
    others = started[-20:]
    assert others[:5] == [1] * 5, picks
    assert others[-1] < 10, picks
    assert Recorded.chunks[0] == 1000
    assert 9999 <= sum(Recorded.chunks) <= 10_000


@pytest.mark.clause("FLOW-15")
@pytest.mark.parametrize("stranger", [("Unknown", 1), ("A", 2)])
async def test_pick_cost_is_bounded_behind_unregistered_machines(
    explainer: Explainer, stranger: tuple[str, int]
) -> None:
    orderly = await alone(explainer)
    fsm, version = stranger
    await insert(explainer, BLOCKED, fsm=fsm, version=version, age=60)
    for name in "ABC":
        await insert(explainer, 10, fsm=name, age=30)
    picker = Picker(explainer)
    first, _ = await picker.pick()
    assert first.has_foreign_head
    second, explained = await picker.pick()
    assert len(second.executions) == 10
    assert explained.blocks <= 3 * orderly.blocks, (explained.blocks, orderly.blocks)


async def test_pick_by_machine_is_not_used_without_blocked_rows(explainer: Explainer) -> None:
    await insert(explainer, 30, fsm="Unknown", age=60)
    await insert(explainer, 20, age=30)
    picker = Picker(explainer)
    first, _ = await picker.pick()
    assert len(first.executions) == 10
    assert first.has_foreign_head
    await explainer.connection.execute("delete from gen_durable.gen_durable where fsm = 'Unknown'")
    second, _ = await picker.pick()
    assert len(second.executions) == 10
    assert not second.has_foreign_head
