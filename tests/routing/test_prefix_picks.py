"""The pick by prefix: which rows belong to a prefix, and in which order they are leased."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from gen_durable._db import pick
from gen_durable._db.connector import PINNED
from gen_durable._db.pool import Database
from gen_durable._db.runner import run_asyncpg
from tests.routing.picking import by_prefix, inserted, picked

NAMES = [
    "billing.",
    "billing.charge.v1",
    "billing.\U0010ffff",
    "billing.ü",
    "billing",
    "billing-x",
    "billing/x",
    "billing_x",
    "billingx.y",
    "Billing.x",
    "billinG.x",
    "billin.g",
    "a_b.c",
    "axb.c",
    "a%b.c",
    "100%.c",
    "100x.c",
    "%",
    "_",
    "é.x",
    "e.x",
    "\U0010ffff",
    "\U0010ffff.x",
    "\ud7ff.x",
    "\ue000.x",
]


PREFIXES = [
    "billing.",
    "billing",
    "b",
    "B",
    "a_b.",
    "a%",
    "100%",
    "%",
    "_",
    "é.",
    "e",
    "\ud7ff",
    "\U0010ffff.",
    "z",
]
GIVE_BACK = """
update gen_durable.gen_durable
   set status = 'runnable', lease_token = null, lease_expires_at = null, locked_by = null, leased_at = null
 where status = 'executing'"""


@pytest.mark.clause("ROUTE-4")
async def test_prefix_has_no_wildcards(database: Database, db: Any) -> None:
    await inserted(database, db, [(name, 1, 0, 1) for name in NAMES])
    for prefix in PREFIXES:
        found = [each.fsm for each in await picked(database, prefix)]
        assert sorted(found) == sorted(name for name in NAMES if name.startswith(prefix)), prefix
        await db.execute(GIVE_BACK)


@pytest.mark.clause("ROUTE-5")
async def test_order_is_priority_time_id_across_types(database: Database, db: Any) -> None:
    rows = [
        ("m.b", 1, 0, 10),
        ("m.a", 1, 0, 20),
        ("m.c", 1, 5, 99),
        ("m.a", 1, -5, 1),
        ("m.b", 1, 0, 20),
        ("m.c", 1, 0, 15),
        ("x.a", 1, -9, 99),
    ]
    ids = await inserted(database, db, rows)
    expected = [ids[place] for place in (3, 1, 4, 5, 0, 2)]
    found = [(await picked(database, "m.", 1))[0].id for _ in expected]
    assert found == expected
    assert await picked(database, "m.") == []


@pytest.mark.clause("ROUTE-5")
@pytest.mark.parametrize("seed", range(6))
async def test_order_holds_for_any_demand(database: Database, db: Any, seed: int) -> None:
    """Compare with the plain definition: sort all due rows of known types."""
    luck = random.Random(seed)
    types = [f"m.{number}" for number in range(luck.choice([1, 3, 40]))]
    rows = [
        (
            luck.choice(types),
            luck.choice([1, 1, 2]),
            luck.choice([-1, 0, 0, 7]),
            float(luck.choice([luck.randrange(100), luck.randrange(3), -(10**6)])),
        )
        for _ in range(luck.choice([30, 200]))
    ]
    ids = await inserted(database, db, rows)
    known = None
    if seed % 2:
        known = [(name, 1) for name in types if luck.random() < 0.7] or [(types[0], 1)]
    order = sorted(
        ((priority, -ago, id), id)
        for id, (fsm, version, priority, ago) in zip(ids, rows, strict=True)
        if ago >= 0 and (known is None or (fsm, version) in known)
    )
    found: list[int] = []
    while batch := await picked(
        database,
        "m.",
        demand := luck.choice([1, 2, 3, 7, 20]),
        reach=luck.choice([demand, 2 * demand, 50]),
        machines=known,
    ):
        assert len(batch) == min(demand, len(order) - len(found))
        found += [each.id for each in batch]
    assert found == [id for _, id in order]


async def test_all_rows_with_the_same_due_time_are_picked(database: Database, db: Any) -> None:
    ids = await inserted(database, db, [(f"m.{number % 50}", 1, 0, 1) for number in range(500)])
    found: list[int] = []
    while batch := await picked(database, "m.", 10):
        found += [each.id for each in batch]
    assert found == ids


async def test_unknown_types_do_not_block_known_ones(database: Database, db: Any) -> None:
    """Forty types have older rows of a version that this worker does not have."""
    unknown = [(f"m.{number}", 2, 0, 1000) for number in range(40) for _ in range(30)]
    known = [(f"m.{number}", 1, 0, 1) for number in range(40)]
    strange = [("m.missing", 1, -1, 1000)] * 50
    ids = await inserted(database, db, [*strange, *unknown, *known])
    machines = [(fsm, version) for fsm, version, _, _ in known]
    found = [each.id for each in await picked(database, "m.", 10, machines=machines)]
    assert found == ids[-40:-30]


async def test_lease_length_of_the_step(database: Database, db: Any) -> None:
    ids = await inserted(database, db, [("m.own", 1, 0, 3), ("m.own", 2, 0, 2), ("m.other", 1, 0, 1)])
    leases = pick.Leases(timedelta(seconds=60), {("m.own", 1, "run"): timedelta(seconds=7)})
    await picked(database, "m.", leases=leases)
    lengths = await db.fetch(
        "select lease_expires_at - leased_at as length from gen_durable.gen_durable where id = any ($1) order by id",
        ids,
    )
    assert [row["length"].total_seconds() for row in lengths] == [7, 60, 60]


async def test_locked_rows_are_skipped(database: Database, db: Any) -> None:
    ids = await inserted(database, db, [(f"m.{number % 3}", 1, 0, 99 - number) for number in range(30)])
    async with db.transaction():
        await db.execute("select from gen_durable.gen_durable where id = any ($1) for update", ids[:20])
        assert [each.id for each in await picked(database, "m.", 5, reach=10)] == []
        assert [each.id for each in await picked(database, "m.", 5, reach=30)] == ids[20:25]
    assert [each.id for each in await picked(database, "m.", 5)] == ids[:5]


@pytest.mark.clause("ROUTE-10")
async def test_concurrent_picks_share_the_rows(database: Database, db: Any, durable_dsn: str) -> None:
    ids = await inserted(database, db, [(f"m.{number % 7}", 1, 0, 1) for number in range(300)])

    async def take(other: Database) -> list[int]:
        found: list[int] = []
        while batch := await picked(other, "m.", 10, reach=200):
            found += [each.id for each in batch]
        return found

    async with await Database.open(durable_dsn, "gen_durable", size=4) as other, asyncio.TaskGroup() as group:
        tasks = [group.create_task(take(each)) for each in (database, other) * 3]
        await asyncio.wait(tasks)
    assert sorted(id for task in tasks for id in task.result()) == ids


_SLOW_CLOCK = """
create schema slow;
create function slow.statement_timestamp() returns timestamptz language plpgsql as $$ begin
  perform pg_advisory_lock_shared(7); perform pg_advisory_unlock_shared(7); return pg_catalog.statement_timestamp();
end $$"""


@pytest.mark.parametrize("change", ["retried", "leased", "gated"])
async def test_row_changed_during_the_pick_is_checked_again(
    database: Database, db: Any, durable_dsn: str, change: str
) -> None:
    """While a pick waits after taking its snapshot, the row is leased or deferred; then the pick continues."""
    (id,) = await inserted(database, db, [("m.a", 1, 0, 1)])
    await db.execute(_SLOW_CLOCK)
    slow = await asyncpg.connect(durable_dsn, server_settings={**PINNED, "search_path": "slow, pg_catalog"})
    await db.execute("select pg_advisory_lock(7)")
    picking = asyncio.get_running_loop().create_task(run_asyncpg(slow, by_prefix("m."), "gen_durable"))
    async with asyncio.timeout(10):
        while not await db.fetchval(
            "select exists (select from pg_locks where locktype = 'advisory' and not granted)"
        ):
            await asyncio.sleep(0.01)
    if change == "gated":
        await db.execute("update gen_durable.gen_durable set gated = true")
    else:
        assert [each.id for each in await picked(database, "m.")] == [id]
    if change == "retried":
        await db.execute(
            """update gen_durable.gen_durable
                  set status = 'runnable', attempt = 1, lease_token = null, locked_by = null, lease_expires_at = null,
                      leased_at = null, eligible_at = now() + interval '5 min'"""
        )
    await db.execute("select pg_advisory_unlock(7)")
    assert (await picking).executions == []
    assert await db.fetchval(
        "select status = $1 from gen_durable.gen_durable", "executing" if change == "leased" else "runnable"
    )
    await slow.close()
