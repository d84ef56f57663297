"""Updates of live executions are HOT updates: no index contains a changed column."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gen_durable._core.model import CommitEntry
from gen_durable._db import commit, lease, pick
from gen_durable._db.runner import run_asyncpg
from tests.support.engine_plans import LEASE, RECORDER

CHANGED_WHILE_EXECUTING = {
    "step",
    "state",
    "step_seq",
    "attempt",
    "crash_count",
    "execution",
    "lease_token",
    "lease_expires_at",
    "leased_at",
    "started_at",
    "locked_by",
    "updated_at",
    "has_signals",
    "inbox_count",
    "inbox_bytes",
    "presented",
    "timed_out",
    "awaits",
    "result",
    "last_error",
    "error",
}


async def test_no_index_has_a_column_that_chained_commits_or_heartbeats_change(sql: Any) -> None:
    indexes = await sql.fetch(
        """select c.relname as name, i.indrelid, i.indkey::int2[] as keys, pg_get_indexdef(i.indexrelid) as definition,
                  pg_get_expr(i.indpred, i.indrelid) as predicate, pg_get_expr(i.indexprs, i.indrelid) as expressions
             from pg_index i join pg_class c on c.oid = i.indexrelid
            where i.indrelid = 'gen_durable.gen_durable'::regclass"""
    )
    columns = {
        row["attnum"]: row["attname"]
        for row in await sql.fetch(
            "select attnum, attname from pg_attribute"
            " where attrelid = 'gen_durable.gen_durable'::regclass and attnum > 0"
        )
    }
    assert set(columns.values()) >= CHANGED_WHILE_EXECUTING
    assert len(indexes) >= 11
    for index in indexes:
        # Key and INCLUDE columns by number; columns in expressions and predicates by text.
        named = {columns[number] for number in index["keys"] if number}
        for text in (index["predicate"], index["expressions"]):
            named |= set(re.findall(r"[a-z_]+", text or "")) & set(columns.values())
        assert not named & CHANGED_WHILE_EXECUTING, index["definition"]


async def test_instances_have_no_generated_column(sql: Any) -> None:
    """PostgreSQL 18 parses generated columns again for every row of an UPDATE that sets none of their base columns."""
    generated = await sql.fetch(
        "select attname from pg_attribute"
        " where attrelid = 'gen_durable.gen_durable'::regclass and attgenerated <> ''"
    )
    assert generated == []


async def test_heartbeats_and_chained_commits_are_hot_updates(sql: Any) -> None:
    # A reused database may have dead rows on its first page.
    await sql.execute("truncate gen_durable.gen_durable")
    await sql.execute(
        """select gen_durable.insert_all((select jsonb_agg(jsonb_build_object('fsm', 'Greet', 'step', 'hello',
             'correlation_key', 'c' || n, 'unique_key', 'u' || n)) from generate_series(1, 2) n))"""
    )
    picked = await run_asyncpg(
        sql,
        pick.pick("default", pick.PickRequest((["Greet"], [1]), 2, 7, "w", pick.Leases(LEASE))),
        "gen_durable",
    )
    # Includes the first commit after an await with a timeout.
    await sql.execute("update gen_durable.gen_durable set awaits = '{go}', await_deadline = '2099-01-01'")
    # All versions of two rows fit on one page, so only an index can prevent a HOT update.

    async with sql.transaction(), hot_updates(sql, 2):
        leases = {(execution.id, 7): LEASE for execution in picked.executions}
        assert await run_asyncpg(sql, lease.renew(leases), "gen_durable") == (set(), set())
    for step_seq in range(6):
        entries = [
            CommitEntry(
                execution=msgspec.structs.replace(execution, step_seq=step_seq),
                kind="continue",
                step=f"s{step_seq}",
                payload="[1]",
            )
            for execution in picked.executions
        ]
        before = await rows(sql)
        async with sql.transaction(), hot_updates(sql, 2):
            plan = (
                commit.commit_plain(entries, RECORDER) if step_seq % 2 else commit.commit(entries, RECORDER)
            )
            await run_asyncpg(sql, plan, "gen_durable")
        # The list of columns above is complete.
        changed = {
            column for old, new in zip(before, await rows(sql), strict=True) for column, _ in old ^ new
        }
        assert changed <= CHANGED_WHILE_EXECUTING


async def rows(sql: Any) -> list[set[tuple[str, str]]]:
    """All columns of all instances, as text."""
    found = await sql.fetch("select to_jsonb(g) as row from gen_durable.gen_durable g order by id")
    return [{(name, json.dumps(value)) for name, value in json.loads(one["row"]).items()} for one in found]


@asynccontextmanager
async def hot_updates(sql: Any, expected: int) -> AsyncIterator[None]:
    """Assert that the block makes this many updates of the table, all of them HOT."""
    before = await updates(sql)
    yield
    assert await updates(sql) - before == Counter(all=expected, hot=expected)


async def updates(sql: Any) -> Counter[str]:
    row = await sql.fetchrow(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_xact_user_tables"
        " where relid = 'gen_durable.gen_durable'::regclass"
    )
    return Counter(all=row["n_tup_upd"], hot=row["n_tup_hot_upd"])
