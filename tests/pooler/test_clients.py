"""Clients behind PgBouncer: every verb seven times, because drivers treat first and later uses differently."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from gen_durable import AsyncClient, Client, Duplicate, DuplicateSignal, NoTargetError, Settings, Spec, Worker
from gen_durable.errors import UnreachableError
from tests.pooler.machines import ALL, Chain, Parent, Waiter
from tests.support.clients import Awaitable

PATIENCE = timedelta(seconds=20)


@pytest.fixture(params=["AsyncClient", "Client"])
async def client(
    request: pytest.FixtureRequest, durable_dsn: str, durable_settings: Settings
) -> AsyncIterator[Any]:
    if request.param == "AsyncClient":
        async with AsyncClient(durable_dsn, settings=durable_settings) as opened:
            yield opened
    else:
        with Client(durable_dsn, settings=durable_settings) as blocking:
            yield Awaitable(blocking)


async def test_every_verb_works_repeatedly(client: Any, durable_dsn: str, durable_settings: Settings) -> None:
    async with Worker(ALL, dsn=durable_dsn, settings=durable_settings):
        for number in range(7):
            key = f"key:{number}"
            waiter = await client.insert(Waiter, 60.0, correlation_key=key, unique_key=key)
            assert isinstance(await client.insert(Waiter, 60.0, unique_key=key), Duplicate)
            assert (await client.wait(waiter, timeout=PATIENCE, until="parked")).awaits == ("note",)
            await client.signal(key, "other", number, dedup_key="once")
            assert isinstance(await client.signal(waiter, "other", number, dedup_key="once"), DuplicateSignal)
            await client.signal(waiter, Waiter.note, "hello")
            chains = await client.insert_all([Spec(Chain, number), Spec(Chain, number)])
            assert [done.result for done in await client.wait_all(chains, timeout=PATIENCE)] == [
                number + 3
            ] * 2
            assert (await client.wait(waiter, timeout=PATIENCE)).result == ["hello"]
            parent = await client.insert(Parent, 2)
            assert (await client.wait(parent, timeout=PATIENCE)).result == 7
            assert len(await client.children(parent)) == 2
            assert len(await client.executions(parent)) == 2
            assert (await client.get(key)).id == waiter.id
            assert await client.get(10**9) is None
            assert [found.id for found in await client.list(Waiter, limit=1)] == [waiter.id]
            assert await client.count(Waiter) == number + 1
            with pytest.raises(NoTargetError):
                await client.signal(waiter, Waiter.note, "too late")


async def test_concurrent_verbs(client: Any) -> None:
    async with asyncio.TaskGroup() as group:
        inserts = [group.create_task(client.insert(Chain, number)) for number in range(100)]
    assert len({insert.result().id for insert in inserts}) == 100
    assert await client.count() == 100


async def test_missing_setting_raises_an_error_with_advice(durable_dsn: str) -> None:
    """Without the setting, startup parameters are sent, which PgBouncer refuses: an error at once."""
    with pytest.raises(UnreachableError, match="set GEN_DURABLE_POOLER or"):
        async with AsyncClient(durable_dsn):
            pass
    with (
        pytest.raises(UnreachableError, match="set GEN_DURABLE_POOLER or"),
        Client(durable_dsn),
    ):
        pass
