"""The SQL functions `insert` and `insert_all`, as psql, triggers and other languages call them."""

from __future__ import annotations

import json
from typing import Any

import asyncpg
import pytest

from gen_durable._db.machines import register
from gen_durable._db.pool import Database
from tests.db.definitions import machine
from tests.support.descriptions import own

LIVE = ["runnable", "executing", "awaiting_signal", "awaiting_children"]
TERMINAL = ["done", "failed", "cancelled"]


@pytest.fixture
async def registered(database: Database) -> None:
    await database.run(register(own(machine(2, "begin", "checkout"), machine(10, "start", "fast"))))


async def row(sql: Any, id: int) -> Any:
    return await sql.fetchrow("select * from gen_durable.gen_durable where id = $1", id)


async def insert_all(sql: Any, *specs: object) -> list[tuple[int, int, bool]]:
    rows = await sql.fetch("select * from gen_durable.insert_all($1)", json.dumps(specs))
    return [(found["ord"], found["id"], found["inserted"]) for found in rows]


@pytest.mark.usefixtures("registered")
async def test_defaults_come_from_the_newest_registered_version(sql: Any) -> None:
    answer = await sql.fetchrow("select * from gen_durable.insert('Checkout', '{\"order\": 42}')")
    assert answer["inserted"]
    found = await row(sql, answer["id"])
    assert (found["fsm"], found["fsm_version"], found["step"]) == ("Checkout", 10, "start")
    assert (found["queue"], found["priority"], found["status"]) == ("fast", 0, "runnable")
    assert json.loads(found["state"]) == {"order": 42}
    assert found["eligible_at"] == found["inserted_at"]
    assert (found["correlation_scope"], found["unique_scope"]) == (None, None)


@pytest.mark.usefixtures("registered")
async def test_older_version_has_its_own_defaults(sql: Any) -> None:
    found = await row(sql, await sql.fetchval("select id from gen_durable.insert('Checkout', version => 2)"))
    assert (found["fsm_version"], found["step"], found["queue"]) == (2, "begin", "checkout")
    assert json.loads(found["state"]) == {}


@pytest.mark.usefixtures("registered")
async def test_restarted_worker_updates_the_defaults(sql: Any, database: Database) -> None:
    before = await sql.fetch("select * from gen_durable.machines order by fsm_version")
    await database.run(register(own(machine(2, "begin", "checkout"))))
    assert await sql.fetch("select * from gen_durable.machines order by fsm_version") == before
    await database.run(register(own(machine(10, "start", "slow"))))
    found = await row(sql, await sql.fetchval("select id from gen_durable.insert('Checkout')"))
    assert found["queue"] == "slow"


@pytest.mark.clause("SQL-1")
async def test_every_option_is_stored(sql: Any) -> None:
    id = await sql.fetchval(
        """select id from gen_durable.insert('Shop.checkout.v1', '[1]', step => 'ship', queue => 'q', priority => -5,
             version => 3, eligible_at => '2031-01-02 03:04:05+00', correlation_key => 'order:1',
             correlation_scope => '{done}', unique_key => 'u', unique_scope => '{failed}',
             concurrency_key => 'tenant:7')"""
    )
    found = await row(sql, id)
    assert (found["fsm"], found["fsm_version"], found["step"]) == ("Shop.checkout.v1", 3, "ship")
    assert (found["queue"], found["priority"], found["eligible_at"].isoformat()) == (
        "q",
        -5,
        "2031-01-02T03:04:05+00:00",
    )
    assert (found["correlation_key"], found["unique_key"], found["concurrency_key"]) == (
        "order:1",
        b"u",
        "tenant:7",
    )
    assert (found["correlation_scope"], found["unique_scope"]) == ([*LIVE, "done"], [*LIVE, "failed"])


async def test_delay_is_added_to_the_clock_of_the_database(sql: Any) -> None:
    id = await sql.fetchval(
        "select id from gen_durable.insert('A', step => 's', schedule_in => '90 minutes')"
    )
    assert await sql.fetchval(
        "select eligible_at - inserted_at = '90 minutes' from gen_durable.gen_durable where id = $1", id
    )


async def test_one_row_per_element_in_their_order(sql: Any) -> None:
    specs = [{"fsm": "A", "step": "s", "unique_key": key} for key in ("c", "a", "c", "b", "a")]
    answers = await insert_all(sql, *specs)
    assert [ord for ord, _, _ in answers] == [1, 2, 3, 4, 5]
    assert [inserted for _, _, inserted in answers] == [True, True, False, True, False]
    ids = [id for _, id, _ in answers]
    assert (ids[2], ids[4]) == (ids[0], ids[1])
    assert len(set(ids)) == 3
    again = await insert_all(sql, *specs)
    assert again == [(ord, id, False) for ord, id, _ in answers]


async def test_empty_list_returns_no_rows(sql: Any) -> None:
    assert await insert_all(sql) == []


async def test_duplicate_returns_the_holder_of_either_key(sql: Any) -> None:
    first = await insert_all(sql, {"fsm": "A", "step": "s", "correlation_key": "order:1", "unique_key": "u"})
    ((_, holder, _),) = first
    assert await insert_all(sql, {"fsm": "A", "step": "s", "correlation_key": "order:1"}) == [
        (1, holder, False)
    ]
    assert await insert_all(sql, {"fsm": "A", "step": "s", "unique_key": "u"}) == [(1, holder, False)]
    found = await sql.fetchrow("select * from gen_durable.insert('A', step => 's', unique_key => 'u')")
    assert (found["id"], found["inserted"]) == (holder, False)


async def test_single_insert_raises_for_a_key_of_another_machine(sql: Any) -> None:
    ((_, holder, _),) = await insert_all(sql, {"fsm": "A", "step": "s", "correlation_key": "k"})
    with pytest.raises(
        asyncpg.PostgresError, match=f"cannot insert B: its correlation_key belongs to A {holder}"
    ) as e:
        await sql.execute("select gen_durable.insert('B', step => 's', correlation_key => 'k')")
    assert e.value.sqlstate == "GD001"
    assert "include the name of the machine in the key" in e.value.hint
    assert await sql.fetchval("select count(*) from gen_durable.gen_durable") == 1


@pytest.mark.clause("INS-11")
async def test_batch_insert_refuses_only_the_row_with_a_key_of_another_machine(sql: Any) -> None:
    ((_, holder, _),) = await insert_all(sql, {"fsm": "A", "step": "s", "correlation_key": "k"})
    specs = [
        {"fsm": "B", "step": "s", **more} for more in ({}, {"correlation_key": "k"}, {"unique_key": "u"})
    ]
    rows = await sql.fetch("select * from gen_durable.insert_all($1)", json.dumps(specs))
    assert [(row["ord"], row["inserted"], row["status"]) for row in rows] == [
        (1, True, "pending"),
        (2, False, None),
        (3, True, "pending"),
    ]
    assert (rows[0]["taken_by"], rows[1]["id"]) == (None, None)
    assert json.loads(rows[1]["taken_by"]) == {"id": holder, "fsm": "A", "key": "correlation_key"}
    assert await sql.fetchval("select count(*) from gen_durable.gen_durable") == 3


async def test_refused_row_names_the_holder_of_its_key(sql: Any) -> None:
    """A correlation key of the empty scope does not count: another instance may have the same key."""
    await insert_all(sql, {"fsm": "A", "step": "s", "correlation_key": "same"})
    ((_, holder, _),) = await insert_all(sql, {"fsm": "A", "step": "s", "unique_key": "u"})
    refused = {"fsm": "A", "step": "s", "correlation_key": "same", "correlation_scope": [], "unique_key": "u"}
    assert await insert_all(sql, refused) == [(1, holder, False)]


async def test_twenty_thousand_rows_in_one_call(sql: Any) -> None:
    answers = await sql.fetch(
        """select * from gen_durable.insert_all((select jsonb_agg(jsonb_build_object(
             'fsm', 'A', 'step', 's', 'state', n, 'unique_key', 'u' || n)) from generate_series(1, 20000) n))"""
    )
    assert [answer["ord"] for answer in answers] == list(range(1, 20_001))
    assert all(answer["inserted"] for answer in answers)
    ids = [answer["id"] for answer in answers]
    states = await sql.fetch("select state from gen_durable.gen_durable where id = any ($1) order by id", ids)
    assert [int(found["state"]) for found in states] == list(range(1, 20_001))


@pytest.mark.clause("SQL-3")
async def test_rollback_of_the_caller_leaves_nothing(sql: Any) -> None:
    transaction = sql.transaction()
    await transaction.start()
    await insert_all(sql, {"fsm": "A", "step": "s", "unique_key": "u"})
    await sql.execute("select gen_durable.insert('A', step => 's', correlation_key => 'k')")
    await sql.execute("select gen_durable.signal('k', 'paid')")
    assert await sql.fetchval("select count(*) from gen_durable.gen_durable") == 2
    await transaction.rollback()
    assert await sql.fetchval("select count(*) from gen_durable.gen_durable") == 0
    assert await sql.fetchval("select count(*) from gen_durable.signals") == 0


async def test_trigger_can_insert(sql: Any) -> None:
    await sql.execute(
        """create table orders (id int primary key);
           create function begin_checkout() returns trigger language plpgsql as $$ begin
             perform gen_durable.insert('Checkout', jsonb_build_object('order', new.id), step => 'start',
                                        correlation_key => 'order:' || new.id);
             return new; end $$;
           create trigger begin_checkout after insert on orders for each row execute function begin_checkout();
           insert into orders values (1), (2)"""
    )
    keys = await sql.fetch("select correlation_key from gen_durable.gen_durable order by id")
    assert [found["correlation_key"] for found in keys] == ["order:1", "order:2"]
