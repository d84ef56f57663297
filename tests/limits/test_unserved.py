"""Rows that no live worker can start do not block their concurrency key forever."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest

from gen_durable import AsyncClient
from gen_durable._db import admission, workers
from gen_durable._db.pool import Database
from gen_durable._runtime.database_status import DatabaseStatus
from gen_durable._runtime.maintenance.reaper import Reaper
from gen_durable._runtime.step_counts import StepCounts
from gen_durable._runtime.wake import Wakes
from gen_durable.config import Settings
from gen_durable.reasons import NotFirstInLine
from gen_durable.telemetry import Telemetry
from tests.support.engine_plans import inserted, new, picked
from tests.support.worker_rows import WORKER_ROW

AN_HOUR: Final = timedelta(hours=1)
# Groups are passed over one minute after they were marked.
A_MINUTE_LATER: Final = "update gen_durable.unserved set since = since - interval '1 minute'"
MARKED: Final = "select array_agg(fsm || ' ' || queue order by fsm, queue) from gen_durable.unserved where served_at is null"


async def serve(database: Database, **changes: Any) -> None:
    """Register a worker; without changes, it runs version 1 of A in the queue `default`."""
    await database.run(workers.announce(msgspec.structs.replace(WORKER_ROW, **changes), AN_HOUR))


async def marked(database: Database, db: Any) -> list[str]:
    await database.run(admission.mark_unserved())
    found: list[str] | None = await db.fetchval(MARKED)
    return found or []


async def sweep(database: Database) -> None:
    """One round of a reaper."""
    await Reaper(database, Settings(), Telemetry(), Wakes(), DatabaseStatus(), StepCounts()).tick()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["B default"]),
        ({"queues": ["other"]}, ["A default", "B default"]),
        ({"fsm_versions": [2]}, ["A default", "B default"]),
        ({"queues": [], "prefixes": ["A"]}, ["B default"]),
        ({"queues": [], "prefixes": ["B"], "leaves_unknown": True}, ["A default", "B default"]),
        ({"queues": [], "prefixes": [""], "leaves_unknown": False}, []),
    ],
)
async def test_groups_without_a_live_worker_are_marked(
    database: Database, db: Any, changes: dict[str, Any], expected: list[str]
) -> None:
    await inserted(database, new("A"), new("B"))
    await serve(database, **changes)
    assert await marked(database, db) == expected
    assert await marked(database, db) == expected


async def test_mark_is_removed_when_a_worker_or_the_queue_returns(database: Database, db: Any) -> None:
    await inserted(database, new("A"))
    assert await marked(database, db) == ["A default"]
    await serve(database)
    assert await marked(database, db) == []
    await db.execute("select gen_durable.pause_queue('default')")
    assert await marked(database, db) == ["A default"]
    await db.execute("select gen_durable.resume_queue('default')")
    assert await marked(database, db) == []
    for end in ("is_draining = true", "is_draining = false, expires_at = now() - interval '1 s'"):
        await db.execute(f"update gen_durable.workers set {end}")
        assert await marked(database, db) == ["A default"]
        await serve(database)
        assert await marked(database, db) == []


@pytest.mark.clause("CON-9")
@pytest.mark.parametrize("is_paused", [True, False])
async def test_row_that_no_worker_can_start_blocks_its_key_for_a_minute(
    database: Database, db: Any, client: AsyncClient, *, is_paused: bool
) -> None:
    await serve(database)
    blocking = new("A", queue="slow", concurrency_key="k") if is_paused else new("X", concurrency_key="k")
    first, second = await inserted(database, blocking, new("A", concurrency_key="k"))
    if is_paused:
        await serve(database, name="v", queues=["slow"])
        await db.execute("select gen_durable.pause_queue('slow')")
    await sweep(database)
    assert await picked(database) == []
    assert [type(one) for one in (await client.explain(second)).reasons] == [NotFirstInLine]
    await db.execute(A_MINUTE_LATER)
    assert NotFirstInLine not in [type(one) for one in (await client.explain(second)).reasons]
    assert [one.id for one in await picked(database)] == [second]
    assert first not in [one.id for one in await picked(database)]


@pytest.mark.clause("CON-9")
async def test_gated_rows_behind_an_unserved_row_are_released(
    database: Database, db: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The row was gated while a worker for the first one was expected, and no later commit releases it."""
    await serve(database)
    _, second = await inserted(database, new("X", concurrency_key="k"), new("A", concurrency_key="k"))
    assert await database.run_in_transaction(admission.gate(["k"])) == {"k": 1}
    await sweep(database)
    assert await picked(database) == []
    await db.execute(A_MINUTE_LATER)
    await sweep(database)
    with caplog.at_level(logging.ERROR):
        assert [one.id for one in await picked(database)] == [second]
    assert "this is a bug" not in caplog.text


@pytest.mark.clause("CON-9")
async def test_gated_row_is_released_when_a_worker_for_it_starts(database: Database, db: Any) -> None:
    """It was passed over when its key became free."""
    (id,) = await inserted(database, new("A", concurrency_key="k"))
    await sweep(database)
    await db.execute(A_MINUTE_LATER)
    await db.execute("update gen_durable.gen_durable set gated = true")
    await database.run(admission.ungate(["k"]))
    assert await db.fetchval("select gated from gen_durable.gen_durable")
    await serve(database)
    await sweep(database)
    assert [one.id for one in await picked(database)] == [id]


async def test_mark_that_ends_explains_the_gated_rows_of_its_group(
    database: Database, db: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """After a day without an ungated row the mark ends. The gated row is next again, which is not a bug."""
    await inserted(database, new("X", concurrency_key="k"))
    await sweep(database)
    await db.execute("update gen_durable.gen_durable set gated = true")
    await db.execute("update gen_durable.unserved set since = since - interval '25 hours'")
    await sweep(database)
    assert not await db.fetchval("select gated from gen_durable.gen_durable")
    assert "this is a bug" not in caplog.text
    assert await marked(database, db) == ["X default"]


async def test_mark_of_a_group_without_rows_is_deleted(database: Database, db: Any) -> None:
    await inserted(database, new("X"))
    assert await marked(database, db) == ["X default"]
    await db.execute("delete from gen_durable.gen_durable")
    await db.execute("update gen_durable.unserved set since = since - interval '25 hours'")
    assert await marked(database, db) == []
    await db.execute("update gen_durable.unserved set served_at = served_at - interval '11 minutes'")
    assert await marked(database, db) == []
    assert await db.fetchval("select count(*) from gen_durable.unserved") == 0


async def test_new_worker_starts_its_rows_before_their_mark_is_removed(database: Database, db: Any) -> None:
    ids = await inserted(database, new("A", concurrency_key="k"), new("A", concurrency_key="k"))
    await sweep(database)
    await db.execute(A_MINUTE_LATER)
    assert [one.id for one in await picked(database)] == ids[:1]
