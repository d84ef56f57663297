"""Rows that cannot run do not slow down picks, however many there are."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from gen_durable._db import pick
from gen_durable._db.plan import Plan
from tests.plans.explain import Explained, Explainer, check
from tests.plans.statements import LEASES

MACHINES: Final = (["A"], [1])
PICK: Final = {"gen_durable_pick", "gen_durable_pkey"}
SPREAD: Final = (
    "insert into gen_durable.gen_durable (fsm, step, queue, priority, eligible_at)"
    " select 'A', 's', 'q', p, statement_timestamp() + $1 from generate_series(-15000, 15000) p where p <> 0"
)
INSERT: Final = (
    "insert into gen_durable.gen_durable (fsm, step, queue, priority, eligible_at, concurrency_key, gated)"
    " select 'A', 's', 'q', $1, statement_timestamp() + $2, $3, $4 from generate_series(1, $5::int)"
)


async def test_priorities_of_future_rows_do_not_slow_down_picks(direct_dsn: str) -> None:
    """30,000 priorities before and after the due ones: a pick visits 100 of them, and then those with due rows."""
    async with Explainer.open(direct_dsn) as explainer:
        await insert(explainer, 1000, priority=0, ahead=timedelta(minutes=-1))
        alone = await picked(explainer)
        await explainer.connection.execute(SPREAD, timedelta(days=1))
        behind = await picked(explainer, PICK | {"gen_durable_due"})
        assert behind.blocks <= alone.blocks + 8 * 100, behind
        # Due rows of many priorities, too few for the demand.
        await explainer.connection.execute("delete from gen_durable.gen_durable where priority = 0")
        await insert_due(explainer, range(-15_000, 15_000, 150))
        found, (spread,) = await explainer.run(request(1000))
        assert [one.state for one in found.executions] == [str(one) for one in range(-15_000, 15_000, 150)]
        assert spread.blocks <= 50 * 200 + 8 * 100, spread


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


async def insert_due(explainer: Explainer, priorities: range) -> None:
    await explainer.connection.executemany(
        "insert into gen_durable.gen_durable (fsm, step, queue, priority, state)"
        " values ('A', 's', 'q', $1::int, to_jsonb($1::int))",
        [(priority,) for priority in priorities],
    )


def request(demand: int) -> Plan[pick.Picked]:
    return pick.pick("q", pick.PickRequest(MACHINES, demand, 7, "worker", LEASES))


async def picked(explainer: Explainer, indexes: set[str] = PICK) -> Explained:
    found, (explained,) = await explainer.run(request(10))
    assert len(found.executions) == 10
    check(explained, indexes, blocks=1000)
    return explained
