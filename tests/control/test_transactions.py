"""`conn=`: each verb runs in the caller's transaction, on any supported connection."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import (
    AlreadyFinished,
    Cancelled,
    Deleted,
    NotRetried,
    Restored,
    Retried,
    Status,
    UsageError,
)
from tests.support.callers import Caller, opened
from tests.support.machines import Plain
from tests.support.rows import audit, job_states, row_of


@pytest.fixture(params=["asyncpg", "psycopg", "psycopg async"])
async def caller(request: pytest.FixtureRequest, durable_dsn: str) -> Any:
    async with opened(request.param, durable_dsn) as found:
        yield found


async def _insert(caller: Caller, count: int) -> list[Any]:
    async with caller.transaction():
        return [await caller.client.insert(Plain, n, conn=caller.conn) for n in range(count)]


async def _all_verbs(caller: Caller, one: Any, two: Any) -> list[Any]:
    client, conn = caller.client, caller.conn
    return [
        await client.cancel(one, reason="in a transaction", actor="ann", conn=conn),
        await client.cancel(one, force=True, conn=conn),
        await client.retry(one, state=8, reason="again", actor="eve", conn=conn),
        await client.retry(one, conn=conn),
        await client.soft_delete(two, reason="obsolete", actor="ben", conn=conn),
        await client.restore(two, actor="ben", conn=conn),
        await client.cancel(one.id, cascade=True, conn=conn),
    ]


@pytest.mark.clause("CTL-1")
async def test_verbs_take_effect_when_the_caller_commits(caller: Caller, db: Any) -> None:
    one, two = await _insert(caller, 2)
    async with caller.transaction():
        answers = await _all_verbs(caller, one, two)
        assert (await row_of(db, one.id))["status"] == "runnable", "others do not see it yet"
    assert answers == [
        Cancelled(one.id),
        AlreadyFinished(one.id, Status.CANCELLED),
        Retried(one.id),
        NotRetried(one.id, Status.RUNNABLE),
        Deleted(two.id, answers[4].deleted_at, is_executing=False),
        Restored(two.id, Status.CANCELLED),
        Cancelled(one.id),
    ]
    assert ((await row_of(db, one.id))["state"], (await row_of(db, two.id))["deleted_at"]) == ("8", None)
    assert [event for event, _, _ in await audit(db, one.id)] == ["cancelled", "retried", "cancelled"]
    assert await job_states(db, [one.id, two.id]) == ["CANCELLED", "CANCELLED"]


@pytest.mark.clause("CTL-1")
async def test_verbs_are_undone_when_the_caller_rolls_back(caller: Caller, db: Any) -> None:
    one, two = await _insert(caller, 2)
    before = [await row_of(db, ref.id) for ref in (one, two)]
    await caller.execute("begin")
    await _all_verbs(caller, one, two)
    await caller.execute("rollback")
    after = [await row_of(db, ref.id) for ref in (one, two)]
    assert [{**row, "now": None} for row in after] == [{**row, "now": None} for row in before]
    assert await db.fetchval("select count(*) from gen_durable.audit_events") == 0
    assert await db.fetchval("select count(*) from gen_durable.executions") == 0


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_verbs_work_at_stricter_isolation_levels(caller: Caller, db: Any, isolation: str) -> None:
    one, two = await _insert(caller, 2)
    async with caller.transaction(isolation):
        await _all_verbs(caller, one, two)
    assert await job_states(db, [one.id, two.id]) == ["CANCELLED", "CANCELLED"]


@pytest.mark.parametrize("verb", ["retry", "restore"])
async def test_taken_key_aborts_the_callers_transaction(caller: Caller, db: Any, verb: str) -> None:
    client, conn = caller.client, caller.conn
    async with caller.transaction():
        old = await client.insert(Plain, 1, unique_key="u", unique_scope=_SCOPES[verb], conn=conn)
        await (client.cancel(old, conn=conn) if verb == "retry" else client.soft_delete(old, conn=conn))
        new = await client.insert(Plain, 2, unique_key="u", conn=conn)
    await caller.execute("begin")
    await client.insert(Plain, 3, conn=conn)
    with pytest.raises(UsageError, match=r"belongs to \S+ \d+ now"):
        await (client.retry(old, conn=conn) if verb == "retry" else client.restore(old, conn=conn))
    await caller.execute("commit")
    assert await job_states(db, [old.id, new.id]) == ["CANCELLED", "PENDING"]
    assert await db.fetchval("select count(*) from gen_durable.gen_durable") == 2


_SCOPES = {"retry": ["runnable"], "restore": ["runnable", "cancelled"]}
