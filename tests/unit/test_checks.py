"""Bounds of names, keys, numbers, durations and times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gen_durable import _checks
from gen_durable.config import parse_duration
from gen_durable.errors import OptionError, UsageError


@pytest.mark.parametrize(
    "name", ["a", "billing.invoice_charge.v1", "ключ", "x" * 255, "é" * 127 + "x", "with 'quotes'"]
)
def test_name_of_255_bytes_is_accepted(name: str) -> None:
    assert _checks.checked_name(name, "the name") == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "the name is empty; give 1 to 255 bytes"),
        ("x" * 256, "the name is 256 bytes long; give at most 255 bytes"),
        ("é" * 128, "the name is 256 bytes long"),
        ("a\0b", "the name contains a NUL character"),
        ("a\udfffb", "the name contains a lone surrogate"),
        (7, "the name is of type int; give a str"),
        (None, "the name is of type NoneType"),
    ],
)
def test_invalid_name_is_rejected(name: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _checks.checked_name(name, "the name")
    with pytest.raises(OptionError, match=message):
        _checks.checked_name(name, "the name", OptionError)


def test_key_of_1024_bytes_is_accepted() -> None:
    assert _checks.checked_key("x" * 1024, "key") == "x" * 1024
    with pytest.raises(UsageError, match="1025 bytes"):
        _checks.checked_key("x" * 1025, "key")


@settings(max_examples=50)
@given(st.text())
def test_accepted_name_can_be_sent_to_postgresql(name: str) -> None:
    try:
        kept = _checks.checked_name(name, "the name")
    except UsageError:
        return
    assert kept == name
    assert 1 <= len(kept.encode()) <= 255
    assert "\0" not in kept


@pytest.mark.parametrize("number", [-5, 11, True, 1.0, "1", None])
def test_number_of_another_type_or_range_is_rejected(number: object) -> None:
    with pytest.raises(UsageError, match=r"give (a whole number|a number from -4 to 10)"):
        _checks.checked_int(number, "it", -4, 10)


@pytest.mark.parametrize(
    ("delay", "message"),
    [
        (5, r"is a number without a unit, got 5; use timedelta\(seconds=5\) or timedelta\(milliseconds=5\)"),
        (None, r"is of type NoneType; use timedelta"),
        (timedelta(microseconds=-1), "is negative .*; give zero or more"),
        (timedelta(days=36526), "is longer than 100 years"),
        (timedelta.max, "is longer than 100 years"),
    ],
)
def test_delay_beyond_any_timestamp_is_rejected(delay: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _checks.checked_delay(delay, "the delay")


def test_datetime_is_converted_to_utc() -> None:
    berlin = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=1)))
    moment = _checks.checked_moment(berlin, "the moment")
    assert moment == berlin
    assert moment.tzinfo is UTC


class Vague(tzinfo):
    """A time zone without an offset."""

    def utcoffset(self, _: datetime | None, /) -> None:
        return None

    def dst(self, _: datetime | None, /) -> None:
        return None

    def tzname(self, _: datetime | None, /) -> None:
        return None


NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - the fault that is looked for


@pytest.mark.parametrize(
    "moment",
    [
        NAIVE,
        datetime(2030, 1, 1, tzinfo=Vague()),
        "2030-01-01",
        5,
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
    ],
)
def test_invalid_datetime_is_rejected(moment: Any) -> None:
    with pytest.raises(UsageError, match=r"has no time zone|is of type|out of range"):
        _checks.checked_moment(moment, "the moment")


@pytest.mark.parametrize("id", [0, -1, 2**63, True, "7"])
def test_id_is_a_positive_bigint(id: Any) -> None:
    with pytest.raises(UsageError, match="the id is"):
        _checks.checked_id(id)


@pytest.mark.parametrize("text", ["0s", "0.5ms", "66ms", "2s", "1.5s", "1m30s", "2h", "1d2h3m4.005s"])
def test_duration_is_formatted_as_typed(text: str) -> None:
    assert _checks.duration_text(parse_duration(text)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.065653, "66ms"),
        (0.9996, "1s"),
        (59.9996, "1m"),
        (-1, "-1s"),
        (-0.0005, "-0.5ms"),
        (0.0005, "0.5ms"),
    ],
)
def test_duration_is_formatted_to_the_millisecond(seconds: float, text: str) -> None:
    assert _checks.duration_text(timedelta(seconds=seconds)) == text
