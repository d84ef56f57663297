"""The recorder of statements sees every statement."""

from __future__ import annotations

import asyncpg
import psycopg

from tests.support.wire_proxy import Wire


async def test_every_statement_of_asyncpg_is_recorded(durable_dsn: str) -> None:
    with Wire(durable_dsn) as wire:
        connection = await asyncpg.connect(wire.dsn)
        with wire.counted() as sent:
            async with connection.transaction():
                await connection.fetch("select $1::int", 1)
                await connection.fetch("select $1::int", 2)
                await connection.executemany("select $1::int", [(3,), (4,)])
                await connection.execute("select 5")
        await connection.close()
    assert sent == ["BEGIN;", *["SELECT $1::INT"] * 4, "SELECT 5", "COMMIT;"]


def test_every_statement_of_psycopg_is_recorded(durable_dsn: str) -> None:
    with Wire(durable_dsn) as wire, psycopg.connect(wire.dsn) as connection, wire.counted() as sent:
        for number in range(7):  # psycopg prepares it from the sixth use on
            connection.execute("select %s::int", (number,))
        connection.commit()
    assert sent == ["BEGIN", *["SELECT $1::INT"] * 7, "COMMIT"]
