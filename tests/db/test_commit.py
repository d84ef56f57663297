"""Group commit: what it writes, and batches with an invalid row."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gen_durable._core.model import Committed, Stale
from gen_durable._db.pool import Database
from gen_durable._db.signals import deliver
from tests.support.engine_plans import RECORDER, entry, flushed, inserted, new, picked


@pytest.mark.parametrize("is_plain", [True, False])
async def test_one_invalid_outcome_in_a_batch_fails_alone(
    database: Database, sql: Any, *, is_plain: bool
) -> None:
    """settle lets no invalid value through; if PostgreSQL refuses one anyway, the rest of the batch commits."""
    ids = await inserted(database, *[new(concurrency_key=None if is_plain else f"k{n}") for n in range(100)])
    executions = await picked(database)
    entries = [entry(e, "next", payload=f'"{e.id}"') for e in executions]
    entries[37] = entry(executions[37], "next", payload='"\\u0000"')
    results = await flushed(database, entries)
    assert all(isinstance(result, Committed) for result in results)
    rows = await sql.fetch(
        "select id, status, state, step, last_error from gen_durable.gen_durable order by id"
    )
    assert [row["id"] for row in rows] == ids
    failed = [row for row in rows if row["status"] == "failed"]
    assert [row["id"] for row in failed] == [ids[37]]
    assert failed[0]["state"] == "{}"
    assert failed[0]["last_error"].startswith(
        "the database refused the outcome: unsupported Unicode escape sequence"
    )
    assert "\n" not in failed[0]["last_error"]
    assert all(row["state"] == f'"{row["id"]}"' and row["step"] == "t" for row in rows if row not in failed)


async def test_invalid_child_fails_its_parent_and_inserts_no_sibling(database: Database, sql: Any) -> None:
    ids = await inserted(database, new(), new())
    first, second = await picked(database)
    results = await flushed(
        database,
        [
            entry(first, "schedule_children", children=(new("B"), new("B", state="no json"), new("B"))),
            entry(second, "schedule_children", children=(new("B"),)),
        ],
    )
    assert [result.status for result in results if isinstance(result, Committed)] == [
        "failed",
        "awaiting_children",
    ]
    children = await sql.fetch("select parent_id from gen_durable.gen_durable where parent_id is not null")
    assert [child["parent_id"] for child in children] == [ids[1]]
    error = await sql.fetchval("select last_error from gen_durable.gen_durable where id = $1", ids[0])
    assert error.startswith("the database refused the outcome: invalid input syntax for type json")


async def test_same_outcome_sent_twice_is_committed_once(database: Database, sql: Any) -> None:
    await inserted(database, new())
    (execution,) = await picked(database)
    twice = entry(execution, "continue", payload="1")
    first, second = await flushed(database, [twice]), await flushed(database, [twice])
    assert isinstance(first[0], Committed)
    assert isinstance(second[0], Stale)
    assert await sql.fetchval("select step_seq from gen_durable.gen_durable") == 1


async def test_chained_step_has_a_lease_until_the_next_heartbeat(database: Database, sql: Any) -> None:
    """A slow effect locks the row, so no heartbeat can renew the lease meanwhile."""
    await inserted(database, new())
    (execution,) = await picked(database)
    await sql.execute("update gen_durable.gen_durable set lease_expires_at = now() - interval '1 second'")
    await flushed(database, [entry(execution, "continue", payload="1")])
    left = await sql.fetchval("select lease_expires_at - now() from gen_durable.gen_durable")
    assert timedelta(seconds=5) < left <= RECORDER.grace


async def test_await_stores_names_deadline_and_presented_signals(database: Database, sql: Any) -> None:
    (id,) = await inserted(database, new())
    await database.run(deliver(id, "early", "1", None))
    (execution,) = await picked(database)
    names = ('a"b', "c\\d", "e,f", "{g}", "NULL", " ", "h'i")
    deadline = datetime(2040, 5, 6, tzinfo=UTC)
    seen = tuple(signal.id for signal in execution.inbox)
    await flushed(database, [entry(execution, "await", awaits=names, presented=seen, deadline=deadline)])
    row = await sql.fetchrow("select * from gen_durable.gen_durable")
    assert (row["status"], tuple(row["awaits"]), row["await_deadline"]) == (
        "awaiting_signal",
        names,
        deadline,
    )
    assert tuple(row["presented"]) == seen


async def test_refused_await_stores_no_presented_signals(database: Database, sql: Any) -> None:
    await inserted(database, new())
    (execution,) = await picked(database)
    await flushed(database, [entry(execution, "await", awaits=("a",), presented=(7,), payload='"\\u0000"')])
    row = await sql.fetchrow("select status, awaits, presented from gen_durable.gen_durable")
    assert tuple(row) == ("failed", None, None)


async def test_transition_consumes_only_the_received_signals(database: Database, sql: Any) -> None:
    (id,) = await inserted(database, new())
    for name, key in [("paid", None), ("paid", "evt"), ("other", None)]:
        await database.run(deliver(id, name, '{"a": 1}', key))
    await sql.execute("update gen_durable.gen_durable set awaits = '{paid}'")
    (execution,) = await picked(database)
    await database.run(deliver(id, "paid", '"late"', None))
    received = tuple(signal.id for signal in execution.awaited)
    assert len(received) == 2
    await flushed(database, [entry(execution, "next", consumed=received)])
    left = await sql.fetch(
        "select name, payload, dedup_key, consumed_seq from gen_durable.signals order by id"
    )
    assert [tuple(row) for row in left] == [
        ("paid", "null", "evt", 1),  # kept for its dedup_key only
        ("other", '{"a": 1}', None, None),
        ("paid", '"late"', None, None),
    ]


@pytest.mark.parametrize("kind", ["done", "stop"])
async def test_end_clears_the_inbox_and_keeps_the_state(database: Database, sql: Any, kind: str) -> None:
    (id,) = await inserted(database, new(state='{"a": 1}'))
    await database.run(deliver(id, "x", "1", "evt"))
    (execution,) = await picked(database)
    await flushed(database, [entry(execution, kind, payload="[2]" if kind == "done" else None, error="why")])
    assert await sql.fetchval("select count(*) from gen_durable.signals") == 0
    row = await sql.fetchrow("select * from gen_durable.gen_durable")
    assert json.loads(row["state"]) == {"a": 1}
    assert row["result"] == ("[2]" if kind == "done" else None)
    assert (row["last_error"], row["step"], row["step_seq"]) == ("why", "s", 1)
    assert row["finished_at"] is not None


async def test_retry_keeps_state_and_counts_the_attempt(database: Database, sql: Any) -> None:
    (id,) = await inserted(database, new())
    await database.run(deliver(id, "paid", "1", None))
    await sql.execute(
        "update gen_durable.gen_durable set awaits = '{paid}', timed_out = true, crash_count = 3"
    )
    (execution,) = await picked(database)
    await flushed(database, [entry(execution, "retry", delay=timedelta(hours=1), payload="[1]")])
    row = await sql.fetchrow("select *, eligible_at - updated_at as delay from gen_durable.gen_durable")
    assert (row["status"], row["attempt"], row["step_seq"], row["step"]) == ("runnable", 1, 0, "s")
    assert (row["awaits"], row["timed_out"], row["crash_count"], row["state"]) == (["paid"], True, 0, "[1]")
    assert row["delay"] == timedelta(hours=1)
    assert await sql.fetchval("select count(*) from gen_durable.signals where consumed_seq is null") == 1
