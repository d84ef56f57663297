"""Lists of the dashboard read a bounded number of rows by indexes, however many there are."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable._db import batches, dashboard, search, snapshots
from gen_durable._db.search import Filter
from tests.plans.explain import Explainer, check
from tests.plans.statements import ENDED, EXECUTING

pytestmark = pytest.mark.asyncio(loop_scope="session")

PKEY = {"gen_durable_pkey"}
RESTING = {"gen_durable_resting"}
BACKLOG = {"gen_durable_gated", "gen_durable_machine", "gen_durable_pick"}
MOST = 500


@pytest.mark.parametrize(
    ("wanted", "indexes"),
    [
        ({"statuses": ["runnable"]}, BACKLOG),
        ({"statuses": ["runnable"], "fsms": ["Machine1"]}, {"gen_durable_gated", "gen_durable_machine"}),
        ({"statuses": ["executing"]}, {"gen_durable_lease"}),
        ({"statuses": ["awaiting_signal"]}, RESTING),
        ({"statuses": ["failed"]}, RESTING),
        ({"statuses": ["done"], "fsms": ["Machine1"]}, RESTING),
        ({"statuses": ["cancelled"], "steps": ["step"]}, RESTING),
        ({"with_deleted": True, "only_deleted": True}, {"gen_durable_deleted", "gen_durable_deleted_live"}),
        ({"parent_ids": [19]}, {"gen_durable_parent"}),
        ({}, BACKLOG | RESTING | {"gen_durable_lease"}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
async def test_bounded_count_reads_no_more_than_its_bound(
    explainer: Explainer, wanted: dict[str, Any], indexes: set[str]
) -> None:
    every, _ = await explainer.run(search.count(Filter(**wanted)))
    (count, is_exact), (found,) = await explainer.run(search.count_up_to(Filter(**wanted), MOST))
    assert (count, is_exact) == (min(every, MOST), every <= MOST)
    assert not found.seq_scans, found
    # A source that the bound does not reach is not read.
    assert found.indexes <= indexes | {"gen_durable_deleted_live"}, found
    assert found.blocks <= 4 * MOST + 500, found


async def test_rows_of_a_list_are_read_by_id(explainer: Explainer) -> None:
    ids = [*ENDED[:50], *EXECUTING[:50]]
    rows, (found,) = await explainer.run(snapshots.briefs(ids))
    assert [row["id"] for row in rows] == sorted(ids, reverse=True)
    check(found, PKEY, blocks=1000)


async def test_newest_failures(explainer: Explainer) -> None:
    ids, _ = await explainer.run(search.ids(Filter(statuses=["failed"]), MOST, None))
    rows, (found,) = await explainer.run(dashboard.newest_failed(ids, MOST))
    assert len(rows) == min(len(ids), MOST)
    check(found, PKEY | {"gen_durable_finished"}, blocks=20 * MOST)


async def test_newest_attempts_that_were_repeated(explainer: Explainer) -> None:
    _, (found,) = await explainer.run(dashboard.newest_raised(MOST))
    assert not found.seq_scans, found
    assert found.indexes <= PKEY | {"executions_aborted"}, found
    assert found.blocks <= 20 * MOST


async def test_unfinished_batches(explainer: Explainer) -> None:
    unfinished, (found,) = await explainer.run(batches.unfinished(100))
    assert unfinished == {}
    assert found.indexes == {"batches_unfinished"}
