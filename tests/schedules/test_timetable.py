"""Fire times of cron (time zones, DST changes) and intervals, forward and backward."""

from __future__ import annotations

import builtins
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gen_durable import Schedule, Spec, UsageError
from gen_durable._timetable import Timetable, checked_cron
from tests.schedules.support import Report

ANCHOR = datetime(2024, 1, 1, 0, 0, 7, tzinfo=UTC)

# Zone, cron, start (local), and the next fire times with their offsets.
TABLE = [
    # Cairo, spring: Friday starts at 01:00. A midnight fire time moves to 01:00.
    ("Africa/Cairo", "0 0 * * *", "2024-04-25T12:00", "04-26T01:00+03:00 04-27T00:00+03:00"),
    ("Africa/Cairo", "30 0 * * *", "2024-04-25T12:00", "04-26T01:00+03:00 04-27T00:30+03:00"),
    # Cairo, autumn: 23:00 to 24:00 repeats. A fixed time fires once, the first time …
    ("Africa/Cairo", "30 23 * * *", "2024-10-31T12:00", "10-31T23:30+03:00 11-01T23:30+02:00"),
    # … and a repeating expression fires both times.
    (
        "Africa/Cairo",
        "*/30 * * * *",
        "2024-10-31T22:40",
        "10-31T23:00+03:00 10-31T23:30+03:00 10-31T23:00+02:00 10-31T23:30+02:00 11-01T00:00+02:00",
    ),
    # Santiago: the gap and the repeated hour are at midnight, too.
    ("America/Santiago", "0 0 * * *", "2024-09-07T12:00", "09-08T01:00-03:00 09-09T00:00-03:00"),
    (
        "America/Santiago",
        "@daily",
        "2024-04-05T12:00",
        "04-06T00:00-03:00 04-07T00:00-04:00 04-08T00:00-04:00",
    ),
    ("America/Santiago", "30 23 * * *", "2024-04-06T12:00", "04-06T23:30-03:00 04-07T23:30-04:00"),
    # Melbourne: a change at night.
    ("Australia/Melbourne", "30 2 * * *", "2024-10-05T12:00", "10-06T03:00+11:00 10-07T02:30+11:00"),
    ("Australia/Melbourne", "30 2 * * *", "2024-04-06T12:00", "04-07T02:30+11:00 04-08T02:30+10:00"),
    (
        "Australia/Melbourne",
        "0 * * * *",
        "2024-04-07T01:30",
        "04-07T02:00+11:00 04-07T02:00+10:00 04-07T03:00+10:00",
    ),
    ("Australia/Melbourne", "0 * * * *", "2024-10-06T00:30", "10-06T01:00+10:00 10-06T03:00+11:00"),
    # Lord Howe: a change by half an hour.
    ("Australia/Lord_Howe", "15 2 * * *", "2024-10-05T12:00", "10-06T02:30+11:00 10-07T02:15+11:00"),
    ("Australia/Lord_Howe", "45 1 * * *", "2024-04-06T12:00", "04-07T01:45+11:00 04-08T01:45+10:30"),
    ("Australia/Lord_Howe", "*/15 * * * *", "2024-10-06T01:40", "10-06T01:45+10:30 10-06T02:30+11:00"),
    (
        "Australia/Lord_Howe",
        "*/15 * * * *",
        "2024-04-07T01:40",
        "04-07T01:45+11:00 04-07T01:30+10:30 04-07T01:45+10:30 04-07T02:00+10:30",
    ),
    # Behaviour of cronsim: on such a day it steps in whole hours from a half hour, and finds 05:30 before 05:00.
    (
        "Australia/Lord_Howe",
        "*/15 5 * * *",
        "2024-10-06T01:10",
        "10-06T05:30+11:00 10-06T05:45+11:00 10-07T05:00+11:00",
    ),
    ("Australia/Lord_Howe", "0,15,30,45 5 * * *", "2024-10-06T01:10", "10-06T05:00+11:00 10-06T05:15+11:00"),
    # A zone without DST, days of the week, and seconds.
    ("Asia/Kathmandu", "0 9 * * MON-FRI", "2024-10-04T12:00", "10-07T09:00+05:45 10-08T09:00+05:45"),
    (
        "UTC",
        "*/20 0 0 * * *",
        "2024-01-01T12:00",
        "01-02T00:00:00+00:00 01-02T00:00:20+00:00 01-02T00:00:40+00:00",
    ),
]


def cron(expression: str, tz: str = "UTC") -> Timetable:
    return Timetable(checked_cron(expression, tz), None, tz, ANCHOR)


def following(timetable: Timetable, moment: datetime, count: int) -> list[datetime]:
    found: list[datetime] = []
    for _ in range(count):
        fire_time = timetable.after(found[-1] if found else moment)
        assert fire_time is not None
        found.append(fire_time)
    return found


@pytest.mark.clause("CRON-5")
@pytest.mark.parametrize(("tz", "expression", "start", "expected"), TABLE)
def test_fire_times_at_dst_changes(tz: str, expression: str, start: str, expected: str) -> None:
    zone = ZoneInfo(tz)
    wanted = [datetime.fromisoformat(f"2024-{one}") for one in expected.split()]
    moment = datetime.fromisoformat(start).replace(tzinfo=zone)
    found = following(cron(expression, tz), moment.astimezone(UTC), len(wanted))
    assert [fire_time.astimezone(zone).isoformat() for fire_time in found] == [
        one.isoformat() for one in wanted
    ]
    assert all(fire_time.tzinfo is UTC for fire_time in found)


ZONES = ["Africa/Cairo", "America/Santiago", "Australia/Melbourne", "Australia/Lord_Howe", "UTC"]
EXPRESSIONS = [
    "30 2 * * *",
    "0 0 * * *",
    "45 1 * * *",
    "*/15 * * * *",
    "0 */6 * * *",
    "15 23 * * SUN",
    "0 0 1 * *",
]
MOMENTS = st.integers(0, 3 * 365 * 86_400_000).map(
    lambda n: datetime(2023, 1, 1, tzinfo=UTC) + timedelta(milliseconds=n)
)


@pytest.mark.clause("CRON-5")
@given(st.sampled_from(ZONES), st.sampled_from(EXPRESSIONS), MOMENTS, st.integers(0, 40), st.integers(1, 9))
def test_fire_times_increase_and_match_backward_search(
    tz: str, expression: str, moment: datetime, hours: int, most: int
) -> None:
    timetable = cron(expression, tz)
    first = timetable.after(moment)
    assert first is not None
    assert first > moment
    now = first + timedelta(hours=hours)
    walked = [first]
    while (fire_time := timetable.after(walked[-1])) and fire_time <= now:
        assert fire_time > walked[-1]
        walked.append(fire_time)
    found, upcoming = timetable.due(first, now, most)
    assert found == walked[-most:]
    assert upcoming == fire_time


@given(MOMENTS, st.integers(1, 10**7), st.integers(0, 10**8), st.integers(1, 9))
def test_interval_fire_times_are_aligned_to_the_anchor(
    moment: datetime, seconds: int, later: int, most: int
) -> None:
    every = timedelta(seconds=seconds)
    timetable = Timetable(None, every, "UTC", ANCHOR)
    first = timetable.after(moment)
    assert first is not None
    assert (first > moment, first - every <= moment) == (True, True)
    assert (first - ANCHOR) % every == timedelta(0)
    now = first + timedelta(seconds=later)
    found, upcoming = timetable.due(first, now, most)
    last = first + (now - first) // every * every
    assert (found[-1], upcoming) == (last, last + every)
    assert found == [
        last - every * place for place in reversed(range(min(most, (last - first) // every + 1)))
    ]


def test_latest_of_many_fire_times_are_found_fast() -> None:
    """The search does not iterate over a year of seconds."""
    first = datetime(2024, 1, 1, tzinfo=UTC)
    now = datetime(2025, 1, 1, 0, 0, 0, 500, tzinfo=UTC)
    found, upcoming = cron("* * * * * *").due(first, now, 1000)
    assert (len(found), found[-1], upcoming) == (
        1000,
        datetime(2025, 1, 1, tzinfo=UTC),
        now.replace(microsecond=0) + timedelta(seconds=1),
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "neither cron nor every"),
        ({"cron": "* * * * *", "every": timedelta(hours=1)}, "both cron and every"),
        ({"cron": "* * * *"}, r"cron is '\* \* \* \*' \(wrong number of fields\)"),
        ({"cron": "61 * * * *"}, r"bad minute"),
        ({"cron": "0 0 30 2 *"}, r"bad day-of-month"),
        ({"cron": "0 0 * 2 MON#5"}, None),
        ({"cron": "*" * 300}, "300 bytes long"),
        ({"cron": ""}, "cron is empty"),
        ({"cron": 5}, "cron is of type int"),
        ({"cron": "@nightly"}, "wrong number of fields"),
        (
            {"every": 60},
            r"every is a number without a unit, got 60; use timedelta\(seconds=60\) or timedelta\(milliseconds=60\)",
        ),
        ({"every": timedelta(milliseconds=10)}, "use at least 1 second"),
        ({"every": timedelta(days=40000)}, "longer than 100 years"),
        ({"cron": "@daily", "tz": "Europe/Wien"}, "did you mean 'Europe/Vi"),
        ({"cron": "@daily", "tz": "Europe"}, "which is not a time zone"),
        ({"cron": "@daily", "tz": "../../etc/passwd"}, "which is not a time zone"),
        ({"cron": "@daily", "missed": "never"}, "missed is 'never'"),
        ({"cron": "@daily", "overlap": "queue"}, "overlap is 'queue'"),
        ({"cron": "@daily", "overlap": "skip", "missed": "all"}, "only the first would run"),
    ],
)
def test_invalid_schedules_are_refused(options: dict[str, Any], problem: str | None) -> None:
    if problem is None:
        assert Schedule("odd", Spec(Report, "all"), **options).cron
        return
    with pytest.raises(UsageError, match=problem):
        Schedule("odd", Spec(Report, "all"), **options)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (Report, "got a type; give a Spec: Spec"),
        (Spec(Report, "all", schedule_in=timedelta(1)), "has schedule_in; leave it out"),
        (Spec(Report, "all", unique_key=b"\xff"), "is of type bytes"),
    ],
)
def test_spec_with_a_time_option_is_refused(spec: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Schedule("odd", spec, cron="@daily")


def test_without_cronsim_only_intervals_work(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "cronsim":
            raise ImportError(name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install 'gen_durable\[cron\]'"):
        Schedule("daily", Spec(Report, "all"), cron="@daily")
    assert Schedule("hourly", Spec(Report, "all"), every=timedelta(hours=1)).every
