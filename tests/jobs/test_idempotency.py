"""`idempotency_key`: repeated inserts return the first instance until it is deleted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gen_durable import (
    AsyncClient,
    Cancel,
    Discard,
    Duplicate,
    Inserted,
    Spec,
    Status,
    UsageError,
    job,
)
from gen_durable.errors import KeyTakenError
from gen_durable.testing import Harness
from tests.jobs.billing import sweep
from tests.support.rows import SqlConnection


@job("idempotency.pay.v1")
def pay(which: str) -> str:
    if which == "failed":
        raise Discard("declined")
    if which == "cancelled":
        raise Cancel("not needed")
    return which


@pytest.mark.clause("IDM-1")
@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
def test_idempotency_key_returns_the_first_instance(
    durable: Harness, sql: SqlConnection, status: str
) -> None:
    first = durable.insert(pay, status, idempotency_key="invoice:7")
    assert isinstance(first, Inserted)
    again = durable.insert(pay, "other", idempotency_key="invoice:7")
    assert (again.id, again) == (first.id, Duplicate(pay, first.id, "invoice:7"))
    assert isinstance(again, Duplicate)
    assert again.status is Status.RUNNABLE
    durable.drain()
    durable.advance(days=3650)
    for _ in range(2):
        again = durable.insert(pay, "other", idempotency_key="invoice:7")
        assert isinstance(again, Duplicate)
        assert (again.id, again.key, again.status) == (first.id, "invoice:7", Status(status))
    found = durable.get(again)
    assert found is not None
    assert (found.state, found.status, found.unique_key) == (status, Status(status), b"invoice:7")
    assert durable.count() == 1
    assert (
        sql.row(first.id)["unique_scope"]
        == "{runnable,executing,awaiting_signal,awaiting_children,done,failed,cancelled}"
    )


@pytest.mark.clause("IDM-2")
@pytest.mark.parametrize("status", ["runnable", "done", "failed", "cancelled"])
def test_soft_delete_frees_the_idempotency_key(durable: Harness, status: str) -> None:
    first = durable.insert(pay, status, idempotency_key="invoice:7")
    if status != "runnable":
        durable.drain()
    durable.soft_delete(first, reason="wrong customer")
    second = durable.insert(pay, "done", idempotency_key="invoice:7")
    assert isinstance(second, Inserted)
    assert second.id != first.id
    assert isinstance(durable.insert(pay, "done", idempotency_key="invoice:7"), Duplicate)
    with pytest.raises(UsageError, match=r"belongs to \S+ \d+ now"):
        durable.restore(first)


@pytest.mark.clause("IDM-3")
def test_insert_all_with_idempotency_keys(durable: Harness) -> None:
    before = durable.insert(pay, "done", idempotency_key="a")
    durable.drain()
    answers = durable.insert_all(
        [
            Spec(pay, "1", idempotency_key="a"),
            Spec(pay, "2", idempotency_key="b"),
            Spec(pay, "3", idempotency_key="b"),
            Spec(pay, "4"),
            Spec(pay, "5", unique_key="b"),
        ]
    )
    kinds = [type(answer).__name__ for answer in answers]
    assert kinds == ["Duplicate", "Inserted", "Duplicate", "Inserted", "Duplicate"]
    assert [answer.id for answer in answers] == [
        before.id,
        answers[1].id,
        answers[1].id,
        answers[3].id,
        answers[1].id,
    ]
    assert [answer.status.value for answer in answers if isinstance(answer, Duplicate)] == [
        "done",
        "runnable",
        "runnable",
    ]
    assert [answer.key for answer in answers if isinstance(answer, Duplicate)] == ["a", "b", "b"]


@pytest.mark.clause("IDM-3")
async def test_idempotency_key_in_the_callers_transaction(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client:
        transaction = db.transaction()
        await transaction.start()
        first = await client.insert(pay, "x", idempotency_key="k", conn=db)
        again = await client.insert(pay, "y", idempotency_key="k", conn=db)
        assert isinstance(again, Duplicate)
        assert (again.id, again.status) == (first.id, Status.RUNNABLE)
        await transaction.rollback()
        assert await client.count() == 0
        async with db.transaction():
            second = await client.insert(pay, "z", idempotency_key="k", conn=db)
            assert isinstance(second, Inserted)
        assert (await client.insert(pay, "z", idempotency_key="k")).id == second.id


@pytest.mark.clause("IDM-3")
async def test_concurrent_inserts_of_an_idempotency_key_are_one(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(client.insert(pay, "x", idempotency_key="k")) for _ in range(20)]
        answers = [task.result() for task in tasks]
        assert len({answer.id for answer in answers}) == 1
        assert sum(isinstance(answer, Inserted) for answer in answers) == 1
        # A second insert waits for the first transaction, and returns its instance or inserts.
        for ending in ("commit", "rollback"):
            transaction = db.transaction()
            await transaction.start()
            first = await client.insert(pay, "x", idempotency_key=ending, conn=db)
            waiting = asyncio.get_running_loop().create_task(client.insert(pay, "y", idempotency_key=ending))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await getattr(transaction, ending)()
            answer = await waiting
            assert isinstance(answer, Duplicate if ending == "commit" else Inserted)
            assert (answer.id == first.id) is (ending == "commit")


def test_idempotency_key_belongs_to_one_machine(durable: Harness) -> None:
    durable.insert(pay, "done", idempotency_key="k")
    with pytest.raises(KeyTakenError, match=r"idempotency\.pay\.v1"):
        durable.insert(sweep, idempotency_key="k")


@pytest.mark.parametrize("other", [{"unique_key": "u"}, {"unique_scope": [Status.DONE]}])
def test_idempotency_key_excludes_a_unique_key(durable: Harness, other: Any) -> None:
    with pytest.raises(UsageError, match="idempotency_key is given together with unique_key or unique_scope"):
        durable.insert(pay, "done", idempotency_key="k", **other)
    assert durable.count() == 0


@pytest.mark.parametrize("key", ["", "k" * 1025, "a\0", 7, b"k"])
def test_invalid_idempotency_key_is_rejected(durable: Harness, key: Any) -> None:
    with pytest.raises(UsageError, match="idempotency_key"):
        durable.insert(pay, "done", idempotency_key=key)


@pytest.mark.clause("IDM-1", "SQL-1")
def test_sql_insert_takes_an_idempotency_key(durable: Harness, sql: SqlConnection) -> None:
    first = durable.insert(pay, "done", idempotency_key="k")
    durable.drain()
    query = (
        "select id, inserted from gen_durable.insert('idempotency.pay.v1', '\"x\"', idempotency_key => %s)"
    )
    assert sql(query, "k") == [{"id": first.id, "inserted": False}]
    (found,) = sql(query, "other")
    assert found is not None
    assert found["inserted"] is True
    again = durable.insert(pay, "done", idempotency_key="other")
    assert isinstance(again, Duplicate)
    assert (again.id, again.status) == (found["id"], Status.RUNNABLE)
