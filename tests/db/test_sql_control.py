"""The SQL functions that control instances: job_status, cancel, soft_delete, restore, retry."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from gen_durable.instance import Status
from tests.db.conftest import refused


@pytest.fixture
async def one(sql: Any) -> int:
    """A runnable instance with a key."""
    id: int = await sql.fetchval(
        """select id from gen_durable.insert('A', '{"n": 1}', step => 's', correlation_key => 'k')"""
    )
    return id


async def status(sql: Any, id: int) -> str:
    found: str = await sql.fetchval("select status::text from gen_durable.gen_durable where id = $1", id)
    return found


async def set_status(sql: Any, id: int, status: str) -> None:
    await sql.execute(
        """update gen_durable.gen_durable set status = $2::text::gen_durable.durable_status,
                  lease_token = case when $2 = 'executing' then 7 end where id = $1""",
        id,
        status,
    )


WORDS = {
    "runnable": "pending",
    "executing": "leased",
    "awaiting_signal": "leased",
    "awaiting_children": "leased",
    "done": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
}


@pytest.mark.clause("SQL-2")
async def test_job_status_uses_the_words_of_the_state_model(sql: Any, one: int) -> None:
    for each, word in WORDS.items():
        await set_status(sql, one, each)
        by_id_and_key = "select gen_durable.job_status($1::bigint), gen_durable.job_status('k')"
        assert await sql.fetchrow(by_id_and_key, one) == (word, word), each


async def test_every_status_has_a_job_status(sql: Any) -> None:
    words = {each: await sql.fetchval("select gen_durable.job_status_name($1)", each) for each in Status}
    assert set(words.values()) == {"pending", "leased", "succeeded", "failed", "cancelled"}


async def test_unknown_instance_has_no_status(sql: Any) -> None:
    assert await sql.fetchrow("select gen_durable.job_status(9), gen_durable.job_status('unknown')") == (
        None,
        None,
    )


async def test_key_finds_the_current_or_else_the_latest_holder(sql: Any, one: int) -> None:
    await set_status(sql, one, "done")
    assert await sql.fetchval("select gen_durable.job_status('k')") == "succeeded"
    second = await sql.fetchval("select id from gen_durable.insert('A', step => 's', correlation_key => 'k')")
    await set_status(sql, second, "failed")
    assert await sql.fetchval("select gen_durable.job_status('k')") == "failed"
    await set_status(sql, second, "done")
    third = await sql.fetchval("select id from gen_durable.insert('A', step => 's', correlation_key => 'k')")
    await sql.execute(
        "select gen_durable.insert('A', step => 's', correlation_key => 'k', correlation_scope => '{}')"
    )
    assert await sql.fetchval("select gen_durable.job_status('k')") == "pending"
    assert await sql.fetchval("select gen_durable.cancel('k')") == "cancelled"
    assert await status(sql, third) == "cancelled"


@pytest.mark.clause("SQL-1")
async def test_cancel_returns_what_it_did(sql: Any, one: int) -> None:
    await set_status(sql, one, "executing")
    assert await sql.fetchval("select gen_durable.cancel('k', 'why', 'ada')") == "requested"
    assert await sql.fetchval("select gen_durable.cancel($1::bigint, force => true)", one) == "cancelled"
    assert await sql.fetchval("select gen_durable.cancel('k')") == "finished"
    assert await status(sql, one) == "cancelled"
    events = await sql.fetch("select event, actor, reason from gen_durable.audit_events order by id")
    caller = await sql.fetchval("select current_user::text")
    assert [tuple(row) for row in events] == [("cancel_requested", "ada", "why"), ("cancelled", caller, None)]


@pytest.mark.clause("SQL-1")
async def test_delete_restore_and_retry_by_id_or_key(sql: Any, one: int) -> None:
    assert await sql.fetchval("select gen_durable.soft_delete('k', 'why') is not null")
    assert not await sql.fetchval("select gen_durable.retry($1::bigint)", one)
    assert await sql.fetchval("select gen_durable.restore('k')") == "cancelled"
    assert await sql.fetchval("""select gen_durable.retry('k', '{"n": 2}', 'again', 'ada')""")
    assert not await sql.fetchval("select gen_durable.retry($1::bigint)", one)
    assert await sql.fetchval("select gen_durable.soft_delete($1::bigint) is not null", one)
    assert await sql.fetchval("select gen_durable.restore($1::bigint, actor => 'bob')", one) == "cancelled"
    assert await sql.fetchval("select gen_durable.retry($1::bigint)", one)
    row = await sql.fetchrow("select status::text, state ->> 'n' from gen_durable.gen_durable")
    assert tuple(row) == ("runnable", "2")


async def test_restore_by_key_takes_the_deleted_instance(sql: Any, one: int) -> None:
    await sql.execute("select gen_durable.soft_delete('k')")
    await sql.execute("select gen_durable.insert('A', step => 's', correlation_key => 'k')")
    assert await sql.fetchval("select gen_durable.restore('k')") == "cancelled"
    assert await sql.fetchval("select deleted_at is null from gen_durable.gen_durable where id = $1", one)


async def test_restore_by_key_takes_a_deleted_instance_that_executes(sql: Any, one: int) -> None:
    """It occupies the key until its execution ends; an earlier instance with the key is deleted as well."""
    await sql.execute("select gen_durable.soft_delete('k')")
    await sql.execute("select gen_durable.insert('A', step => 's', correlation_key => 'k')")
    later = await sql.fetchval("select max(id) from gen_durable.gen_durable")
    await set_status(sql, later, "executing")
    await sql.execute("select gen_durable.soft_delete($1::bigint)", later)
    assert await sql.fetchval("select gen_durable.restore('k')") == "leased"
    found = await sql.fetch("select id from gen_durable.gen_durable where deleted_at is not null")
    assert [row["id"] for row in found] == [one]


@pytest.mark.clause("SQL-4")
async def test_unknown_target_is_an_error(sql: Any) -> None:
    for verb in ("cancel", "soft_delete", "restore", "retry"):
        for target in ("9", "'no''body'"):
            error = await refused(sql, f"{verb}({target})")
            assert error.message == f"there is no instance {target}", verb
            assert error.sqlstate == "GD003", verb


@pytest.mark.clause("SQL-4")
@pytest.mark.parametrize("verb", ["restore", "retry"])
async def test_key_taken_by_another_instance_is_an_error(sql: Any, one: int, verb: str) -> None:
    if verb == "restore":
        await set_status(sql, one, "done")
        unique = await sql.fetchval("select id from gen_durable.insert('A', step => 's', unique_key => 'u')")
        await sql.execute("select gen_durable.soft_delete($1::bigint)", unique)
        await sql.execute("select gen_durable.insert('A', step => 's', unique_key => 'u')")
        one = unique
    else:
        await sql.execute("select gen_durable.cancel('k')")
        await sql.execute("select gen_durable.insert('A', step => 's', correlation_key => 'k')")
    holder = await sql.fetchval("select max(id) from gen_durable.gen_durable")
    key = "unique_key" if verb == "restore" else "correlation_key"
    message = f"cannot {verb} instance {one}: its {key} belongs to A {holder} now"
    with pytest.raises(asyncpg.PostgresError, match=message) as refused:
        await sql.execute(f"select gen_durable.{verb}($1::bigint)", one)
    assert refused.value.sqlstate == "GD004"
    assert refused.value.hint == f"delete {holder} first, or insert a new instance with another key"
    assert await status(sql, one) == "cancelled"
    await sql.execute("select gen_durable.soft_delete($1::bigint)", holder)
    await sql.execute(f"select gen_durable.{verb}($1::bigint)", one)
    assert await status(sql, one) == ("cancelled" if verb == "restore" else "runnable")


@pytest.mark.clause("IDM-1", "IDM-2", "SQL-2")
async def test_idempotency_key_returns_the_first_instance_until_it_is_deleted(sql: Any) -> None:
    insert = "select id, inserted, status from gen_durable.insert('A', step => 's', idempotency_key => 'r')"
    assert tuple(await sql.fetchrow(insert)) == (1, True, "pending")
    for each, word in (
        ("executing", "leased"),
        ("awaiting_signal", "leased"),
        ("failed", "failed"),
        ("done", "succeeded"),
    ):
        await set_status(sql, 1, each)
        assert tuple(await sql.fetchrow(insert)) == (1, False, word)
    await sql.execute("select gen_durable.soft_delete(1)")
    again = await sql.fetchrow(insert)
    assert (again["inserted"], again["status"]) == (True, "pending")
    assert again["id"] > 1


@pytest.mark.clause("IDM-3")
async def test_idempotency_key_counts_within_batches_and_transactions(sql: Any) -> None:
    async with sql.transaction():
        rows = await sql.fetch(
            """select ord, id, inserted, status from gen_durable.insert_all(
                 '[{"fsm": "A", "step": "s", "idempotency_key": "r"}, {"fsm": "A", "step": "s", "unique_key": "r"}]')"""
        )
        assert [tuple(row) for row in rows] == [(1, 1, True, "pending"), (2, 1, False, "pending")]
        await sql.execute("select gen_durable.cancel(1)")
        found = await sql.fetchrow(
            "select * from gen_durable.insert('A', step => 's', idempotency_key => 'r')"
        )
        assert tuple(found) == (1, False, "cancelled")


async def test_contradicting_options_are_refused(sql: Any) -> None:
    for options, problem in (
        ("unique_key => 'a', idempotency_key => 'b'", "unique_key and idempotency_key are both given"),
        ("unique_scope => '{done}', idempotency_key => 'b'", "an idempotency_key is taken in every status"),
        ("max_attempts => 0", "max_attempts 0 is below 1"),
    ):
        error = await refused(sql, f"insert('A', step => 's', {options})")
        assert isinstance(error, asyncpg.DataError), options
        assert problem in str(error), options


@pytest.mark.clause("SQL-3")
async def test_rollback_of_the_caller_undoes_everything(sql: Any, one: int) -> None:
    transaction = sql.transaction()
    await transaction.start()
    await sql.execute("select gen_durable.cancel('k'), gen_durable.retry('k'), gen_durable.soft_delete('k')")
    await transaction.rollback()
    assert await status(sql, one) == "runnable"
    assert await sql.fetchval("select count(*) from gen_durable.audit_events") == 0
