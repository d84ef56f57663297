"""Size limits of states and payloads in the SQL functions."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

LIMIT = 1_048_576
# JSON of exactly this many bytes, quotes included.
TEXT = "to_jsonb(repeat('x', {}))"


def text(size: int) -> str:
    return TEXT.format(size - 2)


@pytest.fixture
async def one(sql: Any) -> int:
    id: int = await sql.fetchval(
        "select id from gen_durable.insert('Checkout', step => 's', correlation_key => 'k')"
    )
    return id


CALLS = [
    ("insert('Big', {}, step => 's')", "nothing was inserted: element 1: state"),
    (
        """insert_all(jsonb_build_array('{{"fsm": "Big", "step": "s"}}'::jsonb,
                     jsonb_build_object('fsm', 'Big', 'step', 's', 'state', {})))""",
        "nothing was inserted: element 2: state",
    ),
    ("signal(1, 'paid', {})", "the payload of signal 'paid'"),
    ("signal('k', 'paid', {})", "the payload of signal 'paid'"),
    ("retry(1, {})", "the new state"),
    ("retry('k', {})", "the new state"),
]


@pytest.mark.clause("LIM-6")
@pytest.mark.parametrize(("call", "what"), CALLS)
async def test_one_byte_above_the_limit_is_refused(sql: Any, one: int, call: str, what: str) -> None:
    await sql.execute("select gen_durable.cancel(1)") if "retry" in call else None
    before = await sql.fetch("select * from gen_durable.gen_durable")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await sql.fetch(f"select * from gen_durable.{call.format(text(LIMIT + 1))}")
    refused: Any = caught.value
    assert refused.sqlstate == "GD005"
    assert refused.message == f"{what} has 1048577 bytes of JSON, at most 1048576 are allowed"
    assert refused.hint == "store large data elsewhere and pass a reference"
    assert await sql.fetch("select * from gen_durable.gen_durable") == before
    assert await sql.fetchval("select count(*) from gen_durable.signals") == 0
    await sql.fetch(f"select * from gen_durable.{call.format(text(LIMIT))}")


async def test_size_is_that_of_the_json_text(sql: Any) -> None:
    """`1e100000` has eight characters as input, and 100,001 as stored text."""
    numbers = ",".join(["1e100000"] * 11)
    with pytest.raises(asyncpg.PostgresError, match="state has 1100033 bytes of JSON"):
        await sql.fetch(f"select * from gen_durable.insert('Big', '[{numbers}]', step => 's')")


async def test_owner_can_raise_the_limit(sql: Any) -> None:
    await sql.execute(
        "create or replace function gen_durable.max_payload() returns int language sql immutable as 'select 10'"
    )
    call = "select id from gen_durable.insert('Big', to_jsonb(repeat('x', {})), step => 's')"
    assert await sql.fetchval(call.format(8)) == 1
    with pytest.raises(asyncpg.PostgresError, match="state has 11 bytes of JSON, at most 10 are allowed"):
        await sql.fetchval(call.format(9))
