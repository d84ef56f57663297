"""Reads of clients, and the cost of waiting."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gen_durable._db import snapshots
from gen_durable._db.snapshots import Filter
from tests.plans.explain import Explainer, check
from tests.plans.statements import ENDED, EXECUTING, PARENTS, PARKED

pytestmark = pytest.mark.asyncio(loop_scope="session")

PKEY = {"gen_durable_pkey"}
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
# The blocks of 200,000 rows and their primary key: the maximum cost of a page.
EVERYTHING = 13_000


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
    rows, (found,) = await explainer.run(snapshots.page(Filter(), 100, before))
    assert len(rows) == 100
    check(found, PKEY, blocks=150)


@pytest.mark.parametrize(
    ("wanted", "blocks"),
    [
        # One of n rows matches, so n pages are read until one is full …
        ({"fsms": ["Machine1"]}, 3 * 100),
        ({"queue": "q1"}, 4 * 100),
        ({"statuses": ["awaiting_signal"]}, 7 * 100),
        ({"statuses": ["executing"]}, 50 * 100),
        # … and if almost none matches, all instances are read, newest first.
        ({"fsms": ["Unknown"]}, EVERYTHING),
        ({"version": 2}, EVERYTHING),
        ({"steps": ["nowhere"]}, EVERYTHING),
        ({"statuses": ["cancelled"]}, EVERYTHING),
        ({"queue": "nothing"}, EVERYTHING),
        ({"unique_key": b"unique:15"}, EVERYTHING),
        ({"concurrency_key": "key7"}, EVERYTHING),
        ({"inserted_before": LONG_AGO}, EVERYTHING),
    ],
    ids=str,
)
async def test_filters_walk_the_primary_key(
    explainer: Explainer, wanted: dict[str, Any], blocks: int
) -> None:
    _, (found,) = await explainer.run(snapshots.page(Filter(**wanted), 100, None))
    assert not found.seq_scans, found
    assert "gen_durable_pkey" in found.indexes, found
    assert found.blocks <= blocks, found


async def test_counting_reads_everything_once(explainer: Explainer) -> None:
    count, (found,) = await explainer.run(snapshots.count(Filter(statuses=["executing"])))
    assert count == 4000
    assert found.blocks <= EVERYTHING, found


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
        snapshots.page(chosen, 100, None),
        snapshots.ids(chosen, 100, None),
        snapshots.tally(chosen),
        snapshots.count(chosen),
    ):
        result, (explained,) = await explainer.run(plan)
        check(explained, {index}, blocks=blocks)
        found.append(result)
    page, ids, tally, number = found
    assert len(page) == len(ids) == sum(row["count"] for row in tally) == number
    assert count in (..., number)
    assert ids == sorted(ids, reverse=True)
