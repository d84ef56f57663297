"""Bulk verbs behind PgBouncer: each batch is a transaction, as without PgBouncer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gen_durable import AsyncClient, Client, DatabaseError, Settings, Spec, Status
from tests.pooler.machines import Chain
from tests.support.clients import Awaitable

_MANY = 1200
_BATCHES = [200, 500, 500]
_TWO_BATCHES = 600


@pytest.fixture(params=["none", "transaction"])
def pooler(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[AsyncClient, Client])
async def client(
    request: pytest.FixtureRequest,
    pooler: str,
    durable_dsn: str,
    direct_dsn: str,
    durable_settings: Settings,
) -> AsyncIterator[Any]:
    dsn, settings = (durable_dsn, durable_settings) if pooler == "transaction" else (direct_dsn, None)
    if request.param is AsyncClient:
        async with AsyncClient(dsn, settings=settings) as opened:
            yield opened
    else:
        with Client(dsn, settings=settings) as blocking:
            yield Awaitable(blocking)


async def transactions(db: Any, table: str) -> list[int]:
    """How many rows of the table each transaction wrote (by the last writer of each row)."""
    rows = await db.fetch(f"select count(*) from gen_durable.{table} group by xmin::text order by 1")
    return [row["count"] for row in rows]


@pytest.mark.clause("CTL-2")
async def test_each_batch_is_a_transaction(client: Any, db: Any) -> None:
    await client.insert_all([Spec(Chain, n) for n in range(_MANY)])
    assert await transactions(db, "gen_durable") == [_MANY]
    for verb in ("cancel_all", "retry_all", "delete_all"):
        await db.execute("truncate gen_durable.audit_events")
        assert await getattr(client, verb)(Chain) == _MANY
        assert await transactions(db, "gen_durable") == _BATCHES
        events = 2 if verb == "delete_all" else 1  # it cancels live instances, then deletes
        assert await transactions(db, "audit_events") == [events * count for count in _BATCHES]


async def test_batches_before_a_failure_stay_committed(client: Any, db: Any) -> None:
    refs = await client.insert_all([Spec(Chain, n) for n in range(_TWO_BATCHES)])
    await db.execute(
        f"""create function refuse() returns trigger language plpgsql as $$ begin
              raise exception 'not this one'; end $$;
            create trigger refuse before update on gen_durable.gen_durable for each row
              when (new.id = {refs[550].id}) execute function refuse()"""
    )
    with pytest.raises(DatabaseError, match="not this one"):
        await client.cancel_all(Chain)
    assert await client.count(status=Status.CANCELLED) == 500
    await db.execute("drop trigger refuse on gen_durable.gen_durable")
    assert await client.cancel_all(Chain) == _TWO_BATCHES - 500


async def test_taken_key_blocks_only_its_instance_in_a_bulk_retry(client: Any, db: Any) -> None:
    """After a failed statement the next one does not run in a failed transaction."""
    await client.insert_all([Spec(Chain, n, correlation_key=f"k{n}") for n in range(_TWO_BATCHES)])
    await client.cancel_all(Chain)
    await client.insert(Chain, 0, correlation_key="k550")
    assert await client.retry_all(Chain) == _TWO_BATCHES - 1
    assert await client.count(status=Status.CANCELLED) == 1
