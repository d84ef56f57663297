"""Firing of schedules, with the clock of the harness."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from gen_durable import (
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    RateLimit,
    Retry,
    Schedule,
    Spec,
    Status,
    _verbs,
    job,
    step,
)
from gen_durable._db import schedules
from gen_durable.testing import AsyncHarness, Harness
from tests.schedules.support import Report, Sleeper, fire_times, hourly
from tests.support.rows import SqlConnection
from tests.support.settings import AN_HOUR


def now(durable: Harness) -> datetime:
    """Return the current time of the harness."""
    (row,) = (durable._database.run(schedules._found("", durable._ahead)),)
    moment: datetime = row["now"]
    return moment


def advance_to_fire_time(durable: Harness, name: str = "hourly") -> datetime:
    """Advance the clock to just after the next fire time."""
    fire_time = durable.get_schedule(name).next_at
    assert fire_time is not None
    durable.advance(fire_time - now(durable) + timedelta(seconds=1))
    return fire_time


@pytest.mark.clause("CRON-1", "CRON-2")
def test_fire_time_inserts_the_spec_and_is_in_ctx(durable: Harness) -> None:
    spec = Spec(Report, "all", queue="reports", priority=7, correlation_key="report", max_attempts=3)
    put = durable.put_schedule(Schedule("hourly", spec, cron="0 * * * *"))
    assert durable.drain().done == 0
    fire_time = advance_to_fire_time(durable)
    assert (put.next_at, put.machine, put.fired_count) == (fire_time, "Report", 0)
    assert durable.drain().done == 1
    (instance,) = durable.list(Report, schedule="hourly")
    assert (instance.queue, instance.priority, instance.correlation_key) == ("reports", 7, "report")
    assert (instance.schedule, instance.fire_time) == ("hourly", fire_time)
    assert instance.result == f"all {fire_time}"
    record = durable.get_schedule("hourly")
    assert (record.last_fire_time, record.next_at, record.last_id) == (
        fire_time,
        fire_time + AN_HOUR,
        instance.id,
    )
    assert (record.fired_count, record.last_error) == (1, None)


@pytest.mark.clause("CRON-2")
def test_fire_time_is_none_without_a_schedule(durable: Harness) -> None:
    ref = durable.insert(Report, "alone")
    durable.drain()
    assert durable.assert_done(ref) == "alone None"
    assert durable.list(schedule="hourly") == []


@pytest.mark.clause("CRON-2")
def test_fire_time_stays_over_steps_and_retries(durable: Harness) -> None:
    class Long(Machine[None, str]):
        @step
        async def one(self, ctx: Context[None]) -> Outcome:
            if not ctx.attempt:
                raise ConnectionError
            return Next(self.two)

        @step
        async def two(self, ctx: Context[None]) -> Outcome[str]:
            return Done(f"{ctx.fire_time}")

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[str]:
            return Retry(timedelta(0))

    durable.put_schedule(Schedule("hourly", Spec(Long), cron="@hourly"))
    fire_time = advance_to_fire_time(durable)
    durable.drain()
    (instance,) = durable.instances(Long)
    assert instance.result == f"{fire_time}"


def test_job_can_be_scheduled(durable: Harness) -> None:
    @job("reports.daily.v1")
    def daily(region: str, ctx: Context[str]) -> str:
        return f"{region} {ctx.fire_time:%H:%M}"

    durable.put_schedule(Schedule("daily", Spec(daily, "north"), cron="0 3 * * *", tz="Europe/Vienna"))
    advance_to_fire_time(durable, "daily")
    durable.drain()
    (instance,) = durable.instances(daily)
    assert instance.result in ("north 01:00", "north 02:00")


@pytest.mark.clause("CRON-1")
def test_interval_starts_when_the_schedule_is_stored(durable: Harness) -> None:
    before = now(durable)
    put = durable.put_schedule(Schedule("often", Spec(Report, "x"), every=timedelta(minutes=15)))
    assert put.next_at is not None
    assert before <= put.next_at - timedelta(minutes=15) <= now(durable)
    durable.advance(hours=1)
    assert durable.drain().done == 4
    assert fire_times(durable.instances()) == [put.next_at + timedelta(minutes=15) * n for n in range(4)]


@pytest.mark.clause("CRON-6")
@pytest.mark.parametrize(("missed", "expected"), [("skip", 0), ("once", 1), ("all", 5)])
def test_missed_fire_times_after_an_outage(durable: Harness, missed: Any, expected: int) -> None:
    durable.put_schedule(hourly(missed=missed))
    first = advance_to_fire_time(durable)
    durable.advance(hours=4, minutes=30)
    assert durable.catch_up() == expected
    assert durable.catch_up() == 0
    last = first + 4 * AN_HOUR
    assert fire_times(durable.instances()) == [first + AN_HOUR * n for n in range(5)][5 - expected :]
    record = durable.get_schedule("hourly")
    assert (record.last_fire_time, record.next_at) == (last, last + AN_HOUR)


@pytest.mark.clause("CRON-6")
def test_missed_skip_has_a_minute_of_grace(durable: Harness) -> None:
    durable.put_schedule(hourly(missed="skip"))
    fire_time = advance_to_fire_time(durable)
    durable.advance(seconds=30)
    assert durable.catch_up() == 1
    assert fire_times(durable.instances()) == [fire_time]


@pytest.mark.clause("CRON-6")
def test_at_most_the_latest_thousand_fire_times_are_made_up(durable: Harness) -> None:
    put = durable.put_schedule(Schedule("often", Spec(Report, "x"), every=timedelta(minutes=1), missed="all"))
    assert put.next_at is not None
    durable.advance(days=1)
    assert durable.catch_up() == 1000
    found = fire_times(durable._database.run(_page()))
    assert (found[0], found[-1]) == (
        put.next_at + timedelta(minutes=440),
        put.next_at + timedelta(minutes=1439),
    )


@pytest.mark.clause("CRON-6")
def test_missed_fire_times_of_a_large_spec(durable: Harness) -> None:
    """Several statements: jsonb is limited to 256 MB, and a thousand of these have a gigabyte."""
    large = Spec(Report, "x" * 1_000_000)
    put = durable.put_schedule(Schedule("often", large, every=timedelta(minutes=1), missed="all"))
    assert put.next_at is not None
    durable.advance(minutes=20)
    assert durable.catch_up() == 20
    assert fire_times(durable.instances()) == [put.next_at + timedelta(minutes=n) for n in range(20)]


def _page() -> Any:
    return _verbs.page(Report, 2000, None, {})


@pytest.mark.clause("CRON-7")
def test_overlap_skip_skips_while_an_instance_is_live(durable: Harness) -> None:
    durable.put_schedule(Schedule("naps", Spec(Sleeper), cron="@hourly", overlap="skip"))
    advance_to_fire_time(durable, "naps")
    durable.advance(hours=2)
    assert durable.drain().awaiting == 1
    record = durable.get_schedule("naps")
    assert (record.fired_count, record.last_error) == (1, "an instance of it was still live")
    assert record.last_fire_time is not None
    (instance,) = durable.instances()
    durable.signal(instance.id, Sleeper.wake)
    durable.drain()
    durable.advance(hours=1)
    assert durable.drain().awaiting == 1
    assert durable.get_schedule("naps").last_error is None


def test_overlap_allow(durable: Harness) -> None:
    durable.put_schedule(Schedule("naps", Spec(Sleeper), cron="@hourly"))
    advance_to_fire_time(durable, "naps")
    durable.advance(hours=2)
    assert durable.drain().awaiting == 3


@pytest.mark.clause("CRON-8")
def test_taken_key_skips_one_fire_time(durable: Harness) -> None:
    holder = durable.insert(Report, "mine", correlation_key="k")
    durable.put_schedule(Schedule("hourly", Spec(Report, "all", correlation_key="k"), cron="@hourly"))
    fire_time = advance_to_fire_time(durable)
    assert durable.catch_up() == 0
    record = durable.get_schedule("hourly")
    assert (record.last_fire_time, record.last_error, record.last_id) == (
        fire_time,
        "an instance had its key",
        None,
    )
    assert [instance.id for instance in durable.instances()] == [holder.id]
    durable.drain()
    advance_to_fire_time(durable)
    assert durable.catch_up() == 1


@pytest.mark.clause("CRON-8")
def test_failed_insert_delays_no_later_fire_time(durable: Harness) -> None:
    durable.insert(Sleeper, correlation_key="k")
    durable.drain()
    durable.put_schedule(Schedule("hourly", Spec(Report, "all", correlation_key="k"), cron="@hourly"))
    durable.put_schedule(hourly("other"))
    fire_time = advance_to_fire_time(durable)
    assert durable.catch_up() == 1
    record = durable.get_schedule("hourly")
    assert (record.last_fire_time, record.next_at) == (fire_time, fire_time + AN_HOUR)
    assert "belongs to Sleeper" in (record.last_error or "")


@pytest.mark.clause("CRON-3")
def test_clock_set_back_fires_nothing_twice(durable: Harness) -> None:
    durable.put_schedule(hourly(missed="all"))
    fire_time = advance_to_fire_time(durable)
    durable.advance(hours=2)
    assert durable.drain().done == 3
    durable._ahead -= 3 * AN_HOUR
    assert durable.catch_up() == 0
    # No change of the schedule repeats a fire time.
    durable.put_schedule(Schedule("hourly", Spec(Report, "new"), cron="*/30 * * * *", missed="all"))
    durable.pause_schedule("hourly")
    assert durable.resume_schedule("hourly").next_at == fire_time + timedelta(hours=2, minutes=30)
    assert durable.catch_up() == 0
    durable._ahead += 3 * AN_HOUR
    durable.advance(minutes=45)
    durable.drain()
    found = fire_times(durable.instances())
    assert found[:4] == [fire_time + n * AN_HOUR for n in (0, 1, 2, 2.5)]
    assert len(set(found)) == len(found)


@pytest.mark.clause("CRON-3")
def test_constraint_fire_times_move_forward(durable: Harness, sql: SqlConnection) -> None:
    durable.put_schedule(hourly())
    advance_to_fire_time(durable)
    durable.drain()
    with pytest.raises(psycopg.errors.CheckViolation, match="fire_times_move_forward"):
        sql("update gen_durable.schedules set next_at = last_fire_time")


@pytest.mark.clause("CRON-3")
def test_only_one_of_two_workers_fires(durable: Harness) -> None:
    durable.put_schedule(hourly())
    advance_to_fire_time(durable)
    (seen,) = durable._database.run(schedules.due(10, ahead=durable._ahead))
    first = durable._database.run(schedules.fire(seen, seen.firing()))
    assert first is not None
    assert len(first.ids) == 1
    assert durable._database.run(schedules.fire(seen, seen.firing())) is None
    assert len(durable.instances()) == 1


@pytest.mark.clause("CRON-3")
@pytest.mark.parametrize("change", ["pause", "resume", "update", "replace"])
def test_schedule_changed_after_the_read_is_not_fired(durable: Harness, change: str) -> None:
    durable.put_schedule(hourly())
    advance_to_fire_time(durable)
    (seen,) = durable._database.run(schedules.due(10, ahead=durable._ahead))
    match change:
        case "pause":
            durable.pause_schedule("hourly")
        case "resume":
            durable.pause_schedule("hourly")
            durable.resume_schedule("hourly")
        case "update":
            durable.put_schedule(Schedule("hourly", Spec(Report, "new"), cron="0 * * * *"))
        case _:
            durable.delete_schedule("hourly")
            durable.put_schedule(hourly())
    assert durable._database.run(schedules.fire(seen, seen.firing())) is None
    assert durable.instances() == []
    assert durable.catch_up() == (change == "update")


@pytest.mark.clause("CRON-9")
def test_fire_times_during_a_pause_are_skipped(durable: Harness) -> None:
    durable.put_schedule(hourly(missed="all"))
    paused = durable.pause_schedule("hourly", reason="month's end", actor="ann")
    assert (paused.is_paused, paused.pause_reason, paused.paused_by) == (True, "month's end", "ann")
    assert durable.pause_schedule("hourly", reason="again").pause_reason == "month's end"
    durable.advance(hours=5)
    assert (durable.catch_up(), durable.drain().done) == (0, 0)
    before = now(durable)
    resumed = durable.resume_schedule("hourly")
    assert (resumed.is_paused, resumed.pause_reason, resumed.paused_by) == (False, None, None)
    assert resumed.next_at is not None
    assert before < resumed.next_at <= before + AN_HOUR
    assert durable.resume_schedule("hourly") == resumed
    advance_to_fire_time(durable)
    assert durable.drain().done == 1


@pytest.mark.clause("CRON-10")
def test_trigger_inserts_now_and_keeps_fire_times(durable: Harness) -> None:
    put = durable.put_schedule(Schedule("naps", Spec(Sleeper), cron="@hourly", overlap="skip"))
    first = durable.trigger_schedule("naps")
    durable.pause_schedule("naps")
    second = durable.trigger_schedule("naps")
    assert first.is_new
    assert second.is_new
    assert [instance.id for instance in durable.list(schedule="naps")] == [second.id, first.id]
    (instance, _) = durable.list(schedule="naps")
    assert instance.fire_time is not None
    assert abs(instance.fire_time - now(durable)) < timedelta(seconds=5)
    record = durable.get_schedule("naps")
    assert (record.next_at, record.last_fire_time, record.last_id, record.fired_count) == (
        put.next_at,
        None,
        second.id,
        2,
    )


@pytest.mark.clause("CRON-4")
def test_new_definition_keeps_the_next_fire_time(durable: Harness) -> None:
    every = timedelta(minutes=40)
    first = durable.put_schedule(Schedule("s", Spec(Report, "a"), every=every))
    durable.pause_schedule("s", reason="why")
    same = durable.put_schedule(Schedule("s", Spec(Report, "a"), every=every))
    assert same.updated_at == durable.get_schedule("s").updated_at
    other = durable.put_schedule(Schedule("s", Spec(Report, "b"), every=every, missed="skip"))
    assert (other.next_at, other.spec["state"], other.missed) == (first.next_at, "b", "skip")
    assert (other.is_paused, other.pause_reason) == (True, "why")
    later = durable.put_schedule(Schedule("s", Spec(Report, "b"), every=every / 2))
    assert later.next_at is not None
    assert first.next_at is not None
    assert later.next_at < first.next_at
    assert later.is_paused


def test_unchanged_declaration_writes_nothing(durable: Harness, sql: SqlConnection) -> None:
    durable.put_schedule(hourly())
    (row,) = sql("select xmin::text, * from gen_durable.schedules")
    durable.put_schedule(hourly())
    assert sql("select xmin::text, * from gen_durable.schedules") == [row]


def test_keys_and_scopes_of_a_spec(durable: Harness, sql: SqlConnection) -> None:
    spec = Spec(
        Report,
        "all",
        correlation_key="c",
        correlation_scope=[],
        unique_key="u",
        unique_scope=[Status.RUNNABLE, Status.DONE],
        concurrency_key=("tenant", 7),
    )
    durable.put_schedule(Schedule("s", spec, cron="@hourly"))
    direct = durable.insert_all([spec])
    columns = "correlation_key, correlation_scope::text, unique_key, unique_scope::text, concurrency_key, step, fsm_version"
    (wanted,) = sql(f"select {columns} from gen_durable.gen_durable where id = {direct[0].id}")
    durable.soft_delete(direct[0])
    triggered = durable.trigger_schedule("s")
    (found,) = sql(f"select {columns} from gen_durable.gen_durable where id = {triggered.id}")
    assert {**found, "unique_scope": _set(found), "x": 0} == {**wanted, "unique_scope": _set(wanted), "x": 0}


def _set(row: Any) -> set[str]:
    return set(row["unique_scope"].strip("{}").split(","))


def test_drain_refuses_a_thousand_fire_times(durable: Harness) -> None:
    durable.put_schedule(Schedule("naps", Spec(Sleeper), every=timedelta(seconds=1), overlap="skip"))
    durable.advance(minutes=1)
    with pytest.raises(AssertionError, match="schedules fired more than 20 times; advance by less"):
        durable.drain(max_steps=20)


async def test_clock_of_the_async_harness(async_durable: AsyncHarness) -> None:
    await async_durable.put_schedule(Schedule("often", Spec(Report, "x"), every=timedelta(minutes=40)))
    async_durable.advance(hours=2)
    assert (await async_durable.drain()).done == 3
    async_durable.advance(hours=2)
    assert async_durable.catch_up() == 1


def test_fire_times_follow_the_calendar_after_advance(durable: Harness) -> None:
    """After any advance, fire times follow cron."""
    durable.put_schedule(Schedule("monthly", Spec(Report, "x"), cron="0 9 1 * *", tz="Asia/Tokyo"))
    durable.advance(days=95)
    durable.drain()
    found = [fire_time for fire_time in fire_times(durable.instances()) if fire_time is not None]
    assert len(found) in (3, 4)
    assert {(fire_time.astimezone(UTC).day, fire_time.astimezone(UTC).hour) for fire_time in found} == {
        (1, 0)
    }


@pytest.mark.clause("CRON-1", "FLOW-11")
def test_missing_rate_limit_does_not_lose_a_fire_time(durable: Harness) -> None:
    spec = Spec(Report, "all", rate_limit=("crm", 7), weight=2)
    durable.put_schedule(Schedule("hourly", spec, cron="0 * * * *"))
    advance_to_fire_time(durable)
    assert durable.drain().done == 0
    (instance,) = durable.list(Report, schedule="hourly")
    assert instance.status is Status.RUNNABLE
    assert durable.get_schedule("hourly").last_error is None
    durable.set_limit(RateLimit("crm", 2))
    assert durable.drain().done == 1


@pytest.mark.clause("CRON-1")
def test_rate_limit_of_a_schedule(durable: Harness) -> None:
    durable.set_limit(RateLimit("crm", 2, AN_HOUR))
    spec = Spec(Report, "all", rate_limit="crm", weight=2)
    durable.put_schedule(Schedule("yearly", spec, cron="0 0 1 1 *"))
    for _ in range(2):
        durable.trigger_schedule("yearly")
    assert durable.drain(collapse=False).done == 1
