"""Rows that cannot run do not slow down picks, however many there are."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from gen_durable._db import pick
from tests.plans.explain import Explained, Explainer, check
from tests.plans.statements import LEASES

MACHINES: Final = (["A"], [1])
INSERT: Final = (
    "insert into gen_durable.gen_durable (fsm, step, queue, priority, eligible_at, concurrency_key, gated)"
    " select 'A', 's', 'q', $1, statement_timestamp() + $2, $3, $4 from generate_series(1, $5::int)"
)


async def test_urgent_priorities_of_future_rows_cost_a_probe_each(direct_dsn: str) -> None:
    async with Explainer.open(direct_dsn) as explainer:
        await insert(explainer, 1000, priority=0, ahead=timedelta(minutes=-1))
        alone = await picked(explainer)
        for priority in range(-100, 0):
            await insert(explainer, 20, priority=priority, ahead=timedelta(days=1))
        behind = await picked(explainer)
    assert behind.blocks <= alone.blocks + 100 + 8 * 100, behind


async def test_gated_rows_at_the_head_cost_nothing(direct_dsn: str) -> None:
    async with Explainer.open(direct_dsn) as explainer:
        await insert(explainer, 1000, priority=0, ahead=timedelta(minutes=-1))
        alone = await picked(explainer)
        await insert(explainer, 50_000, priority=-100, ahead=timedelta(minutes=-2), key="busy", is_gated=True)
        await insert(explainer, 50_000, priority=0, ahead=timedelta(minutes=-2), key="busy", is_gated=True)
        behind = await picked(explainer)
    assert behind.blocks <= alone.blocks + 100, behind


async def insert(
    explainer: Explainer,
    count: int,
    *,
    priority: int,
    ahead: timedelta,
    key: str | None = None,
    is_gated: bool = False,
) -> None:
    for begin in range(0, count, 100_000):
        rows = min(100_000, count - begin)
        await explainer.connection.execute(INSERT, priority, ahead, key, is_gated, rows)


async def picked(explainer: Explainer) -> Explained:
    found, (explained,) = await explainer.run(
        pick.pick("q", pick.PickRequest(MACHINES, 10, 7, "worker", LEASES))
    )
    assert len(found.executions) == 10
    check(explained, {"gen_durable_pick", "gen_durable_pkey"}, blocks=1000)
    return explained
