"""watch, through both clients; the changes are written by SQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from gen_durable import AsyncClient, Change, Ref, Spec, Status, Worker
from gen_durable.errors import NoTargetError, NotConnectedError, UsageError
from tests.clients.machines import Checkout, Number, Order, Sleeper
from tests.support.wire_proxy import Wire

LONG = timedelta(seconds=20)


async def changes(client: Any, target: Any, **options: Any) -> AsyncIterator[Change[Any, Any]]:
    """The changes of an instance, with the async or the blocking client."""
    if isinstance(client, AsyncClient):
        async for change in client.watch(target, **options):
            yield change
    else:
        found: Iterator[Any] = client.blocking.watch(target, **options)
        ended: Any = None
        while (change := await asyncio.to_thread(next, found, ended)) is not None:
            yield change


async def soon(found: AsyncIterator[Change[Any, Any]]) -> Change[Any, Any]:
    async with asyncio.timeout(10):
        return await anext(found)


async def commit(db: Any, id: int, step: str, count: int = 1) -> None:
    """Commit transitions to a step, as a worker does."""
    for _ in range(count):
        await db.execute(
            """with moved as (update gen_durable.gen_durable set step = $2, step_seq = step_seq + 1, execution = execution + 1
                               where id = $1 returning id, step_seq, execution)
               insert into gen_durable.executions
                      (instance_id, step_seq, execution, attempt, status, outcome, step, finished_at)
               select id, step_seq, execution, 0, 'DONE', 'next', $2, now() from moved""",
            id,
            step,
        )


async def abort(db: Any, id: int) -> None:
    await db.execute(
        """with moved as (update gen_durable.gen_durable set attempt = attempt + 1, execution = execution + 1
                           where id = $1 returning *)
           insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, finished_at)
           select id, step_seq + 1, execution, attempt - 1, 'ABORTED', 'retry', step, now() from moved""",
        id,
    )


async def end(db: Any, id: int) -> None:
    await db.execute(
        "update gen_durable.gen_durable set status = 'done', finished_at = now() where id = $1", id
    )


def steps(change: Change[Any, Any]) -> list[tuple[str, str | None]]:
    return [(one.step, one.outcome) for one in change.executions]


@pytest.mark.clause("WATCH-1")
async def test_watch_yields_the_state_then_each_change_until_the_end(client: Any, db: Any) -> None:
    order = await client.insert(Checkout, Order(1), correlation_key="k")
    found = changes(client, order)
    first = await soon(found)
    assert (first.instance.status, first.instance.step, first.executions) == (Status.RUNNABLE, "start", ())
    assert first.instance.state == Order(1)
    await db.execute(
        "update gen_durable.gen_durable set status = 'awaiting_signal', awaits = '{paid}' where id = $1",
        order.id,
    )
    assert (await soon(found)).instance.awaits == ("paid",)
    await end(db, order.id)
    assert (await soon(found)).instance.is_finished
    with pytest.raises(StopAsyncIteration):
        await soon(found)
    for target in (order.id, "k", Ref(Checkout, "k")):
        assert [change.instance.status async for change in changes(client, target)] == ["done"]


@pytest.mark.clause("WATCH-2")
async def test_each_execution_is_in_exactly_one_change(client: Any, db: Any) -> None:
    number = await client.insert(Number, 1)
    await commit(db, number.id, "before")
    found = changes(client, number)
    assert (await soon(found)).executions == ()
    # The reader works on its change: what happens meanwhile is one change.
    await commit(db, number.id, "one")
    await abort(db, number.id)
    await abort(db, number.id)
    await commit(db, number.id, "two")
    change = await soon(found)
    seen = steps(change)
    while change.instance.step != "two":
        change = await soon(found)
        seen += steps(change)
    assert seen == [("one", "next"), ("one", "retry"), ("one", "retry"), ("two", "next")]
    await commit(db, number.id, "three")
    assert steps(await soon(found)) == [("three", "next")]


@pytest.mark.clause("WATCH-2")
async def test_changes_bound_their_executions_and_lose_none(client: Any, db: Any) -> None:
    number = await client.insert(Number, 1)
    found = changes(client, number)
    start = await soon(found)
    await db.execute(
        "update gen_durable.gen_durable set step_seq = 200, execution = 260, status = 'done', finished_at = now()"
    )
    await db.execute(
        """insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, finished_at)
           select $1, case when n <= 60 then 1 else n - 60 end, n, 0, case when n <= 60 then 'ABORTED' else 'DONE' end, 'x', 's', now()
             from generate_series(1, 260) n""",
        number.id,
    )
    pages = [change async for change in found]
    assert [len(page.executions) for page in pages] == [100, 100, 60]
    assert [one.attempt for page in pages for one in page.executions] == list(range(1, 261))
    assert all(page.instance.is_finished for page in pages)
    # A reader that comes back continues behind its last change.
    again = [change async for change in changes(client, number, after=start)]
    assert [one.attempt for page in again for one in page.executions] == list(range(1, 261))
    rest = [change async for change in changes(client, number, after=pages[1].position)]
    assert [one.attempt for page in rest for one in page.executions] == list(range(201, 261))
    assert [page.executions async for page in changes(client, number, after=pages[2])] == [()]


@pytest.mark.clause("WATCH-3")
async def test_renewed_lease_is_not_a_change(client: Any, db: Any) -> None:
    number = await client.insert(Number, 1)
    await db.execute(
        "update gen_durable.gen_durable set status = 'executing', lease_token = 1, execution = 1, lease_expires_at = now()"
    )
    found = changes(client, number)
    assert (await soon(found)).instance.status == "executing"
    following = asyncio.ensure_future(soon(found))
    for _ in range(3):
        await db.execute("update gen_durable.gen_durable set lease_expires_at = now()")
        await asyncio.sleep(0.1)
    assert not following.done()
    await db.execute(
        """update gen_durable.gen_durable set progress = '{"done": 3, "at": "2026-01-31T09:00:00Z"}'"""
    )
    progress = (await following).instance.progress
    assert progress is not None
    assert progress.done == 3


async def test_watch_of_a_missing_or_removed_instance_raises(client: Any, db: Any) -> None:
    with pytest.raises(NoTargetError, match="cannot watch: there is no instance 4711"):
        await soon(changes(client, 4711))
    with pytest.raises(NoTargetError, match="correlation_key 'k'"):
        await soon(changes(client, "k"))
    number = await client.insert(Number, 1)
    found = changes(client, number)
    await soon(found)
    await db.execute("delete from gen_durable.gen_durable")
    with pytest.raises(NoTargetError, match="retention or keep=False may have removed it"):
        await soon(found)


@pytest.mark.parametrize("after", ["", "7", "1:x", 7, "1:2:3", f"{10**18}:1"])
async def test_invalid_position_is_rejected(client: Any, after: Any) -> None:
    with pytest.raises(UsageError, match="which is not a position; give a Change or its position"):
        await soon(changes(client, 1, after=after))


async def test_watch_is_woken_in_process(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a wake-up, the second poll would come after an hour.
    monkeypatch.setattr("gen_durable._runtime.waiting._MAX_LOAD", 1e-9)
    async with Worker([Sleeper], dsn=durable_dsn) as worker, asyncio.timeout(20):
        sleeper = await worker.insert(Sleeper)
        assert (await worker.wait(sleeper, until="parked")).awaits == ("bell",)
        found = worker.watch(sleeper)
        assert (await anext(found)).instance.is_parked
        await worker.signal(sleeper, Sleeper.bell, "ding")
        assert (await anext(found)).instance.result == "ding"


async def test_closing_the_client_ends_its_watches(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn) as client:
        found = client.watch(await client.insert(Number, 1))
        await anext(found)
        following = asyncio.ensure_future(soon(found))
        await asyncio.sleep(0.05)
    with pytest.raises(NotConnectedError, match="is not open"):
        await following


@pytest.mark.clause("WATCH-4")
async def test_ten_thousand_watches_share_one_poller(durable_dsn: str, db: Any) -> None:
    count = 10_000
    with Wire(durable_dsn) as wire:
        async with AsyncClient(wire.dsn) as client:
            numbers = await client.insert_all([Spec(Number, n) for n in range(count)])
            seen: dict[int, list[Status]] = {number.id: [] for number in numbers}

            async def watch(id: int) -> None:
                async for change in client.watch(id):
                    seen[id].append(change.instance.status)

            async with asyncio.timeout(120), asyncio.TaskGroup() as group:
                for id in seen:
                    group.create_task(watch(id))
                while not all(seen.values()):
                    await asyncio.sleep(0.05)
                with wire.counted() as sent:
                    began = time.monotonic()
                    await asyncio.sleep(2)
                    seconds = time.monotonic() - began
                await db.execute("update gen_durable.gen_durable set status = 'done', finished_at = now()")
    assert all(statuses[-1] == "done" and len(statuses) == 2 for statuses in seen.values())
    # A poll is one statement, and it runs for a tenth of the time.
    assert 1 <= sent.count("changed") <= 10 * seconds


@pytest.mark.clause("WATCH-5")
async def test_slow_reader_delays_no_other_reader(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client, asyncio.timeout(20):
        slow, fast = await client.insert(Number, 1), await client.insert(Number, 2)
        reading = client.watch(slow)
        await anext(reading)
        others = client.watch(fast)
        await anext(others)
        for count in range(1, 6):
            await commit(db, slow.id, "s")
            await commit(db, fast.id, "f")
            assert (await anext(others)).instance.step_seq == count
        assert len((await anext(reading)).executions) == 5
