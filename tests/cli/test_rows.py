from __future__ import annotations

from datetime import timedelta

import pytest

from gen_durable.cli.rows import STYLES, age_text, clean, key_text
from gen_durable.instance import Status


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(seconds=-5), "0s"),
        (timedelta(milliseconds=900), "0s"),
        (timedelta(seconds=59.9), "59s"),
        (timedelta(minutes=3, seconds=4), "3m4s"),
        (timedelta(hours=2, seconds=1), "2h1s"),
        (timedelta(days=400, hours=5, minutes=59), "400d5h"),
    ],
)
def test_age_text(age: timedelta, text: str) -> None:
    assert age_text(age) == text


def test_control_characters_are_escaped() -> None:
    assert clean("a\n\x1b[31mb\tc\x9b\u2028\u202ed é 漢") == "a\\n\\x1b[31mb\\tc\\x9b\\u2028\\u202ed é 漢"


def test_binary_key_is_escaped() -> None:
    assert (key_text(None), key_text("ü".encode()), key_text(b"\xff")) == (None, "ü", "\\xff")


def test_every_status_has_a_colour() -> None:
    assert set(STYLES) == set(Status)
