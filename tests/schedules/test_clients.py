"""Schedule methods of both clients, transactions of callers, and invalid input."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from gen_durable import AsyncClient, NoScheduleError, Schedule, ScheduleRecord, Spec, UsageError
from tests.schedules.support import Report, hourly


@pytest.mark.clause("CRON-4", "CRON-9", "CRON-10")
async def test_every_method(client: Any) -> None:
    put = await client.put_schedule(hourly(tz="Europe/Vienna"))
    assert isinstance(put, ScheduleRecord)
    assert (put.name, put.cron, put.every, put.tz) == ("hourly", "0 * * * *", None, "Europe/Vienna")
    assert put.spec == {
        "fsm": "Report",
        "version": 1,
        "step": "write",
        "state": "all",
        "queue": "default",
        "priority": 0,
    }
    often = await client.put_schedule(Schedule("a", Spec(Report, "x"), every=timedelta(minutes=5)))
    assert [record.name for record in await client.schedules()] == ["a", "hourly"]
    assert (await client.get_schedule("a")) == often
    assert (await client.pause_schedule("a", reason="why", actor="ann")).is_paused
    assert not (await client.resume_schedule("a")).is_paused
    triggered = await client.trigger_schedule("a")
    assert [one.id for one in await client.list(schedule="a")] == [triggered.id]
    assert await client.delete_schedule("a") is None
    assert [record.name for record in await client.schedules()] == ["hourly"]
    assert len(await client.list(schedule="a")) == 1


@pytest.mark.parametrize("verb", ["get", "pause", "resume", "trigger", "delete"])
async def test_unknown_schedule_raises(client: Any, verb: str) -> None:
    with pytest.raises(NoScheduleError, match="there is no schedule 'nightly'"):
        await getattr(client, f"{verb}_schedule")("nightly")


@pytest.mark.parametrize("verb", ["get", "pause", "resume", "trigger", "delete"])
async def test_invalid_name_is_refused(client: Any, verb: str) -> None:
    for name in ("", "x" * 256, "a\0b", 7):
        with pytest.raises(UsageError, match="the name of a schedule"):
            await getattr(client, f"{verb}_schedule")(name)


async def test_invalid_schedule_is_refused(client: Any) -> None:
    with pytest.raises(UsageError, match="a value of type str is not a schedule"):
        await client.put_schedule("nightly")


async def test_trigger_with_a_key_of_another_machine(client: Any) -> None:
    await client.put_schedule(Schedule("a", Spec(Report, "x", unique_key="k"), cron="@daily"))
    first = await client.trigger_schedule("a")
    again = await client.trigger_schedule("a")
    assert (again.id, first.is_new, again.is_new) == (first.id, True, False)


@pytest.mark.parametrize("name", ['"; drop table gen_durable.schedules; --', "ünï", "a b\n%s $1"])
async def test_names_and_states_are_escaped(client: Any, name: str) -> None:
    await client.put_schedule(Schedule(name, Spec(Report, name), cron="@daily"))
    triggered = await client.trigger_schedule(name)
    (instance,) = await client.list(schedule=name)
    assert (instance.id, instance.schedule, instance.state) == (triggered.id, name, name)


async def test_calls_join_the_transaction_of_the_caller(durable_dsn: str) -> None:
    conn = await asyncpg.connect(durable_dsn)
    async with AsyncClient(durable_dsn) as client:
        transaction = conn.transaction()
        await transaction.start()
        await client.put_schedule(hourly(), conn=conn)
        await client.trigger_schedule("hourly", conn=conn)
        assert (await client.pause_schedule("hourly", conn=conn)).is_paused
        assert await client.schedules() == []
        await transaction.rollback()
        assert await client.schedules() == []
        assert await client.count() == 0
    await conn.close()
