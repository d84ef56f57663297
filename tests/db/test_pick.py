"""Picks of unusual rows, which must not block others."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from gen_durable._core.model import Committed, Execution
from gen_durable._core.settle import no_handler
from gen_durable._db import lease
from gen_durable._db.pool import Database
from tests.support.engine_plans import LEASE, entry, flushed, inserted, new, picked

LARGEST = 2**31 - 1


@pytest.mark.parametrize("moment", ["-infinity", "0044-03-15 00:00:00+00 BC"])
async def test_row_due_at_minus_infinity_does_not_block_the_queue(
    database: Database, sql: Any, moment: str
) -> None:
    ids = await inserted(database, new(), new(), new())
    await sql.execute(
        "update gen_durable.gen_durable set eligible_at = $2::text::timestamptz where id = $1", ids[1], moment
    )
    assert [execution.id for execution in await picked(database)] == [ids[1], ids[0], ids[2]]


async def test_counters_at_their_maximum_do_not_stop_picks_and_commits(database: Database, sql: Any) -> None:
    ids = await inserted(database, new(), new(), new(), new())
    await sql.execute(
        "update gen_durable.gen_durable set attempt = $2, execution = $2, crash_count = $2 where id = any ($1)",
        ids[:3],
        LARGEST,
    )
    executions = await picked(database)
    assert [e.attempt for e in executions] == [LARGEST, LARGEST, LARGEST, 0]
    kinds = ["retry", "done", "next", "continue"]
    assert await statuses(database, executions, kinds) == ["runnable", "done", "runnable", "executing"]


@pytest.mark.parametrize("is_plain", [True, False])
async def test_execution_counter_at_its_maximum_does_not_stop_an_instance(
    database: Database, sql: Any, *, is_plain: bool
) -> None:
    """Chained steps count too: at thousands per second the counter reaches its maximum within days."""
    await inserted(database, new(), new(concurrency_key=None if is_plain else "k"))
    await sql.execute("update gen_durable.gen_durable set execution = $1", LARGEST)
    assert await statuses(database, await picked(database), ["continue", "continue"]) == [
        "executing",
        "executing",
    ]


@pytest.mark.parametrize("is_leased", [True, False])
async def test_execution_counter_at_its_maximum_does_not_stop_a_cancel(
    database: Database, sql: Any, *, is_leased: bool
) -> None:
    (id,) = await inserted(database, new())
    await sql.execute("update gen_durable.gen_durable set execution = $1", LARGEST)
    if is_leased:
        await picked(database)
    assert await sql.fetchval("select gen_durable.cancel($1::bigint, force => true)", id) == "cancelled"


async def test_attempts_at_their_maximum_do_not_stop_a_dead_letter(database: Database, sql: Any) -> None:
    await inserted(database, new())
    await sql.execute("update gen_durable.gen_durable set attempt = $1", LARGEST)
    (execution,) = await picked(database)
    (result,) = await flushed(database, [no_handler(execution)])
    assert result == Committed("failed")


async def statuses(database: Database, executions: list[Execution], kinds: list[str]) -> list[str]:
    results = await flushed(database, [entry(e, kind) for e, kind in zip(executions, kinds, strict=True)])
    return [result.status for result in results if isinstance(result, Committed)]


async def test_crash_count_at_its_maximum_does_not_stop_the_reaper(database: Database, sql: Any) -> None:
    ids = await inserted(database, new(), new())
    await picked(database)
    await sql.execute("update gen_durable.gen_durable set lease_expires_at = now() - interval '1 hour'")
    await sql.execute(
        "update gen_durable.gen_durable set crash_count = $2, attempt = $2 where id = $1", ids[0], LARGEST
    )
    reaped = await database.run_in_transaction(lease.reap(timedelta(0), lease.CrashPolicy(20, "all")))
    assert (sorted(reaped.ids), reaped.capped) == (ids, [ids[0]])


async def test_pick_leases_at_most_demand_in_priority_order(database: Database) -> None:
    rows = [new(priority=priority) for priority in (3, -1, 0, -1, 3, 2)]
    ids = await inserted(database, *rows)
    assert [e.id for e in await picked(database, 3)] == [ids[1], ids[3], ids[2]]
    assert [e.id for e in await picked(database, 3)] == [ids[5], ids[0], ids[4]]
    assert await picked(database) == []


@pytest.mark.parametrize("many_due", [False, True])
async def test_order_holds_with_more_than_100_priorities(
    database: Database, sql: Any, *, many_due: bool
) -> None:
    """A pick visits 100 priorities, and then only those of due rows, unless there are more than 10,000 of these."""
    luck = random.Random(int(many_due))
    await sql.execute(
        "insert into gen_durable.gen_durable (fsm, step, priority, eligible_at)"
        " select 'A', 's', p, statement_timestamp() + interval '1 day' from generate_series(-300, 300) p"
    )
    rows = [
        new(priority=luck.choice([luck.randrange(-12, 13), luck.randrange(-300, 300)])) for _ in range(100)
    ]
    ids = await inserted(database, *rows)
    if many_due:
        await sql.execute(
            "insert into gen_durable.gen_durable (fsm, step, priority) select 'A', 's', 301 from generate_series(1, 10001)"
        )
    order = [id for _, id in sorted((row.priority, id) for row, id in zip(rows, ids, strict=True))]
    assert [e.id for e in await picked(database, 70)] == order[:70]
    assert [e.id for e in await picked(database, 30)] == order[70:]
    assert len(await picked(database, 10)) == (10 if many_due else 0)


async def test_rows_of_unknown_machines_are_not_leased(database: Database, sql: Any) -> None:
    ids = await inserted(database, new("Unknown"), new("A"), new("A", version=9))
    assert [e.id for e in await picked(database)] == [ids[1]]
    assert await sql.fetchval("select count(*) from gen_durable.gen_durable where status = 'runnable'") == 2


async def test_lost_lease_writes_nothing(database: Database, sql: Any) -> None:
    await inserted(database, new())
    (execution,) = await picked(database)
    await sql.execute("update gen_durable.gen_durable set lease_token = lease_token + 1")
    before = await sql.fetchrow("select * from gen_durable.gen_durable")
    (result,) = await flushed(database, [entry(execution, "done", payload="1")])
    assert not isinstance(result, Committed)
    assert await sql.fetchrow("select * from gen_durable.gen_durable") == before
    assert await database.run(lease.renew({(execution.id, execution.lease_token): LEASE})) == (
        {(execution.id, execution.lease_token)},
        set(),
    )
