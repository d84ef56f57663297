"""`conn=`: verbs in the caller's transaction, on any supported connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from gen_durable import (
    AsyncClient,
    Client,
    Deleted,
    Delivered,
    Duplicate,
    Inserted,
    KeyTaken,
    Settings,
    Spec,
    Worker,
)
from gen_durable._db.failures import StatementError
from gen_durable._schema import migrate_schema
from gen_durable.errors import KeyTakenError, NoTargetError, UsageError
from tests.clients.machines import Checkout, Double, Number, Order, Payment, Refund
from tests.support.callers import Caller, opened
from tests.support.clients import Awaitable

KINDS = ["asyncpg", "asyncpg with its own jsonb", "asyncpg pool", "psycopg", "psycopg async"]


@pytest.fixture(params=KINDS)
async def caller(request: pytest.FixtureRequest, durable_dsn: str) -> AsyncIterator[Caller]:
    async with opened(request.param, durable_dsn) as found:
        yield found


async def work(caller: Caller) -> tuple[Any, list[Any], Any]:
    client, conn = caller.client, caller.conn
    order = await client.insert(Checkout, Order(1), correlation_key="order:1", conn=conn)
    many = await client.insert_all([Spec(Number, n, unique_key=f"u{n % 2}") for n in range(4)], conn=conn)
    signal = await client.signal("order:1", Checkout.payment, Payment(100), dedup_key="evt", conn=conn)
    return order, many, signal


async def counts(db: Any) -> tuple[int, int]:
    row = await db.fetchrow(
        "select (select count(*) from gen_durable.gen_durable), (select count(*) from gen_durable.signals)"
    )
    return row[0], row[1]


@pytest.mark.clause("INS-8")
async def test_writes_are_visible_when_the_caller_commits(caller: Caller, db: Any) -> None:
    async with caller.transaction():
        order, many, signal = await work(caller)
        assert await counts(db) == (0, 0), "others do not see it yet"
    assert await counts(db) == (3, 1)
    assert isinstance(order, Inserted)
    assert [type(one) for one in many] == [Inserted, Inserted, Duplicate, Duplicate]
    assert [one.id for one in many[2:]] == [one.id for one in many[:2]]
    assert signal == Delivered(order.id, is_awaited=False)
    assert (
        await db.fetchval("select state ->> 'number' from gen_durable.gen_durable where id = $1", order.id)
        == "1"
    )
    assert await db.fetchval("select payload ->> 'amount' from gen_durable.signals") == "100"


async def test_caller_sees_its_uncommitted_writes(caller: Caller, durable_dsn: str) -> None:
    client, conn = caller.client, caller.conn
    async with AsyncClient(durable_dsn) as other, caller.transaction():
        order, many, _ = await work(caller)
        found = await client.get("order:1", conn=conn)
        assert (found.id, found.machine, found.inserted_at.tzinfo is not None) == (order.id, "Checkout", True)
        assert (await client.get(order, conn=conn)).state == Order(1)
        assert [one.id for one in await client.list(Number, limit=1, conn=conn)] == [many[1].id]
        assert await client.count(conn=conn) == 3
        assert await client.children(order, conn=conn) == []
        assert (await other.get(order), await other.count()) == (None, 0)


@pytest.mark.clause("INS-8")
async def test_rollback_undoes_writes_and_the_connection_stays_usable(caller: Caller, db: Any) -> None:
    async def fail() -> None:
        async with caller.transaction():
            await work(caller)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await counts(db) == (0, 0)
    async with caller.transaction():
        await work(caller)
    assert await counts(db) == (3, 1)


async def test_verbs_autocommit_without_a_transaction(caller: Caller, db: Any) -> None:
    await work(caller)
    assert await counts(db) == (3, 1)


async def test_engine_error_does_not_abort_the_callers_transaction(caller: Caller, db: Any) -> None:
    await caller.client.insert(Checkout, Order(1), correlation_key="k", conn=caller.conn)
    async with caller.transaction():
        await caller.client.insert(Number, 1, conn=caller.conn)
        with pytest.raises(KeyTakenError, match="the key 'k' is held by Checkout"):
            await caller.client.insert(Refund, Order(1), correlation_key="k", conn=caller.conn)
        taken, new = await caller.client.insert_all(
            [Spec(Refund, Order(1), correlation_key="k"), Spec(Number, 3)], conn=caller.conn
        )
        assert (type(taken), type(new)) == (KeyTaken, Inserted)
        with pytest.raises(NoTargetError):
            await caller.client.signal(
                "unknown", "x", conn=caller.conn
            )  # an empty lookup does not abort the transaction
        await caller.client.insert(Number, 2, conn=caller.conn)
    assert await counts(db) == (4, 0)


async def test_verbs_work_under_repeatable_read(caller: Caller, db: Any) -> None:
    await caller.execute("set default_transaction_isolation = 'repeatable read'")
    holder = await caller.client.insert(Number, 0, unique_key="u", conn=caller.conn)
    async with caller.transaction("repeatable read"):
        assert await caller.client.insert(Number, 1, unique_key="u", conn=caller.conn) == Duplicate(
            Number, holder.id, "u"
        )
        await work_on_fresh_keys(caller)
    assert await counts(db) == (3, 1)


async def work_on_fresh_keys(caller: Caller) -> None:
    await caller.client.insert(Checkout, Order(1), correlation_key="order:1", conn=caller.conn)
    await caller.client.insert_all([Spec(Number, n, unique_key="v") for n in range(2)], conn=caller.conn)
    await caller.client.signal("order:1", Checkout.withdrawn, conn=caller.conn)


async def test_key_taken_after_the_snapshot_is_a_serialization_failure(caller: Caller, db: Any) -> None:
    """Repeatable read cannot see the holder, so the error is 40001, and the caller retries."""

    async def meet() -> None:
        async with caller.transaction("repeatable read"):
            await caller.execute("select count(*) from gen_durable.gen_durable")
            await db.execute("select gen_durable.insert('Number', step => 'only', unique_key => 'u')")
            await caller.client.insert(Number, 1, unique_key="u", conn=caller.conn)

    with pytest.raises(StatementError, match="could not serialize access") as failed:
        await meet()
    assert failed.value.sqlstate == "40001"
    async with caller.transaction("repeatable read"):
        assert isinstance(await caller.client.insert(Number, 1, unique_key="u", conn=caller.conn), Duplicate)


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "psycopg async"])
async def test_schema_of_the_client_is_used(durable_dsn: str, direct_dsn: str, db: Any, kind: str) -> None:
    await migrate_schema(direct_dsn, "my_app_1")
    async with opened(kind, durable_dsn) as caller:
        await caller.execute("set search_path = nowhere")
        settings = Settings.load(schema="my_app_1")
        blocks = kind == "psycopg"
        client: Any = Awaitable(Client(settings=settings)) if blocks else AsyncClient(settings=settings)
        await client.insert(Number, 1, conn=caller.conn)
    assert await db.fetchval("select count(*) from my_app_1.gen_durable") == 1
    assert await counts(db) == (0, 0)


async def test_worker_finds_an_insert_of_a_callers_transaction(durable_dsn: str, direct_dsn: str) -> None:
    settings = Settings.load(poll_interval=timedelta(milliseconds=50))
    async with Worker([Double], dsn=durable_dsn, settings=settings) as worker:
        connection = await asyncpg.connect(direct_dsn)
        async with connection.transaction():
            double = await worker.insert(Double, 21, conn=connection)
        assert (await worker.wait(double, timeout=timedelta(seconds=20))).result == 42
        await connection.close()


async def test_connection_of_another_kind_is_rejected(durable_dsn: str, db: Any) -> None:
    refused: list[tuple[Any, bool, str]] = []
    ours: list[AbstractAsyncContextManager[Any]] = [
        asyncpg.create_pool(dsn=durable_dsn, min_size=1, max_size=1)
    ]
    async with (
        ours[0] as pool,
        await psycopg.AsyncConnection.connect(durable_dsn) as async_psycopg,
        pool.acquire() as proxy,
    ):
        with psycopg.connect(durable_dsn) as blocking:
            refused += [
                (
                    pool,
                    False,
                    "conn= is a asyncpg Pool; a pool has no transaction of yours: acquire a connection",
                ),
                (
                    pool,
                    True,
                    "a pool has no transaction of yours: acquire a connection and pass that",
                ),
                (
                    blocking,
                    False,
                    "conn= is a psycopg Connection; pass an asyncpg Connection or a psycopg AsyncConnection",
                ),
                (
                    db,
                    True,
                    r"conn= is a asyncpg Connection; pass a psycopg Connection \(an asyncpg or async one goes to",
                ),
                (async_psycopg, True, "conn= is a psycopg AsyncConnection; pass a psycopg Connection"),
                (proxy, True, "conn= is a asyncpg PoolConnectionProxy; pass a psycopg Connection"),
                (blocking.cursor(), True, "conn= is a psycopg Cursor; pass a psycopg Connection"),
                (durable_dsn, False, "conn= is a builtins str; pass an asyncpg Connection"),
                (42, True, "conn= is a builtins int; pass a psycopg Connection"),
            ]
            for conn, blocks, problem in refused:
                client: Any = Awaitable(Client(durable_dsn)) if blocks else AsyncClient(durable_dsn)
                for call in (
                    client.insert(Number, 1, conn=conn),
                    client.insert_all([Spec(Number, 1)], conn=conn),
                    client.signal(1, "x", conn=conn),
                ):
                    with pytest.raises(UsageError, match=problem):
                        await call
    assert await counts(db) == (0, 0)


@pytest.mark.parametrize("kind", ["psycopg", "psycopg async"])
async def test_verbs_work_inside_a_pipeline(durable_dsn: str, db: Any, kind: str) -> None:
    async with opened(kind, durable_dsn) as caller:
        if kind == "psycopg":
            with caller.conn.pipeline():
                order, many, _ = await work(caller)
        else:
            async with caller.conn.pipeline():
                order, many, _ = await work(caller)
    assert isinstance(order, Inserted)
    assert [type(one) for one in many] == [Inserted, Inserted, Duplicate, Duplicate]
    assert await counts(db) == (3, 1)


async def test_datestyle_of_the_session_does_not_matter(caller: Caller) -> None:
    await caller.execute("set datestyle = 'German, DMY'")
    await caller.execute("set intervalstyle = 'sql_standard'")
    order, _, _ = await work(caller)
    assert isinstance(await caller.client.soft_delete(order, conn=caller.conn), Deleted)
