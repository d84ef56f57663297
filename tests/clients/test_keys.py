"""Unique and correlation keys: scopes, holders, and concurrent inserts."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import asyncpg
import pytest

from gen_durable import AsyncClient, Duplicate, Inserted, Spec, Status
from gen_durable._core.new_rows import new_instance
from gen_durable._db.failures import StatementError
from gen_durable._db.insert import insert
from gen_durable._db.plan import Call
from gen_durable.errors import KeyTakenError, NoTargetError, UsageError
from gen_durable.instance import LIVE_STATUSES, TERMINAL_STATUSES
from tests.clients.machines import Checkout, Number, Order, Refund

EVERY = [*LIVE_STATUSES, *TERMINAL_STATUSES]
# Requested scope → statuses in which the key is taken.
SCOPES: list[tuple[list[Status] | None, list[Status]]] = [
    ([Status.RUNNABLE], [*LIVE_STATUSES]),
    ([*LIVE_STATUSES], [*LIVE_STATUSES]),
    ([Status.DONE], [*LIVE_STATUSES, Status.DONE]),
    ([Status.FAILED, Status.CANCELLED], [*LIVE_STATUSES, Status.FAILED, Status.CANCELLED]),
    (EVERY, EVERY),
    ([], []),
]


BLOCKED = """select count(*) from pg_stat_activity
              where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0"""


async def move(db: Any, id: int, status: Status) -> None:
    lease = (
        "lease_token = 1, lease_expires_at = now()" if status is Status.EXECUTING else "lease_token = null"
    )
    await db.execute(
        f"update gen_durable.gen_durable set status = $2::text::gen_durable.durable_status, {lease} where id = $1",
        id,
        status.value,
    )


@pytest.mark.clause("UNQ-2", "UNQ-4", "UNQ-7", "UNQ-6")
@pytest.mark.parametrize("kind", ["unique", "correlation"])
async def test_key_is_taken_in_the_statuses_of_its_scope_only(client: Any, db: Any, kind: str) -> None:
    default = EVERY if kind == "unique" else [*LIVE_STATUSES]
    for number, (scope, taken) in enumerate([*SCOPES, (None, default)]):
        key: dict[str, Any] = {f"{kind}_key": f"key {number}"}
        scoped: dict[str, Any] = {} if scope is None else {f"{kind}_scope": scope}
        holder = await client.insert(Number, 0, **key, **scoped)
        for status in EVERY:
            await move(db, holder.id, status)
            other = await client.insert(Number, 1, **key)
            assert isinstance(other, Duplicate if status in taken else Inserted), (scope, status)
            if isinstance(other, Inserted):
                await db.execute("delete from gen_durable.gen_durable where id = $1", other.id)
            else:
                assert other.id == holder.id


@pytest.mark.clause("UNQ-5")
async def test_scope_of_the_holder_decides_not_of_the_newcomer(client: Any, db: Any) -> None:
    short = await client.insert(Number, 0, unique_key="short", unique_scope=["runnable"])
    long = await client.insert(Number, 0, unique_key="long", unique_scope=EVERY)
    for holder in (short, long):
        await move(db, holder.id, Status.DONE)
    assert isinstance(await client.insert(Number, 1, unique_key="short", unique_scope=EVERY), Inserted)
    assert await client.insert(Number, 1, unique_key="long", unique_scope=["runnable"]) == Duplicate(
        Number, long.id, "long"
    )


@pytest.mark.clause("COR-4")
async def test_empty_scope_neither_takes_nor_respects_a_key(client: Any) -> None:
    first = await client.insert(Number, 0, unique_key="u", correlation_key="c")
    second = await client.insert(
        Number, 1, unique_key="u", unique_scope=[], correlation_key="c", correlation_scope=[]
    )
    assert isinstance(second, Inserted)
    assert (await client.signal("c", "x")).id == first.id
    third = await client.insert(Number, 2, correlation_key="d", correlation_scope=())
    with pytest.raises(NoTargetError):
        await client.signal("d", "x")
    assert (await client.get("d")).id == third.id, "it can be read by its key all the same"


async def test_empty_scope_of_one_key_does_not_hide_another_taken_key(
    client: Any,
) -> None:
    await client.insert(Checkout, Order(1), correlation_key="same")
    holder = await client.insert(Number, 1, unique_key="u")
    refused = await client.insert(Number, 2, correlation_key="same", correlation_scope=[], unique_key="u")
    assert refused == Duplicate(Number, holder.id, "u")


async def test_ended_holder_frees_its_key(client: Any, db: Any) -> None:
    ids = []
    for number in range(4):
        inserted = await client.insert(Number, number, correlation_key="k")
        assert isinstance(inserted, Inserted)
        assert (await client.signal("k", "x")).id == inserted.id
        ids.append(inserted.id)
        await move(db, inserted.id, random.choice(TERMINAL_STATUSES))
    assert len(set(ids)) == 4


async def test_str_and_bytes_keys_with_equal_bytes_are_equal(client: Any) -> None:
    first = await client.insert(Number, 0, unique_key="naïve")
    assert (await client.insert(Number, 0, unique_key="naïve".encode())).id == first.id
    assert isinstance(await client.insert(Number, 0, unique_key="naive"), Inserted)
    assert isinstance(await client.insert(Number, 0, unique_key="NAÏVE"), Inserted)


async def test_unique_and_correlation_keys_are_independent(client: Any) -> None:
    assert isinstance(await client.insert(Number, 0, unique_key="k"), Inserted)
    assert isinstance(await client.insert(Refund, Order(1), correlation_key="k"), Inserted)
    with pytest.raises(KeyTakenError, match="the key 'k' is held by Number"):
        await client.insert(Refund, Order(1), unique_key="k")


async def test_longest_keys_work(client: Any) -> None:
    longest = {"correlation_key": "é" * 512, "unique_key": b"\x80" * 1024, "concurrency_key": "k" * 1024}
    inserted = await client.insert(Number, 0, **longest)
    assert (await client.insert(Number, 0, **longest)).id == inserted.id
    assert (await client.get("é" * 512)).concurrency_key == "k" * 1024


BAD: list[tuple[dict[str, Any], str]] = [
    ({"unique_key": "k" * 1025}, "unique_key is 1025 bytes long; give at most 1024 bytes"),
    ({"unique_key": b""}, "unique_key is 0 bytes long; give 1 to 1024 bytes"),
    ({"unique_key": ""}, "unique_key is empty; give 1 to 1024 bytes"),
    ({"unique_key": 7}, "unique_key is of type int; give a text, or"),
    ({"correlation_key": "é" * 513}, "correlation_key is 1026 bytes long"),
    ({"correlation_key": "a\0b"}, "correlation_key contains a NUL character; remove it"),
    (
        {"correlation_key": "\udfff"},
        "correlation_key contains a lone surrogate; give valid Unicode text",
    ),
    ({"correlation_key": b"bytes"}, "correlation_key is of type bytes; give a text, or"),
    ({"concurrency_key": ""}, "concurrency_key is empty"),
    (
        {"concurrency_key": ("a:b", 1)},
        "the name in concurrency_key contains ':', which separates name and partition",
    ),
    ({"unique_scope": ["done"]}, "unique_scope is given without unique_key; give unique_key, or leave"),
    ({"correlation_scope": []}, "correlation_scope is given without correlation_key"),
    ({"unique_key": "k", "unique_scope": "done"}, "unique_scope is of type str; give a list of statuses"),
    (
        {"unique_key": "k", "unique_scope": ["dnoe"]},
        "unique_scope contains a value that is not a status; did you mean 'done'",
    ),
    ({"unique_key": "k", "unique_scope": None}, "unique_scope is of type NoneType; give a list of statuses"),
]


async def test_invalid_key_or_scope_is_rejected(client: Any) -> None:
    for options, problem in BAD:
        with pytest.raises(UsageError, match=problem):
            await client.insert(Number, 0, **options)
    assert await client.count() == 0


async def test_concurrent_batches_in_opposite_orders_insert_each_key_once(
    durable_dsn: str,
) -> None:
    async with AsyncClient(durable_dsn) as one, AsyncClient(durable_dsn) as other:
        for round_number in range(15):
            specs = [
                Spec(Number, n, unique_key=f"{round_number}:{n}", correlation_key=f"{round_number}:{n}")
                for n in range(100)
            ]
            forth, back = await asyncio.gather(one.insert_all(specs), other.insert_all(reversed(specs)))
            for first, second in zip(forth, reversed(back), strict=True):
                assert first.id == second.id
                assert {type(first), type(second)} == {Inserted, Duplicate}
        assert await one.count() == 1500


@pytest.mark.parametrize("kind", ["unique_key", "correlation_key"])
async def test_overlapping_batches_lock_keys_in_one_order(
    durable_dsn: str, direct_dsn: str, db: Any, kind: str
) -> None:
    """With `conn=` a deadlock is not retried, so the test would fail."""
    client = AsyncClient(durable_dsn)

    def spec(letter: str) -> Spec[int, Any]:
        return (
            Spec(Number, 0, unique_key=letter)
            if kind == "unique_key"
            else Spec(Number, 0, correlation_key=letter)
        )

    specs = [spec(letter) for letter in "abcdefghijklmnopqrstuvwxyz"]
    async with asyncpg.create_pool(direct_dsn, min_size=3, max_size=3) as pool, pool.acquire() as holder:
        transaction = holder.transaction()
        await transaction.start()
        await client.insert_all([spec("m")], conn=holder)
        async with pool.acquire() as one, pool.acquire() as other, asyncio.TaskGroup() as group:
            forth = group.create_task(client.insert_all(specs, conn=one))
            back = group.create_task(client.insert_all(reversed(specs), conn=other))
            while await db.fetchval(BLOCKED) < 2:
                await asyncio.sleep(0.01)
            await transaction.rollback()
    pairs = list(zip(forth.result(), reversed(back.result()), strict=True))
    assert all(first.id == second.id for first, second in pairs)
    assert len({first.id for first, _ in pairs}) == 26


@pytest.mark.clause("UNQ-10")
async def test_one_of_many_clients_inserts_a_key(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn) as client:
        answers = await asyncio.gather(*[client.insert(Number, n, unique_key="u") for n in range(100)])
    assert len({answer.id for answer in answers}) == 1
    assert [type(answer) for answer in answers].count(Inserted) == 1


_WAITS = """
select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')"""


async def test_insert_that_deadlocks_is_retried(durable_dsn: str, direct_dsn: str, db: Any) -> None:
    """Rows are inserted in unique-key order, so correlation keys may deadlock."""
    await db.execute(
        f"alter database {await db.fetchval('select current_database()')} set deadlock_timeout = '500ms'"
    )
    # The other session checks late, so the client is the deadlock victim.
    crossing = await asyncpg.connect(direct_dsn, server_settings={"deadlock_timeout": "20s"})
    insert = "select gen_durable.insert('Number', step => 'only', version => 1, correlation_key => $1)"
    try:
        async with AsyncClient(durable_dsn) as client, asyncio.TaskGroup() as group:
            transaction = crossing.transaction()
            await transaction.start()
            await crossing.execute(insert, "x")
            specs = [
                Spec(Number, 1, unique_key="a", correlation_key="y"),
                Spec(Number, 2, unique_key="b", correlation_key="x"),
            ]
            inserting = group.create_task(client.insert_all(specs))
            while not await db.fetchval(_WAITS):  # it has y and waits for x
                await asyncio.sleep(0.01)
            await crossing.execute(insert, "y")
            await transaction.commit()
            assert [type(answer) for answer in await inserting] == [Duplicate, Duplicate]
    finally:
        await crossing.close()
    assert await db.fetchval("select count(*) from gen_durable.gen_durable") == 2


async def test_duplicate_names_the_taken_key(client: Any) -> None:
    first = await client.insert(Number, 1, correlation_key="c", idempotency_key="i")
    for keys, kind, key in (
        ({"correlation_key": "c", "idempotency_key": "other"}, "correlation_key", "c"),
        ({"correlation_key": "other", "idempotency_key": "i"}, "idempotency_key", "i"),
        ({"unique_key": "i"}, "unique_key", "i"),
    ):
        second = await client.insert(Number, 2, **keys)
        assert isinstance(second, Duplicate)
        assert (second.id, second.kind, second.key) == (first.id, kind, key)


def test_insert_backs_off_between_deadlock_retries() -> None:
    row = new_instance(Spec(Number, 1, unique_key="u"), 1000)
    plan = insert([row], autocommit=True)
    asked = [next(plan)]
    for _ in range(7):
        asked += [plan.throw(StatementError("40P01", "deadlock detected")), plan.send([])]
    assert [call.statement.name for call in asked if isinstance(call, Call)] == ["insert", "pause"] * 7 + [
        "insert"
    ]
    assert len({call.values for call in asked[1::2] if isinstance(call, Call)}) > 1, "never in step"
    with pytest.raises(StatementError):
        plan.throw(StatementError("40P01", "deadlock detected"))
