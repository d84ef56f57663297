"""Reads of clients, and the cost of waiting."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gen_durable._db import search, snapshots
from gen_durable._db.search import Filter
from tests.plans.explain import Explained, Explainer, check
from tests.plans.statements import ENDED, EXECUTING, PARENTS, PARKED

pytestmark = pytest.mark.asyncio(loop_scope="session")

PKEY = {"gen_durable_pkey"}
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
# The blocks of 200,000 rows and their primary key: the maximum cost of a page.


async def test_get_by_id(explainer: Explainer) -> None:
    row, (found,) = await explainer.run(snapshots.get(EXECUTING[5]))
    assert row is not None
    check(found, PKEY, blocks=40)


@pytest.mark.parametrize("id", [PARKED[3], ENDED[3]], ids=["live", "ended"])
async def test_get_by_key(explainer: Explainer, id: int) -> None:
    row, (found,) = await explainer.run(snapshots.get(f"order:{id}"))
    assert row is not None
    assert row["id"] == id
    check(found, {"gen_durable_correlation", "gen_durable_key", "gen_durable_pkey"}, blocks=60)


@pytest.mark.parametrize("batch", [1, 100, 1000])
async def test_waiting_reads_only_the_awaited_instances(explainer: Explainer, batch: int) -> None:
    wanted = dict.fromkeys([*EXECUTING[: batch // 2], *PARENTS[: batch - batch // 2]], True)
    settled, (found,) = await explainer.run(snapshots.finished_or_parked(wanted))
    assert len(settled) == batch - batch // 2
    check(found, PKEY, blocks=40 + 6 * batch)


@pytest.mark.parametrize("every", [False, True])
async def test_the_children_of_an_instance(explainer: Explainer, every: bool) -> None:
    rows, (found,) = await explainer.run(snapshots.children_of(PARENTS[4], every=every))
    assert len(rows) == 10
    check(found, {"gen_durable_parent", "gen_durable_pkey"}, blocks=80)


@pytest.mark.parametrize(("id", "count"), [(ENDED[3], 3), (EXECUTING[3], 1)], ids=["ended", "live"])
async def test_the_executions_of_an_instance(explainer: Explainer, id: int, count: int) -> None:
    rows, (found,) = await explainer.run(snapshots.executions(id))
    assert len(rows) == count
    check(found, {"executions_commit", "executions_aborted", "gen_durable_lease"}, blocks=60)


@pytest.mark.parametrize("before", [None, 100_000])
async def test_page_is_read_from_its_start(explainer: Explainer, before: int | None) -> None:
    rows, (found,) = await explainer.run(search.page(Filter(), 100, before))
    assert len(rows) == 100
    check(found, PKEY, blocks=150)


EXECUTING_ROWS = {"gen_durable_lease"}
BACKLOG = {"gen_durable_gated", "gen_durable_pick"}
MACHINE_BACKLOG = {"gen_durable_gated", "gen_durable_machine"}
RESTING = {"gen_durable_resting"}
KEYED = {"gen_durable_concurrency", "gen_durable_concurrency_resting", "gen_durable_lease"}
UNIQUE = {"gen_durable_unique", "gen_durable_unique_former"}
DELETED = {"gen_durable_deleted", "gen_durable_deleted_live"}
# Runnable rows are sorted by id. There are 80,000 of them, and as many blocks are read if none is known to be visible to all.
SORTED = 90_000


@pytest.mark.parametrize(
    ("wanted", "indexes", "blocks"),
    [
        ({"fsms": ["Machine1"]}, EXECUTING_ROWS | MACHINE_BACKLOG | RESTING, SORTED / 3),
        ({"fsms": ["Unknown"]}, EXECUTING_ROWS | MACHINE_BACKLOG | RESTING, 10_000),
        ({"queue": "q1"}, EXECUTING_ROWS | BACKLOG | RESTING, SORTED / 4),
        ({"queue": "nothing"}, EXECUTING_ROWS | BACKLOG | RESTING, 10_000),
        ({"statuses": ["runnable"]}, BACKLOG, SORTED),
        ({"statuses": ["executing"]}, EXECUTING_ROWS, 1000),
        ({"statuses": ["awaiting_signal"]}, RESTING, 3000),
        ({"statuses": ["awaiting_children", "failed"]}, RESTING, 3000),
        ({"statuses": ["done"]}, RESTING, 3000),
        ({"statuses": ["cancelled"]}, RESTING, 200),
        ({"fsms": ["Machine1", "Machine2"], "statuses": ["failed"]}, RESTING, 1000),
        ({"fsms": ["Machine1"], "statuses": ["failed"], "queue": "q1", "version": 1}, RESTING, 200),
        ({"fsms": ["Machine1"], "statuses": ["failed"], "steps": ["step"]}, RESTING, 1000),
        ({"steps": ["rare"], "statuses": ["done", "failed"]}, RESTING, 1000),
        ({"steps": ["nowhere"], "statuses": ["awaiting_signal"]}, RESTING, 200),
        ({"steps": ["nowhere"]}, EXECUTING_ROWS | BACKLOG | RESTING, SORTED),
        ({"fsms": ["Machine1"], "statuses": ["runnable"]}, MACHINE_BACKLOG, SORTED / 3),
        ({"queue": "q1", "statuses": ["runnable"]}, BACKLOG, SORTED / 4),
        ({"unique_key": b"unique:15"}, UNIQUE, 20),
        ({"unique_key": b"nothing"}, UNIQUE, 10),
        ({"concurrency_key": "key7"}, KEYED, 5000),
        ({"schedule": "nothing"}, {"gen_durable_schedule"}, 10),
        ({"inserted_before": LONG_AGO}, PKEY, 150),
        ({"inserted_after": datetime.max.replace(tzinfo=UTC)}, PKEY, 150),
        ({"with_deleted": True, "only_deleted": True}, DELETED, 10),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
async def test_every_filter_is_served_by_indexes(
    explainer: Explainer, wanted: dict[str, Any], indexes: set[str], blocks: float
) -> None:
    page, explained = await explainer.run(search.page(Filter(**wanted), 100, None))
    ids = [row["id"] for row in page]
    assert ids == sorted(ids, reverse=True)
    check_all(explained, indexes | PKEY, blocks)
    # Counting reads all matching rows, and nothing else.
    number, explained = await explainer.run(search.count(Filter(**wanted)))
    assert number >= len(ids)
    check_all(explained, indexes, blocks + 2 * number)


def check_all(explained: list[Explained], indexes: set[str], blocks: float) -> None:
    """Assert that these statements used exactly these indexes, no sequential scan, and at most `blocks` blocks."""
    used = {index for found in explained for index in found.indexes}
    # Probed once for runnable rows, if there are any.
    assert used - {"gen_durable_deleted_live"} == indexes - {"gen_durable_deleted_live"}, explained
    assert not any(found.seq_scans for found in explained), explained
    assert sum(found.blocks for found in explained) <= blocks, explained


async def test_version_reads_the_backlog_by_either_index(explainer: Explainer) -> None:
    _, (found,) = await explainer.run(search.page(Filter(version=2), 100, None))
    backlog = found.indexes & {"gen_durable_pick", "gen_durable_machine"}
    check_all([found], EXECUTING_ROWS | RESTING | PKEY | {"gen_durable_gated"} | backlog, SORTED)


async def test_counting_live_rows_reads_no_finished_row(explainer: Explainer) -> None:
    count, (found,) = await explainer.run(search.count(Filter(statuses=["executing"])))
    assert count == 4000
    check(found, EXECUTING_ROWS, blocks=2 * 4000)


async def test_page_of_a_time_range_is_found_by_ids(explainer: Explainer) -> None:
    moment = await explainer.connection.fetchval("select now() - interval '1 day'")
    page, explained = await explainer.run(search.page(Filter(inserted_before=moment), 100, None))
    assert len(page) == 100
    assert all(row["inserted_at"] < moment for row in page)
    # One hour is 3600 rows of the population.
    check_all(explained, PKEY, 400)
    number, _ = await explainer.run(search.count(Filter(inserted_after=moment)))
    assert number == await explainer.connection.fetchval(
        "select count(*) from gen_durable.gen_durable where inserted_at >= $1", moment
    )


@pytest.mark.parametrize(
    ("wanted", "index", "count", "blocks"),
    [
        ({"correlation_key": f"order:{ENDED[3]}"}, "gen_durable_key", 1, 20),
        ({"correlation_key": "unknown"}, "gen_durable_key", 0, 10),
        ({"parent_id": PARENTS[4]}, "gen_durable_parent", ..., 60),
        ({"parent_id": 1}, "gen_durable_parent", 0, 10),
        ({"correlation_key": f"order:{ENDED[3]}", "parent_id": 1}, "gen_durable_key", 0, 20),
    ],
    ids=str,
)
async def test_key_or_parent_is_found_by_index(
    explainer: Explainer, wanted: dict[str, Any], index: str, count: int, blocks: int
) -> None:
    chosen = Filter(**wanted)
    found: list[Any] = []
    for plan in (
        search.page(chosen, 100, None),
        search.ids(chosen, 100, None),
        search.tally(chosen),
        search.count(chosen),
    ):
        result, (explained,) = await explainer.run(plan)
        check_all([explained], {index, *(explained.indexes & PKEY)}, blocks)
        found.append(result)
    page, ids, tally, number = found
    assert len(page) == len(ids) == sum(row["count"] for row in tally) == number
    assert count in (..., number)
    assert ids == sorted(ids, reverse=True)
