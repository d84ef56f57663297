"""The array types that the driver knows without a query."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from gen_durable._db.connector import connect
from gen_durable._db.failures import is_outage
from gen_durable._db.plan import in_schema
from gen_durable._db.runner import from_asyncpg
from tests.support.statement_files import all_statements


async def asked(*_: Any) -> None:
    raise AssertionError("it asks")


async def test_connection_knows_the_arrays_that_we_send(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[str, list[Any]] = {
        "boolean": [True, False, None],
        "bytea": [b"\x00", b""],
        "int": [1, -1],
        "bigint": [2**40],
        "timestamptz": [datetime(2031, 1, 1, tzinfo=UTC)],
        "interval": [timedelta(days=3, seconds=0.5)],
        "text": ["a,b", 'c"d'],
    }
    conn = await connect(durable_dsn)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", asked)
    arrays = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(sent, 1))
    assert [*await conn.fetchrow(f"select {arrays}", *sent.values())] == [*sent.values()]
    with pytest.raises(AssertionError, match="it asks"):
        await conn.fetch("select $1::gen_durable.durable_status[]", [])
    await conn.close()


async def test_no_statement_makes_asyncpg_query_types(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", asked)
    conn = await connect(durable_dsn)
    for _, statement in all_statements():
        await conn.prepare(in_schema(statement.text, "gen_durable"))
    await conn.close()


async def test_users_codec_can_be_set(durable_dsn: str) -> None:
    """On a connection of an effect; asyncpg queries a composite type in another way."""
    conn = await connect(durable_dsn)
    await conn.set_type_codec("limits", schema="gen_durable", encoder=tuple, decoder=list, format="tuple")
    await conn.execute("insert into gen_durable.limits (name, kind, slots) values ('mail', 'concurrency', 3)")
    assert "mail" in await conn.fetchval("select l from gen_durable.limits l")
    await conn.close()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
            "the connection was lost",
        ),
        (asyncpg.InternalClientError("unexpected"), "unexpected"),
        (asyncpg.InterfaceError("connection is closed"), "connection is closed"),
        (TimeoutError(), "no reply in time"),
    ],
)
def test_error_of_a_closed_connection_is_readable(error: Exception, message: str) -> None:
    failure = from_asyncpg(error)
    assert (str(failure), failure.__cause__, is_outage(failure)) == (message, error, True)
