"""Rollups are read and folded by index, among two weeks of rows."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from gen_durable._db import rollups
from gen_durable._verbs.rates import edge_rates, rates, step_rates
from gen_durable.rates import TimeRange
from tests.plans.explain import Explained, Explainer

pytestmark = pytest.mark.asyncio(loop_scope="session")

# 14 days of five minutes, and 2 hours of 10 seconds by two workers; 4 machines, the empty name for their sum.
ROWS = """
create temp table stamped on commit drop as
  select date_bin('5 min', now(), 'epoch') - n * interval '5 min' as bucket, '' as worker from generate_series(24, 4031) n
  union all
  select date_bin('10 s', now(), 'epoch') - n * interval '10 s', worker
    from generate_series(0, 719) n cross join unnest('{w1,w2}'::text[]) as worker;
insert into gen_durable.machine_stats
select fsm, bucket, worker, (worker <> '')::int, (fsm <> '')::int, 9, 1, 1, 0, 0, 0, 0, 0, '{1,2,3,3}', '{0,0,1}'
  from stamped cross join unnest('{"",Machine0,Machine1,Machine2}'::text[]) as fsm;
insert into gen_durable.step_stats
select fsm, bucket, worker, (worker <> '')::int, 1, step, 'next', '', 'next', 3, 1, '{1,2}', '{0,0,1}'
  from stamped cross join unnest('{Machine0,Machine1,Machine2}'::text[]) as fsm cross join unnest('{a,b,c}'::text[]) as step;
insert into gen_durable.backlog
select fsm, bucket, 1, 1, 1, true from stamped cross join unnest('{"",Machine0}'::text[]) as fsm where worker <> 'w2';
analyze gen_durable.machine_stats;
analyze gen_durable.step_stats;
analyze gen_durable.backlog;
"""


def check(explained: list[Explained], indexes: set[str], blocks: int) -> None:
    used: set[str] = set()
    for found in explained:
        assert not found.seq_scans, found
        assert found.blocks <= blocks, (found.blocks, found)
        used |= found.indexes
    assert used == indexes


@pytest.mark.parametrize(("wanted", "blocks"), [("15m", 700), ("24h", 3000), ("7d", 9000)])
async def test_rates_are_read_by_primary_key(explainer: Explainer, wanted: TimeRange, blocks: int) -> None:
    await explainer.connection.execute(ROWS)
    of_all, explained = await explainer.run(rates(wanted, None))
    assert of_all.points
    assert len(of_all.points) <= 98
    check(explained, {"machine_stats_pkey", "backlog_pkey"}, blocks)
    of_one, explained = await explainer.run(rates(wanted, "Machine1"))
    assert of_one.total.executions == of_all.total.executions
    check(explained, {"machine_stats_pkey", "backlog_pkey"}, blocks)
    of_version, explained = await explainer.run(rates(wanted, "Machine1", 1))
    assert of_version.total == msgspec.structs.replace(of_one.total, at=of_version.total.at)
    check(explained, {"machine_stats_pkey", "backlog_pkey"}, blocks)
    of_another, _ = await explainer.run(rates(wanted, "Machine1", 2))
    assert of_another.total.executions == 0


@pytest.mark.parametrize(("wanted", "blocks"), [("15m", 700), ("7d", 4000)])
async def test_step_rates_are_read_by_index(explainer: Explainer, wanted: TimeRange, blocks: int) -> None:
    await explainer.connection.execute(ROWS)
    found, explained = await explainer.run(step_rates("Machine1", wanted))
    assert {each.step for each in found.steps} == {"a", "b", "c"}
    check(explained, {"step_stats_pkey"}, blocks)
    rows, explained = await explainer.run(
        rollups.step_series("Machine1", 1, "a", found.period, timedelta(minutes=5))
    )
    # The first interval begins before the period.
    assert sum(row["executions"] for row in rows) >= found.steps[0].executions > 0
    check(explained, {"step_stats_pkey"}, blocks)


async def test_rates_of_the_current_minute_read_only_its_rows(explainer: Explainer) -> None:
    await explainer.connection.execute(ROWS)
    found, explained = await explainer.run(edge_rates("Machine1", timedelta(seconds=61)))
    assert len(found) == 3
    check(explained, {"step_stats_pkey"}, 60)


async def test_old_rows_are_found_by_index(explainer: Explainer, monkeypatch: pytest.MonkeyPatch) -> None:
    await explainer.connection.execute(ROWS)
    monkeypatch.setattr(rollups, "_FOLDED_AFTER", timedelta(minutes=100))
    monkeypatch.setattr(rollups, "_PAGE", 100)
    has_more, explained = await explainer.run(rollups.fold())
    assert has_more
    check(explained, {"step_stats_unfolded", "machine_stats_unfolded"}, 5000)
    monkeypatch.setattr(rollups, "_RETENTION", timedelta(days=13))
    has_more, explained = await explainer.run(rollups.sweep())
    assert has_more
    check(explained, {"step_stats_folded", "machine_stats_folded", "backlog_thinned", "backlog_kept"}, 5000)


async def test_backlog_is_counted_by_index(explainer: Explainer) -> None:
    await explainer.connection.execute(ROWS)
    await explainer.connection.execute("delete from gen_durable.backlog")
    _, explained = await explainer.run(rollups.write_backlog())
    (found,) = explained
    assert not found.seq_scans, found
    assert {"gen_durable_machine", "gen_durable_resting", "gen_durable_lease"} <= found.indexes
    assert found.blocks <= 90_000, found.blocks
    assert await explainer.connection.fetchval("select count(*) from gen_durable.backlog") == 4
