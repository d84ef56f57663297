"""Searches return exactly the rows that match, whichever indexes they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

from gen_durable._db import search
from gen_durable._db.runner import run_asyncpg
from gen_durable._db.search import Filter

START = datetime(2026, 1, 1, tzinfo=UTC)

# 420 rows: every status with every combination of deleted, gated and keys. A row is inserted every 10 minutes, and the clock
# went back by 30 minutes twice.
ROWS = """
insert into gen_durable.gen_durable
       (id, fsm, fsm_version, step, rest_step, status, queue, lease_token, gated, parent_id, parent_round, schedule, correlation_key,
        correlation_scope, unique_key, unique_scope, concurrency_key, deleted_at, inserted_at, finished_at)
overriding system value
select n, 'M' || n % 2, 1 + n % 3, 's' || n % 4, 's' || n % 4, status, 'q' || n % 5, case when status = 'executing' then 1 end,
       status = 'runnable' and n % 2 = 0, case when n % 6 = 0 then n % 4 end, case when n % 6 = 0 then 1 end,
       case when n % 8 = 0 then 'nightly' end,
       case when n % 11 = 0 then 'c' || n % 2 end, case when n % 11 = 0 then '{}'::gen_durable.durable_status[] end,
       case when n = 13 or n % 13 = 0 and status in ('done', 'failed', 'cancelled') then 'u' end::bytea,
       case when n = 13 or n % 13 = 0 and status in ('done', 'failed', 'cancelled')
            then '{runnable,executing,awaiting_signal,awaiting_children}'::gen_durable.durable_status[] end,
       case when n % 3 = 0 then 'key' end, case when n % 9 = 0 then now() end,
       $1::timestamptz + n * interval '10 minutes' - case when n in (100, 300) then interval '30 minutes' else '0' end,
       case when status in ('done', 'failed', 'cancelled') then now() end
  from generate_series(1, 420) as n
 cross join lateral (
   select (enum_range(null::gen_durable.durable_status))[1 + n / 2 % 7] as status) chosen"""

Matches = Callable[[Mapping[str, Any]], bool]

FILTERS: list[tuple[dict[str, Any], Matches]] = [
    ({"fsms": ["M1"]}, lambda row: row["fsm"] == "M1"),
    ({"fsms": ["M0", "M1", "M0"]}, lambda row: True),
    ({"versions": [2]}, lambda row: row["fsm_version"] == 2),
    ({"steps": ["s1", "s2"]}, lambda row: row["step"] in ("s1", "s2")),
    ({"statuses": ["runnable"]}, lambda row: row["status"] == "runnable"),
    ({"statuses": ["executing", "done"]}, lambda row: row["status"] in ("executing", "done")),
    (
        {"statuses": ["awaiting_signal", "cancelled"]},
        lambda row: row["status"] in ("awaiting_signal", "cancelled"),
    ),
    ({"statuses": []}, lambda row: False),
    ({"queues": ["q3"]}, lambda row: row["queue"] == "q3"),
    ({"correlation_keys": ["c1"]}, lambda row: row["correlation_key"] == "c1"),
    ({"unique_keys": [b"u"]}, lambda row: row["unique_key"] == b"u"),
    ({"concurrency_keys": ["key"]}, lambda row: row["concurrency_key"] == "key"),
    ({"parent_ids": [2]}, lambda row: row["parent_id"] == 2),
    ({"schedules": ["nightly"]}, lambda row: row["schedule"] == "nightly"),
    (
        {"inserted_after": START + timedelta(hours=20)},
        lambda row: row["inserted_at"] >= START + timedelta(hours=20),
    ),
    (
        {"inserted_before": START + timedelta(hours=50)},
        lambda row: row["inserted_at"] < START + timedelta(hours=50),
    ),
]
DELETED: list[tuple[dict[str, Any], Matches]] = [
    ({}, lambda row: row["deleted_at"] is None),
    ({"with_deleted": True}, lambda row: True),
    ({"with_deleted": True, "only_deleted": True}, lambda row: row["deleted_at"] is not None),
]


async def test_search_returns_exactly_the_matching_rows(sql: Any) -> None:
    await sql.execute("set plan_cache_mode = force_generic_plan; set enable_seqscan = off")
    await sql.execute("alter table gen_durable.gen_durable disable trigger user")
    await sql.fetch(ROWS, START)
    rows = await sql.fetch(
        "select g.*, g.status::text as status from gen_durable.gen_durable g order by id desc"
    )
    chosen = [(), *((one,) for one in FILTERS), *combinations(FILTERS, 2)]
    for conditions in chosen:
        for deleted in DELETED:
            fields = {name: value for fields, _ in (*conditions, deleted) for name, value in fields.items()}
            if len(fields) < sum(len(fields) for fields, _ in (*conditions, deleted)):
                continue  # two values of one field
            expected = [row for row in rows if all(matches(row) for _, matches in (*conditions, deleted))]
            await check(sql, Filter(**fields), [row["id"] for row in expected])


async def check(sql: Any, wanted: Filter, expected: list[int]) -> None:
    async def run(plan: Any) -> Any:
        return await run_asyncpg(sql, plan, "gen_durable")

    assert await run(search.ids(wanted, 1000, None)) == expected, wanted
    assert [row["id"] for row in await run(search.page(wanted, 7, 300))] == [
        id for id in expected if id < 300
    ][:7]
    assert await run(search.count(wanted)) == len(expected), wanted
    assert sum(row["count"] for row in await run(search.tally(wanted))) == len(expected), wanted


async def test_moment_is_found_among_ids_with_gaps(sql: Any) -> None:
    await sql.execute(
        """insert into gen_durable.gen_durable (id, fsm, step, inserted_at) overriding system value
           select n * n, 'M', 's', $1::timestamptz + n * interval '1 hour' from generate_series(1, 400) as n""".replace(
            "$1", f"'{START.isoformat()}'"
        )
    )
    for hours in (-5, 0, 1, 2, 57, 200, 399, 400, 401, 1000):
        moment = START + timedelta(hours=hours, minutes=30)
        after = await run_asyncpg(sql, search.ids(Filter(inserted_after=moment), 1000, None), "gen_durable")
        before = await run_asyncpg(sql, search.ids(Filter(inserted_before=moment), 1000, None), "gen_durable")
        assert after == [n * n for n in range(400, 0, -1) if n > hours]
        assert before == [n * n for n in range(400, 0, -1) if n <= hours]
