"""The tail of the outbox: events in the order of their numbers, without gaps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import psycopg
import pytest

from gen_durable import AsyncClient, Client, Spec, Worker
from gen_durable.errors import NoTargetError, NotConnectedError, UsageError
from gen_durable.events import EventRecord
from gen_durable.testing import Harness
from tests.outbox.machines import Teller
from tests.support.clients import Awaitable
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE

_INSERT = (
    "with written as (insert into gen_durable.signals (target_id, name, payload) values (0, 'x', 'null') returning 1)"
    " insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data)"
    " select 1, 1, 1, %s, 'happened', 'x', %s::jsonb from written"
)


def insert(conn: psycopg.Connection[Any], n: int, sink: str = "default") -> None:
    """Insert an event, after another write, as a commit does."""
    conn.execute(_INSERT, [sink, str(n)])


def data(events: Iterable[EventRecord]) -> list[Any]:
    return [event.data for event in events]


async def listed(client: Any, expected: list[Any], **options: Any) -> list[EventRecord]:
    """The events of `client.events` once these are visible: an open write transaction of another test delays them."""
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while data(found := await client.events(**options)) != expected:
            await asyncio.sleep(0.02)
    return list(found)


async def first(client: Any, count: int, **options: Any) -> list[EventRecord]:
    """The first events of `follow_events`, with the async or the blocking client."""
    if isinstance(client, Awaitable):

        def take() -> list[EventRecord]:
            events = client.blocking.follow_events(**options)
            return [next(events) for _ in range(count)]

        return await asyncio.to_thread(take)
    found: list[EventRecord] = []
    async with asyncio.timeout(PATIENCE.total_seconds()):
        async for event in client.follow_events(**options):
            found.append(event)
            if len(found) == count:
                break
    return found


async def test_after_lists_oldest_first_in_pages(client: Any, durable_dsn: str) -> None:
    with psycopg.connect(durable_dsn, autocommit=True) as conn:
        for n in range(5):
            insert(conn, n, "even" if n % 2 == 0 else "odd")
    page = await listed(client, [0, 1], after=0, limit=2)
    await listed(client, [2, 3, 4], after=page[-1])
    await listed(client, [2, 4], after=page[-1].number, sink="even")
    assert data(await client.events(after=0, state="published")) == []
    assert await client.events(after=99) == []


async def test_after_and_before_exclude_each_other(client: Any) -> None:
    with pytest.raises(UsageError, match="events got before= and after="):
        await client.events(after=1, before=5)
    with pytest.raises(UsageError, match="after is -1"):
        await client.events(after=-1)
    with pytest.raises(NoTargetError):
        await client.events("nobody", after=0)
    for read in (client.events(sink=5), client.events(sink=5, after=0), first(client, 1, sink=5)):
        with pytest.raises(UsageError, match="the name of a sink"):
            await read


@pytest.mark.clause("STR-12")
async def test_event_that_commits_late_is_not_left_out(client: Any, durable_dsn: str) -> None:
    with psycopg.connect(durable_dsn) as late, psycopg.connect(durable_dsn, autocommit=True) as conn:
        insert(conn, 1)
        insert(late, 2)
        insert(conn, 3)
        assert await client.events(after=0) == []
        following = asyncio.ensure_future(first(client, 3))
        await asyncio.sleep(0.1)
        assert not following.done()
        late.commit()
        assert data(await following) == [1, 2, 3]
        await listed(client, [1, 2, 3], after=0)


async def test_event_that_is_rolled_back_delays_nothing(client: Any, durable_dsn: str) -> None:
    with psycopg.connect(durable_dsn) as late, psycopg.connect(durable_dsn, autocommit=True) as conn:
        insert(late, 1)
        insert(conn, 2)
        late.rollback()
        await listed(client, [2], after=0)


async def test_follower_gets_every_event_of_busy_workers(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client:
        count = await client.insert_all([Spec(Teller, {}, step="several") for _ in range(100)])
        expected = 5 * len(count)
        tailing = asyncio.create_task(first(client, expected))
        async with (
            Worker([Teller], dsn=durable_dsn, settings=CALM) as one,
            Worker([Teller], dsn=durable_dsn, settings=CALM),
        ):
            for _ in range(3):
                await asyncio.sleep(0.1)
                await db.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and query like '%newest.id%'"
                )
            await one.wait_all(count, timeout=PATIENCE)
            numbers = [event.number for event in await tailing]
    stored = [row["id"] for row in await db.fetch("select id from gen_durable.outbox order by id")]
    assert numbers == stored


def test_follower_of_one_instance_sees_its_events_only(durable: Harness, durable_dsn: str) -> None:
    refs = [durable.insert(Teller, {}, step="several", correlation_key=f"order:{n}") for n in range(2)]
    durable.drain()
    with Client(durable_dsn) as client:
        for ref in refs:
            following = client.follow_events(ref)
            assert [next(following).instance_id for _ in range(5)] == [ref.id] * 5


async def test_closing_the_client_ends_a_follower(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn) as client:
        following = asyncio.create_task(first(client, 1))
        await asyncio.sleep(0.05)
    with pytest.raises(NotConnectedError):
        await following
