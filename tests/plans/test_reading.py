"""Reads of clients, and the cost of waiting."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gen_durable._core.change_cursor import ChangeCursor, EndCursor
from gen_durable._db import changes, history, search, snapshots, timeline
from gen_durable._db.search import Filter
from tests.plans.explain import Explained, Explainer, check
from tests.plans.statements import ENDED, EXECUTING, PARENTS, PARKED

pytestmark = pytest.mark.asyncio(loop_scope="session")

PKEY = {"gen_durable_pkey"}
NOW = datetime(2100, 1, 1, tzinfo=UTC)
SINCE = [f"{status}_since" for status in changes.ENDS]
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
    check(found, {"gen_durable_correlation", "gen_durable_correlation_former", "gen_durable_pkey"}, blocks=60)


@pytest.mark.parametrize("batch", [1, 100, 1000])
async def test_waiting_reads_only_the_awaited_instances(explainer: Explainer, batch: int) -> None:
    ids = [*EXECUTING[: batch // 2], *PARENTS[: batch - batch // 2]]
    settled, (found,) = await explainer.run(changes.read([EndCursor(id, parked=True) for id in ids], batch))
    assert len(settled) == batch - batch // 2
    check(found, PKEY, blocks=40 + 6 * batch)


@pytest.mark.parametrize("batch", [1, 100, 1000])
async def test_watching_reads_only_the_watched_instances(explainer: Explainer, batch: int) -> None:
    cursors = [ChangeCursor(id, (0, 0)) for id in [*EXECUTING[: batch // 2], *ENDED[: batch - batch // 2]]]
    news, (rows, executions) = await explainer.run(changes.read(cursors, batch))
    assert len(news) == batch
    check(rows, PKEY, blocks=40 + 8 * batch)
    check(executions, {"executions_commit", "executions_aborted"}, blocks=40 + 12 * batch)
    for one in news:
        assert one.row is not None
        cursors[one.place].take(one.row, one.executions, most=changes.MOST_EXECUTIONS)
    again, (rows,) = await explainer.run(changes.read(cursors, batch))
    assert again == []
    check(rows, PKEY, blocks=40 + 6 * batch)


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


@pytest.mark.parametrize("id", [ENDED[3], EXECUTING[3], PARENTS[4], PARKED[3]])
async def test_timeline_of_an_instance(explainer: Explainer, id: int) -> None:
    rows, (found,) = await explainer.run(timeline.timeline(id, 50))
    assert rows
    assert not found.seq_scans
    assert found.blocks <= 150


async def test_transitions_of_an_instance(explainer: Explainer) -> None:
    rows, (found,) = await explainer.run(history.transitions(ENDED[3], 0, 200))
    assert rows
    check(found, {"executions_commit", "executions_aborted"}, blocks=60)
    states_from, (found,) = await explainer.run(history.states_within(ENDED[3], 0, 200, 1_000_000))
    assert states_from == 0
    check(found, {"executions_commit"}, blocks=20)


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
CORRELATION = {"gen_durable_correlation", "gen_durable_correlation_former"}
DELETED = {"gen_durable_deleted", "gen_durable_deleted_live"}
# Runnable rows are sorted by id. There are 80,000 of them, and as many blocks are read if none is known to be visible to all.
SORTED = 90_000


@pytest.mark.parametrize(
    ("wanted", "indexes", "blocks"),
    [
        ({"fsms": ["Machine1"]}, EXECUTING_ROWS | MACHINE_BACKLOG | RESTING, SORTED / 3),
        ({"fsms": ["Unknown"]}, EXECUTING_ROWS | MACHINE_BACKLOG | RESTING, 10_000),
        ({"queues": ["q1"]}, EXECUTING_ROWS | BACKLOG | RESTING, SORTED / 4),
        ({"queues": ["nothing"]}, EXECUTING_ROWS | BACKLOG | RESTING, 10_000),
        ({"statuses": ["runnable"]}, BACKLOG, SORTED),
        ({"statuses": ["executing"]}, EXECUTING_ROWS, 1000),
        ({"statuses": ["awaiting_signal"]}, RESTING, 3000),
        ({"statuses": ["awaiting_children", "failed"]}, RESTING, 3000),
        ({"statuses": ["done"]}, RESTING, 3000),
        ({"statuses": ["cancelled"]}, RESTING, 200),
        ({"fsms": ["Machine1", "Machine2"], "statuses": ["failed"]}, RESTING, 1000),
        ({"fsms": ["Machine1"], "statuses": ["failed"], "queues": ["q1"], "versions": [1]}, RESTING, 200),
        ({"fsms": ["Machine1"], "statuses": ["failed"], "steps": ["step"]}, RESTING, 1000),
        ({"steps": ["rare"], "statuses": ["done", "failed"]}, RESTING, 1000),
        ({"steps": ["nowhere"], "statuses": ["awaiting_signal"]}, RESTING, 200),
        ({"steps": ["nowhere"]}, EXECUTING_ROWS | BACKLOG | RESTING, SORTED),
        ({"fsms": ["Machine1"], "statuses": ["runnable"]}, MACHINE_BACKLOG, SORTED / 3),
        ({"queues": ["q1"], "statuses": ["runnable"]}, BACKLOG, SORTED / 4),
        ({"unique_keys": [b"unique:15"]}, UNIQUE, 20),
        ({"unique_keys": [b"nothing"]}, UNIQUE, 10),
        ({"concurrency_keys": ["key7"]}, KEYED, 5000),
        ({"schedules": ["nothing"]}, {"gen_durable_schedule"}, 10),
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
    check_newest(explained, indexes, blocks)
    oldest, explained = await explainer.run(search.ids_upwards(Filter(**wanted), 100, 0, 2**62))
    assert oldest == sorted(oldest)
    assert len(oldest) == len(ids)
    check_newest(explained, indexes, blocks)
    # Counting reads all matching rows, and nothing else.
    number, explained = await explainer.run(search.count(Filter(**wanted)))
    assert number >= len(ids)
    check_all(explained, indexes, blocks + 2 * number)


def check_newest(explained: list[Explained], indexes: set[str], blocks: float) -> None:
    """Assert the same of a page. The newest rows often have enough of a backlog; then only the primary key is read."""
    used = {index for found in explained for index in found.indexes}
    check_all(explained, PKEY if used == PKEY else indexes | used & PKEY, blocks)


def check_all(explained: list[Explained], indexes: set[str], blocks: float) -> None:
    """Assert that these statements used exactly these indexes, no sequential scan, and at most `blocks` blocks."""
    used = {index for found in explained for index in found.indexes}
    # Probed once for runnable rows, if there are any.
    assert used - {"gen_durable_deleted_live"} == indexes - {"gen_durable_deleted_live"}, explained
    assert not any(found.seq_scans for found in explained), explained
    assert sum(found.blocks for found in explained) <= blocks, explained


async def test_version_reads_the_backlog_by_either_index(explainer: Explainer) -> None:
    _, (found,) = await explainer.run(search.page(Filter(versions=[2]), 100, None))
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


async def test_page_of_a_schedule_is_read_from_its_newest_rows(explainer: Explainer) -> None:
    """9,000 ended rows and 100 live ones, all of one schedule."""
    await explainer.connection.execute(
        "update gen_durable.gen_durable set schedule = 'nightly' where id = any ($1)",
        [*ENDED[:9000], *PARKED[:100]],
    )
    ids, (found,) = await explainer.run(search.ids(Filter(schedules=["nightly"]), 50, None))
    assert len(ids) == 50
    check(found, {"gen_durable_schedule"}, blocks=400)
    live, (found,) = await explainer.run(
        search.ids(Filter(schedules=["nightly"], statuses=["done"]), 50, None)
    )
    assert len(live) == 50
    check(found, {"gen_durable_schedule"}, blocks=800)


@pytest.mark.parametrize(
    ("wanted", "indexes", "count", "blocks"),
    [
        ({"correlation_keys": [f"order:{ENDED[3]}"]}, CORRELATION, 1, 30),
        ({"correlation_keys": [f"order:{PARKED[3]}"]}, CORRELATION, 1, 30),
        ({"correlation_keys": ["unknown"]}, CORRELATION, 0, 10),
        ({"parent_ids": [PARENTS[4]]}, {"gen_durable_parent"}, ..., 60),
        ({"parent_ids": [1]}, {"gen_durable_parent"}, 0, 10),
        ({"correlation_keys": [f"order:{ENDED[3]}"], "parent_ids": [1]}, CORRELATION, 0, 30),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
async def test_key_or_parent_is_found_by_index(
    explainer: Explainer, wanted: dict[str, Any], indexes: set[str], count: int, blocks: int
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
        check_all([explained], indexes | explained.indexes & PKEY, blocks)
        found.append(result)
    page, ids, tally, number = found
    assert len(page) == len(ids) == sum(row["count"] for row in tally) == number
    assert count in (..., number)
    assert ids == sorted(ids, reverse=True)


@pytest.mark.parametrize(
    "wanted", [Filter(), Filter(fsms=["Machine1"], statuses=["failed"])], ids=["all", "filtered"]
)
async def test_tail_reads_new_executing_and_ended_rows_by_their_indexes(
    explainer: Explainer, wanted: Filter
) -> None:
    places = {"after": 199_000, "executing_after": 0, **dict.fromkeys(SINCE, NOW)}
    # A filter that few rows match reads all 4000 executing rows.
    rows, (found,) = await explainer.run(changes.discover(wanted, places, 100))
    assert rows
    check(found, {"gen_durable_pkey", "gen_durable_lease", "gen_durable_finished"}, blocks=3500)
