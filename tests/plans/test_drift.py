"""Prepared plans and statistics from a time when the tables were empty."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import asyncpg
import pytest

from gen_durable._db import commit, pick, pool
from gen_durable._db.connector import PINNED
from gen_durable._db.plan import Plan, Statement
from gen_durable._db.pool import Database
from gen_durable._db.runner import run_asyncpg
from tests.plans.conftest import TABLES, Populated
from tests.plans.explain import Explained, Explainer
from tests.plans.statements import LEASES, MACHINES, RECORDER, explained, outcomes


def test_plans_made_for_an_empty_table_serve_a_full_one(populated: Populated) -> None:
    """In a new installation, workers prepare their statements before there are rows."""
    no_statement_reads_everything(populated.by_old_plans)


@pytest.mark.asyncio(loop_scope="session")
async def test_new_plans_use_the_current_size_without_statistics(
    explainer: Explainer,
) -> None:
    """A table that was analyzed while empty and has grown: the planner reads the current file size."""
    for table in TABLES:
        await explainer.connection.execute(
            f"""delete from pg_statistic where starelid = '{table}'::regclass;
                update pg_class set relpages = 0, reltuples = 0 where oid = '{table}'::regclass
                    or oid in (select indexrelid from pg_index where indrelid = '{table}'::regclass)"""
        )
    no_statement_reads_everything(await explained(explainer))


@pytest.mark.parametrize("count", [0, 1, 20, 300])
@pytest.mark.parametrize("commits", [commit.commit_plain, commit.commit], ids=["plain", "full"])
async def test_commits_lock_rows_in_the_given_order_in_a_small_table(
    direct_dsn: str, commits: Callable[..., Plan[Any]], count: int
) -> None:
    """Also a plan that stays in use while the table grows: a merge join would lock in the order of the index."""
    async with Explainer.open(direct_dsn) as explainer:
        await explainer.connection.execute(
            "insert into gen_durable.gen_durable (fsm, step, status, lease_token, step_seq)"
            f" select 'A', 's', 'executing', n, 1 from generate_series(1, {count}) n"
        )
        await explainer.connection.execute("vacuum analyze gen_durable.gen_durable")
        found, *_ = await explainer.explain(commits(outcomes(range(1, count + 1), "done"), RECORDER))
    (join,) = found.update["Plans"]
    assert join["Node Type"] == "Nested Loop", found
    assert [node["Node Type"] for node in join["Plans"]] == ["Subquery Scan", "Index Scan"], found
    assert found.update["Actual Rows"] == count


async def test_plans_stay_good_while_the_table_grows(
    direct_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_PLAN_LIFETIME", 0.2)
    mine = Statement(
        "mine",
        "select name, prepare_time from pg_prepared_statements where statement like '%pg_prepared_statements%'",
    )

    def prepared() -> Plan[list[Any]]:
        return [tuple(row) for row in (yield mine())]

    async with await Database.open(direct_dsn, "gen_durable", size=1) as database:
        first = await database.run(prepared())
        assert await database.run(prepared()) == first
        await asyncio.sleep(0.3)
        assert first[0] not in await database.run(prepared())


async def test_every_plan_is_generic(direct_dsn: str) -> None:
    connection = await asyncpg.connect(direct_dsn, server_settings=PINNED)
    for _ in range(10):
        await run_asyncpg(
            connection, pick.pick("q", pick.PickRequest(MACHINES, 10, 7, "worker", LEASES)), "gen_durable"
        )
    counts = await connection.fetch(
        "select generic_plans, custom_plans from pg_prepared_statements where statement like 'with recursive moment%'"
    )
    assert [tuple(count) for count in counts] == [(10, 0)]
    await connection.close()


def no_statement_reads_everything(explained: Mapping[str, Explained]) -> None:
    assert explained
    for name, found in explained.items():
        assert not found.seq_scans, (name, found)
        assert found.blocks <= 4000, (name, found)
