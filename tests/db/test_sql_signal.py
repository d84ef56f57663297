"""The SQL function `signal`: to a live instance, by id or correlation key."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from tests.db.conftest import refused

INSERT = "select id from gen_durable.insert('A', step => 's', correlation_key => 'order:1')"


async def park(sql: Any, id: int, *names: str) -> None:
    await sql.execute(
        "update gen_durable.gen_durable set status = 'awaiting_signal', awaits = $2, eligible_at = '2001-01-01',"
        " await_deadline = '2099-01-01' where id = $1",
        id,
        names,
    )


async def end(sql: Any, id: int, status: str) -> None:
    await sql.execute(
        "update gen_durable.gen_durable set status = $2::text::gen_durable.durable_status, finished_at = now()"
        " where id = $1",
        id,
        status,
    )


@pytest.mark.clause("SQL-1")
async def test_signal_by_id_or_key_is_in_the_inbox(sql: Any) -> None:
    id = await sql.fetchval(INSERT)
    answers = [
        await sql.fetchrow("select * from gen_durable.signal($1::bigint, 'paid', '{\"amount\": 100}')", id),
        await sql.fetchrow(f"select * from gen_durable.signal({id}, 'paid')"),
        await sql.fetchrow("select * from gen_durable.signal('order:1', 'noted', dedup_key => 'evt-1')"),
    ]
    assert [tuple(answer) for answer in answers] == [(id, True)] * 3
    inbox = await sql.fetch("select target_id, name, payload, dedup_key from gen_durable.signals order by id")
    assert [tuple(row) for row in inbox] == [
        (id, "paid", '{"amount": 100}', None),
        (id, "paid", "null", None),
        (id, "noted", "null", "evt-1"),
    ]
    assert await sql.fetchval("select has_signals and status = 'runnable' from gen_durable.gen_durable")


async def test_signal_wakes_only_the_instance_that_awaits_it(sql: Any) -> None:
    id = await sql.fetchval(INSERT)
    await park(sql, id, "paid", "cancelled")
    await sql.execute("select gen_durable.signal('order:1', 'shipped')")
    assert await sql.fetchval("select status::text from gen_durable.gen_durable") == "awaiting_signal"
    await sql.execute("select gen_durable.signal('order:1', 'paid')")
    row = await sql.fetchrow("select * from gen_durable.gen_durable")
    assert (row["status"], row["timed_out"]) == ("runnable", False)
    assert await sql.fetchval("select await_deadline from gen_durable.snapshots") is None
    assert row["eligible_at"].year > 2001
    assert row["awaits"] == ["paid", "cancelled"], "the woken step needs to know what it awaited"


UNKNOWN = [
    ("signal(4711, 'paid')", "cannot signal 'paid': there is no live instance 4711"),
    ("signal('order:2', 'paid')", "cannot signal 'paid': no live instance has correlation_key 'order:2'"),
    ("signal('it''s', 'paid')", "no live instance has correlation_key 'it''s'"),
    ("signal(null::bigint, 'paid')", "there is no live instance <NULL>"),
    ("signal(null::text, 'paid')", "no live instance has correlation_key <NULL>"),
]


@pytest.mark.clause("SQL-4")
async def test_unknown_target_is_an_error(sql: Any) -> None:
    await sql.execute(INSERT)
    for call, problem in UNKNOWN:
        error = await refused(sql, call)
        assert problem in str(error), call
        assert error.sqlstate == "GD003", call
        assert await sql.fetchval("select count(*) from gen_durable.signals") == 0, call


async def test_ended_instance_is_not_a_target_even_if_it_keeps_its_key(sql: Any) -> None:
    for status in ("done", "failed", "cancelled"):
        id = await sql.fetchval(
            "select id from gen_durable.insert('A', step => 's', correlation_key => $1,"
            " correlation_scope => '{done,failed,cancelled}')",
            status,
        )
        await end(sql, id, status)
        for target in (id, f"'{status}'"):
            error = await refused(sql, f"signal({target}, 'paid')")
            assert "no live instance" in str(error), (status, target)


async def test_key_of_the_empty_scope_does_not_address_an_instance(sql: Any) -> None:
    await sql.execute(
        "select gen_durable.insert('A', step => 's', correlation_key => 'k', correlation_scope => '{}')"
    )
    with pytest.raises(asyncpg.PostgresError, match="no live instance has correlation_key 'k'"):
        await sql.execute("select gen_durable.signal('k', 'paid')")


async def test_dedup_key_counts_once_per_instance_even_after_it_was_consumed(sql: Any) -> None:
    id = await sql.fetchval(INSERT)
    other = await sql.fetchval("select id from gen_durable.insert('A', step => 's')")
    assert await sql.fetchval("select delivered from gen_durable.signal('order:1', 'paid', '1', 'evt')")
    assert await sql.fetchval(f"select delivered from gen_durable.signal({other}, 'paid', '1', 'evt')")
    again = "select * from gen_durable.signal('order:1', 'shipped', '2', 'evt')"
    assert tuple(await sql.fetchrow(again)) == (id, False)
    await sql.execute("update gen_durable.signals set consumed_seq = 1, payload = 'null'")
    assert tuple(await sql.fetchrow(again)) == (id, False)
    assert await sql.fetchval("select count(*) from gen_durable.signals") == 2


async def test_duplicate_does_not_wake_an_instance(sql: Any) -> None:
    id = await sql.fetchval(INSERT)
    await sql.execute("select gen_durable.signal('order:1', 'paid', '1', 'evt')")
    await park(sql, id, "paid")
    await sql.execute("select gen_durable.signal('order:1', 'paid', '1', 'evt')")
    assert await sql.fetchval("select status::text from gen_durable.gen_durable") == "awaiting_signal"


async def test_inbox_holds_ten_thousand_unread_signals(sql: Any) -> None:
    id = await sql.fetchval(INSERT)
    await sql.execute("select gen_durable.signal($1::bigint, 'first', 'null', 'evt')", id)
    await sql.execute(
        "insert into gen_durable.signals (target_id, name) select $1, 'paid' from generate_series(2, 9999)",
        id,
    )
    await sql.execute("update gen_durable.gen_durable set inbox_count = 9999")
    assert await sql.fetchval("select delivered from gen_durable.signal('order:1', 'paid')")
    with pytest.raises(
        asyncpg.PostgresError, match=f"the inbox of instance {id} is full: 10000 unread signals"
    ) as full:
        await sql.execute("select gen_durable.signal('order:1', 'paid')")
    assert full.value.sqlstate == "GD002"
    assert full.value.hint == "await these signals in the machine, or send fewer or smaller ones"
    await sql.execute("update gen_durable.signals set consumed_seq = 1 where name = 'first'")
    assert await sql.fetchval("select delivered from gen_durable.signal('order:1', 'paid')"), (
        "the consumed do not count"
    )


async def test_duplicate_is_detected_when_the_inbox_is_full(sql: Any) -> None:
    """With an error 'inbox full', the sender of a duplicate would retry forever."""
    id = await sql.fetchval(INSERT)
    await sql.execute("select gen_durable.signal($1::bigint, 'first', 'null', 'evt')", id)
    await sql.execute(
        "insert into gen_durable.signals (target_id, name) select $1, 'paid' from generate_series(2, 10000)",
        id,
    )
    assert not await sql.fetchval(
        "select delivered from gen_durable.signal('order:1', 'first', 'null', 'evt')"
    )


OUT_OF_BOUNDS = [
    ("signal('order:1', '')", "the name of a signal must have 1 to 255 bytes, got 0"),
    ("signal('order:1', null)", "the name of a signal must have 1 to 255 bytes, got 0"),
    ("signal('order:1', repeat('ü', 128))", "the name of a signal must have 1 to 255 bytes, got 256"),
    ("signal('order:1', 'paid', '1', '')", "dedup_key must have 1 to 1024 bytes, got 0"),
    (
        "signal('order:1', 'paid', '1', repeat('x', 1025))",
        "dedup_key must have 1 to 1024 bytes, got 1025",
    ),
]


async def test_names_and_keys_are_bounded(sql: Any) -> None:
    await sql.execute(INSERT)
    for call, problem in OUT_OF_BOUNDS:
        error = await refused(sql, call)
        assert isinstance(error, asyncpg.DataError), call
        assert problem in str(error), call
        assert await sql.fetchval("select count(*) from gen_durable.signals") == 0, call


async def test_missing_payload_is_json_null(sql: Any) -> None:
    id = await sql.fetchval(INSERT)
    await sql.execute("select gen_durable.signal($1::bigint, 's', null)", id)
    await sql.execute("select gen_durable.signal('order:1', 's', null)")
    rows = await sql.fetch("select payload from gen_durable.signals")
    assert [row["payload"] for row in rows] == ["null", "null"]


@pytest.mark.clause("SIG-23")
async def test_inbox_is_bounded_by_bytes(sql: Any) -> None:
    id = await sql.fetchval(INSERT)
    large = "select delivered from gen_durable.signal('order:1', $1, to_jsonb(repeat('x', 1048574)))"
    for _ in range(16):
        assert await sql.fetchval(large, "file")
    with pytest.raises(asyncpg.PostgresError) as full:
        await sql.execute("select gen_durable.signal('order:1', 'note')")
    assert full.value.sqlstate == "GD002"
    assert full.value.args[0] == (
        f"the inbox of instance {id} is full: 16 unread signals have 16777216 bytes of JSON,"
        " a signal of 4 bytes exceeds the limit of 16777216"
    )
    assert full.value.hint == "await these signals in the machine, or send fewer or smaller ones"
    assert await sql.fetchval("select count(*) from gen_durable.signals") == 16
    await sql.execute(
        "update gen_durable.signals set consumed_seq = 1 where id = (select min(id) from gen_durable.signals)"
    )
    assert await sql.fetchval(large, "file"), "consumed signals do not count"


@pytest.mark.clause("SIG-23")
async def test_consumed_signals_never_fill_an_inbox(sql: Any) -> None:
    """The counters of the row grow with every delivery; they are recomputed at the limit."""
    id = await sql.fetchval(INSERT)
    await sql.execute(
        "create or replace function gen_durable.max_inbox() returns bigint language sql immutable as 'select 10::bigint'"
    )
    bounds = []
    for n in range(6):
        assert await sql.fetchval(
            "select delivered from gen_durable.signal($1::bigint, 'n', $2::text::jsonb)", id, f'"{n}"'
        )
        bounds.append(
            await sql.fetchval("select array[inbox_count, inbox_bytes] from gen_durable.gen_durable")
        )
        await sql.execute("delete from gen_durable.signals")
    assert bounds == [[1, 3], [2, 6], [3, 9], [1, 3], [2, 6], [3, 9]]


async def test_duplicate_is_detected_when_the_inbox_has_too_many_bytes(sql: Any) -> None:
    await sql.execute(INSERT)
    again = (
        "select delivered from gen_durable.signal('order:1', 'note', to_jsonb(repeat('x', 1000000)), 'evt')"
    )
    assert await sql.fetchval(again)
    await sql.execute(
        "create or replace function gen_durable.max_inbox() returns bigint language sql immutable as 'select 10::bigint'"
    )
    assert not await sql.fetchval(again)
