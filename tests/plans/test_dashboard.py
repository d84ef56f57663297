"""Reads of the pages of the dashboard use indexes, and read no more than they show or count."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gen_durable._db import audit, dashboard, outbox, rollups, snapshots
from tests.plans.explain import Explainer, check
from tests.plans.statements import ENDED, EXECUTING, PARENTS, PARKED, statement

pytestmark = pytest.mark.asyncio(loop_scope="session")

PKEY = {"gen_durable_pkey"}
AUDIT = """
insert into gen_durable.audit_events (instance_id, event, actor)
select n / 10, case when n % 2 = 0 then 'failed' else 'paused' end, case when n % 2 = 1 then 'ann' end
  from generate_series(10, 2009) n"""
SCHEDULES = """
insert into gen_durable.schedules (name, every, tz, missed, overlap, spec, anchor_at, next_at)
select 's' || n, '1 h', 'UTC', 'once', 'allow', '{"fsm": "Machine0"}', now(), now() from generate_series(1, 10) n"""
RUNS = "update gen_durable.gen_durable set schedule = 's' || id / 20 % 10 where id = any ($1::bigint[])"
COUNTED = """
insert into gen_durable.machine_stats (fsm, bucket, worker, incarnation, n, started, done, failed, cancelled, retried, raised, stopped, run, wait)
select '', date_bin('10 s', now(), 'epoch') - n * interval '10 s', 'w' || w, 1, 1, 0, 0, 0, 0, 0, 0, 0, '{}', '{}'
  from generate_series(0, 500) n, generate_series(1, 2) w"""
ANY: dict[str, Any] = {"who": "all", "actor": None, "event": None, "subject": None}


async def test_runs_of_schedules_are_found_by_their_schedule(explainer: Explainer) -> None:
    await explainer.connection.execute(SCHEDULES)
    await explainer.connection.execute(RUNS, [*ENDED[:500]])
    rows, (found,) = await explainer.run(dashboard.recent_runs(14))
    assert len(rows) == 9 * 14
    assert {"gen_durable_schedule"} <= found.indexes <= {"gen_durable_schedule", "schedules_pkey"}, found
    assert not found.seq_scans
    assert found.blocks <= 900


async def test_executing_instances_are_bounded(explainer: Explainer) -> None:
    rows, (found,) = await explainer.run(dashboard.running(100))
    assert len(rows) == 100
    check(found, {"gen_durable_lease"}, blocks=250)


async def test_executions_by_worker_are_those_of_the_period(explainer: Explainer) -> None:
    await explainer.connection.execute(COUNTED)
    rows, (found,) = await explainer.run(rollups.workers(timedelta(minutes=10), timedelta(seconds=20)))
    assert {row["worker"] for row in rows} == {"w1", "w2"}
    assert len(rows) in (60, 62)
    assert len(found.indexes) == 1
    assert found.indexes <= {"machine_stats_pkey", "machine_stats_unfolded"}, found
    assert not found.seq_scans
    assert found.blocks <= 200


async def test_sinks_are_skipped_through(explainer: Explainer) -> None:
    pending, (found,) = await explainer.run(dashboard.sinks())
    assert [(row["sink"], row["count"]) for row in pending] == [("sink1", 100)]
    check(found, {"outbox_due"}, blocks=250)
    dead, (found,) = await explainer.run(dashboard.dead_sinks())
    assert [(row["sink"], row["count"]) for row in dead] == [("sink0", 100)]
    check(found, {"outbox_dead"}, blocks=250)


async def test_published_events_of_a_period_are_bounded(explainer: Explainer) -> None:
    rows, (found,) = await explainer.run(dashboard.published(timedelta(minutes=15)))
    assert sum(row["count"] for row in rows) == 9800
    check(found, {"outbox_published"}, blocks=500)


async def test_many_pending_events_are_walked_and_few_sorted(explainer: Explainer) -> None:
    are_few, (found,) = await explainer.run(dashboard.few_pending())
    assert are_few
    assert found.indexes < {"outbox_due", "outbox_order"}, found
    assert found.blocks <= 250
    every = {"instance_id": None, "sink": None, "type": None, "state": "pending"}
    rows, (found,) = await explainer.run(outbox.list_events(every | {"since": 1, "before": 2**62}, 50))
    assert len(rows) == 50
    assert not any(node["Node Type"] == "Sort" for node in found.nodes), found


@pytest.mark.parametrize(
    "wanted", [{"type": "nothing"}, {"sink": "nothing"}, {"state": "published", "type": "nothing"}]
)
async def test_search_for_rare_events_reads_a_range_of_numbers(
    explainer: Explainer, wanted: dict[str, Any]
) -> None:
    last, (found,) = await explainer.run(dashboard.last_event())
    check(found, {"outbox_pkey"}, blocks=10)
    every = {"instance_id": None, "sink": None, "type": None, "state": None}
    rows, (found,) = await explainer.run(
        outbox.list_events(every | wanted | {"since": last - 499, "before": last + 1}, 50)
    )
    assert rows == []
    check(found, {"outbox_pkey"}, blocks=60)


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({}, 100),
        ({"who": "people"}, 100),
        ({"who": "trouble"}, 100),
        ({"actor": "bob"}, 0),
        ({"subject": "audit"}, 0),
    ],
    ids=str,
)
async def test_audit_events_are_searched_in_a_range_of_numbers(
    explainer: Explainer, wanted: dict[str, Any], count: int
) -> None:
    await explainer.connection.execute(AUDIT)
    last, (found,) = await explainer.run(dashboard.last_audit_event())
    check(found, {"audit_events_pkey"}, blocks=60)
    rows, (found,) = await explainer.run(dashboard.audit(ANY | wanted, None, last - 499, last + 1, 100))
    assert len(rows) == count
    check(found, {"audit_events_pkey"}, blocks=60)


async def test_audit_events_of_an_instance(explainer: Explainer) -> None:
    await explainer.connection.execute(AUDIT)
    rows, (found,) = await explainer.run(dashboard.audit(ANY, 150, 1, 2**62, 100))
    assert len(rows) == 10
    check(found, {"audit_events_instance"}, blocks=30)
    newest, (found,) = await explainer.run(audit.newest(150, 5))
    assert len(newest) == 5
    check(found, {"audit_events_instance"}, blocks=30)
    old, (found,) = await explainer.run(statement("snapshots.sql", "audit", id=150))
    assert len(old) == 10
    check(found, {"audit_events_instance"}, blocks=30)


async def test_level_of_the_audit_log_is_one_row(explainer: Explainer) -> None:
    level, (found,) = await explainer.run(audit.level())
    assert level == "failures"
    check(found, set(), blocks=10)
    *_, found = await explainer.explain(audit.set_level("all", "ann", "review"))
    # The first call of a function reads the catalog.
    assert not found.seq_scans
    assert found.blocks <= 300


async def test_reason_of_an_insert_is_added_to_its_event(explainer: Explainer) -> None:
    await explainer.connection.execute(AUDIT)
    for found in await explainer.explain(audit.give_reason(EXECUTING[3], "created", "by hand", "ann", {})):
        assert not found.seq_scans
        assert found.blocks <= 300


@pytest.mark.parametrize(
    "id", [ENDED[3], EXECUTING[3], PARENTS[4], PARKED[3]], ids=["ended", "executing", "parent", "parked"]
)
async def test_parts_of_the_page_of_an_instance(explainer: Explainer, id: int) -> None:
    for plan, indexes in (
        (snapshots.details(id), PKEY),
        (snapshots.pulse(id), PKEY),
        (snapshots.inbox(id), {"signals_target"}),
        (snapshots.messages(id, 50), {"signals_target"}),
        (snapshots.newest_children(id, 50), {"gen_durable_parent"}),
        (snapshots.children_counts(id), {"gen_durable_parent"}),
    ):
        _, (found,) = await explainer.run(plan)
        check(found, indexes, blocks=60)


async def test_newest_executions_of_an_instance(explainer: Explainer) -> None:
    rows, (found,) = await explainer.run(snapshots.newest_executions(ENDED[3], 50))
    assert len(rows) == 3
    check(found, {"executions_commit", "executions_aborted", "gen_durable_lease"}, blocks=60)


async def test_system_reads_no_table_of_the_engine(explainer: Explainer) -> None:
    for plan in (
        dashboard.tables("gen_durable"),
        dashboard.server(),
        dashboard.settings(["work_mem"]),
        snapshots.now(),
    ):
        for found in await explainer.explain(plan):
            assert not found.seq_scans
            assert not {
                name for name in found.indexes if name.startswith(("gen_durable_", "outbox_", "executions_"))
            }
