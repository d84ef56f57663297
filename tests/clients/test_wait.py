"""wait and wait_all, through both clients."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from gen_durable import AsyncClient, Client, Instance, Ref, Spec, Status, Worker
from gen_durable.errors import (
    DatabaseError,
    InstanceFailedError,
    InstanceUnfinishedError,
    NoTargetError,
    NotConnectedError,
    UsageError,
)
from tests.clients.machines import Checkout, Double, Number, Order, Sleeper
from tests.support.wire_proxy import Wire

SOON = timedelta(milliseconds=50)
LONG = timedelta(seconds=20)


async def finish(db: Any, *ids: int, result: str = "7") -> None:
    await db.execute(
        "update gen_durable.gen_durable set status = 'done', result = $2, finished_at = now() where id = any ($1)",
        ids,
        result,
    )


async def test_wait_returns_when_the_instance_has_ended(client: Any, db: Any) -> None:
    number = await client.insert(Number, 1)
    waiting = asyncio.ensure_future(client.wait(number, timeout=LONG))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await finish(db, number.id)
    instance: Instance[int, Any] = await waiting
    assert (instance.id, instance.status, instance.is_finished, instance.result) == (
        number.id,
        Status.DONE,
        True,
        7,
    )


async def test_wait_by_ref_is_typed_and_by_id_or_key_is_plain(client: Any, db: Any) -> None:
    order = await client.insert(Checkout, Order(1), correlation_key="k")
    await finish(db, order.id)
    for target in (order, order.id, "k", Ref(Checkout, "k")):
        assert (await client.wait(target, timeout=LONG)).result == 7
    assert (await client.wait(order)).state == Order(1)
    assert (await client.wait("k")).state == {"number": 1, "paid": False}


async def test_wait_timeout_returns_the_current_snapshot(client: Any) -> None:
    number = await client.insert(Number, 1)
    began = time.monotonic()
    instance = await client.wait(number, timeout=SOON)
    assert (instance.status, instance.is_finished, instance.is_parked) == (Status.RUNNABLE, False, False)
    assert 0.05 <= time.monotonic() - began < 5
    assert await client.wait(number, timeout=timedelta(0)) == instance
    with pytest.raises(InstanceUnfinishedError, match="has no result: runnable at step 'only'"):
        _ = instance.result


@pytest.mark.parametrize("status", ["awaiting_signal", "awaiting_children"])
async def test_until_parked_returns_at_an_await(client: Any, db: Any, status: str) -> None:
    number = await client.insert(Number, 1)
    await db.execute(
        "update gen_durable.gen_durable set status = $1::text::gen_durable.durable_status", status
    )
    assert (await client.wait(number, until="parked", timeout=LONG)).status == status
    assert (await client.wait(number, timeout=SOON)).is_parked


async def test_two_waits_for_one_instance_are_independent(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client:
        number = await client.insert(Number, 1)
        async with asyncio.TaskGroup() as group:
            parked = group.create_task(client.wait(number, until="parked", timeout=LONG))
            finished = group.create_task(client.wait(number, timeout=LONG))
            await db.execute("update gen_durable.gen_durable set status = 'awaiting_signal'")
            assert (await parked).is_parked
            assert not finished.done()
            await finish(db, number.id)
        assert finished.result().is_finished


async def test_raise_failed_raises_for_failed_instances(client: Any, durable_dsn: str) -> None:
    async with Worker([Double], dsn=durable_dsn) as worker:
        debt = await worker.insert(Double, -1)
        await worker.wait(debt, timeout=LONG)
    instance = await client.wait(debt, timeout=LONG)
    assert (instance.status, instance.last_error) == (Status.FAILED, "cannot double a debt")
    with pytest.raises(
        InstanceFailedError, match=rf"instance {debt.id} \(Double\) has no result: failed at step"
    ):
        await client.wait(debt, timeout=LONG, raise_failed=True)


async def test_raise_failed_ignores_unfinished_instances(client: Any) -> None:
    number = await client.insert(Number, 1)
    assert not (await client.wait(number, timeout=SOON, raise_failed=True)).is_finished


async def test_wait_for_an_unknown_target_raises_at_once(client: Any) -> None:
    for target, problem in [(4711, "cannot wait: there is no instance 4711"), ("k", "correlation_key 'k'")]:
        with pytest.raises(NoTargetError, match=problem):
            await client.wait(target)
    with pytest.raises(NoTargetError, match="there is no instance 4711"):
        await client.wait(Ref(Number, 4711), timeout=timedelta(0))


async def test_wait_all_with_an_unknown_target_raises(client: Any) -> None:
    number = await client.insert(Number, 1)
    with pytest.raises(NoTargetError, match="there is no instance 4711"):
        await client.wait_all([number, Ref(Number, 4711)], timeout=LONG)


async def test_wait_all_answers_in_the_order_of_its_targets(client: Any, durable_dsn: str) -> None:
    async with Worker([Double], dsn=durable_dsn) as worker:
        numbers = await worker.insert_all([Spec(Double, n) for n in range(30)])
        answers = await client.wait_all([*reversed(numbers), numbers[0]], timeout=LONG)
    assert [answer.result for answer in answers] == [n * 2 for n in [*range(29, -1, -1), 0]]


async def test_wait_all_has_one_timeout(client: Any, db: Any) -> None:
    numbers = await client.insert_all([Spec(Number, n) for n in range(5)])
    await finish(db, numbers[3].id)
    began = time.monotonic()
    answers = await client.wait_all(numbers, timeout=timedelta(milliseconds=200))
    assert time.monotonic() - began < 5
    assert [answer.is_finished for answer in answers] == [False, False, False, True, False]
    assert await client.wait_all([]) == []


async def test_invalid_timeout_is_rejected(client: Any) -> None:
    number = await client.insert(Number, 1)
    for timeout, problem in [
        (1.5, r"timeout is a number without a unit, got 1\.5; "),
        (timedelta(seconds=-1), "timeout is negative"),
    ]:
        with pytest.raises(UsageError, match=problem):
            await client.wait(number, timeout=timeout)


async def test_closing_the_client_ends_its_waits(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn) as client:
        number = await client.insert(Number, 1)
        waiting = asyncio.ensure_future(client.wait(number))
        await asyncio.sleep(0.05)
    with pytest.raises(NotConnectedError, match="is not open"):
        await asyncio.wait_for(waiting, 10)


async def test_signal_then_wait_returns_the_new_state(client: Any, durable_dsn: str) -> None:
    async with Worker([Sleeper], dsn=durable_dsn):
        sleeper = await client.insert(Sleeper)
        assert (await client.wait(sleeper, until="parked", timeout=LONG)).awaits == ("bell",)
        await client.signal(sleeper, Sleeper.bell, "ding")
        assert (await client.wait(sleeper, timeout=LONG)).result == "ding"


async def test_five_hundred_waiters_share_one_poller(durable_dsn: str, db: Any) -> None:
    with Wire(durable_dsn) as wire:
        async with AsyncClient(wire.dsn) as client:
            numbers = await client.insert_all([Spec(Number, n) for n in range(500)])
            with wire.counted() as sent:
                async with asyncio.TaskGroup() as group:
                    waits = [group.create_task(client.wait(number, timeout=LONG)) for number in numbers]
                    await asyncio.sleep(1)
                    await finish(db, *[number.id for number in numbers])
            assert [wait.result().id for wait in waits] == [number.id for number in numbers]
            polls = sent.count("changed")
    # One poller polls every 10 to 250 ms; 500 pollers would send thousands of statements.
    assert 2 <= polls <= 20


def test_blocking_wait_all_polls_in_one_statement(durable_dsn: str) -> None:
    with Wire(durable_dsn) as wire, Client(wire.dsn) as client:
        numbers = client.insert_all([Spec(Number, n) for n in range(500)])
        with wire.counted() as sent:
            client.wait_all(numbers, timeout=timedelta(milliseconds=500))
        assert 2 <= sent.count("changed") <= 20


async def test_permanent_error_ends_the_wait(client: Any, db: Any) -> None:
    number = await client.insert(Number, 1)
    await db.execute("alter view gen_durable.snapshots rename to elsewhere")
    with pytest.raises(DatabaseError, match=r'relation "gen_durable.snapshots" does not exist'):
        await asyncio.wait_for(client.wait(number), 10)


async def test_wait_survives_a_broken_connection(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client:
        number = await client.insert(Number, 1)
        async with asyncio.TaskGroup() as group:
            wait = group.create_task(client.wait(number, timeout=LONG))
            await asyncio.sleep(0.05)
            await db.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            await finish(db, number.id)
        assert wait.result().result == 7
