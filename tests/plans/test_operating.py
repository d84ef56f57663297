"""What operators read: explain, doctor, queues and the audit log."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import Settings
from gen_durable._db import audit, census, doctor, explain, machines, stats, workers
from tests.plans.explain import Explained, Explainer
from tests.plans.statements import ENDED, EXECUTING, HOLDERS, PARENTS, PARKED

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The last runnable row of a queue: all others are before it.
LAST_IN_LINE = """
select id from gen_durable.gen_durable where status = 'runnable' and queue = $1
 order by priority desc, eligible_at desc, id desc limit 1"""


@pytest.mark.parametrize(
    "id",
    [EXECUTING[3], PARKED[3], PARENTS[3], ENDED[3], HOLDERS[3]],
    ids=["executing", "parked", "parent", "ended", "holder"],
)
async def test_explain_reads_by_index(explainer: Explainer, id: int) -> None:
    row, explained = await explainer.run(explain.facts(id))
    assert row is not None
    check_bounded(explained, 300)


@pytest.mark.parametrize("queue", ["q1", "keyed"])
async def test_explain_counts_at_most_1000_rows_ahead(explainer: Explainer, queue: str) -> None:
    id = await explainer.connection.fetchval(LAST_IN_LINE, queue)
    row, explained = await explainer.run(explain.facts(id))
    assert row is not None
    check_bounded(explained, 5000)


async def test_queues_count_a_bounded_number_of_rows(explainer: Explainer) -> None:
    queues, explained = await explainer.run(workers.queues())
    assert queues
    check_bounded(explained, 90_000)


async def test_stats_read_a_bounded_number_of_rows(explainer: Explainer) -> None:
    found, explained = await explainer.run(stats.stats())
    assert found.machines
    assert {"executions_commit", "executions_aborted", "gen_durable_finished"} <= {
        name for each in explained for name in each.indexes
    }
    check_bounded(explained, 130_000)


@pytest.mark.parametrize("machine", [None, "Machine1"])
async def test_census_reads_a_bounded_number_of_rows_by_index(
    explainer: Explainer, machine: str | None
) -> None:
    found, explained = await explainer.run(census.census(machine))
    # Rows that are due later come after those that are counted.
    assert {group.state for group in found.groups} - {"later"} == {
        *("due", "gated", "executing", "awaiting_signal", "awaiting_children", "done", "failed")
    }
    assert {"gen_durable_resting", "gen_durable_machine", "gen_durable_gated", "gen_durable_lease"} <= {
        name for each in explained for name in each.indexes
    }
    check_bounded(explained, 30_000)


@pytest.mark.parametrize("machine", [None, "Machine1"])
async def test_graphs_are_read_without_the_instances(explainer: Explainer, machine: str | None) -> None:
    _, explained = await explainer.run(machines.stored_graphs(machine))
    check_bounded(explained, 300)


async def test_doctor_reads_by_index(explainer: Explainer) -> None:
    _, explained = await explainer.run(doctor.examine(Settings()))
    check_bounded(explained, 90_000)


@pytest.mark.parametrize(
    "plan", [audit.events(ENDED[3], 0, 100), audit.latest(None, 100)], ids=["one", "latest"]
)
async def test_audit_log_is_read_by_index(explainer: Explainer, plan: Any) -> None:
    _, explained = await explainer.run(plan)
    # Other tests have left up to 1,000 dead rows.
    check_bounded(explained, 1500)


def check_bounded(explained: list[Explained], blocks: int) -> None:
    """Assert that these statements used no sequential scan, and at most `blocks` blocks each."""
    for found in explained:
        assert not found.seq_scans, found
        assert found.blocks <= blocks, (found.blocks, found)
