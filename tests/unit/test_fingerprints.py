"""Messages of errors without numbers, ids and quoted values."""

from __future__ import annotations

import pytest

from gen_durable._core.fingerprints import masked


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("KeyError: 'capture_id'", "KeyError: '…'"),
        ('no "a b" here', 'no "…" here'),
        ("tenant 13: api key revoked", "tenant #: api key revoked"),
        ("postcode EC1A 1BB refused", "postcode # # refused"),
        ("can't open file 'x'", "can't open file '…'"),
        ("at 0x7f3a91", "at #"),
        ("order 3f2504e0-4f89-11d3-9a0c-0305e82c3301 lost", "order # lost"),
        ("no answer in 1.5 s", "no answer in # s"),
        ("mail to ann@x.example bounced", "mail to … bounced"),
        ("first line 1\nsecond line", "first line #"),
        ("12345", "#"),
        ("  ", ""),
        (None, ""),
    ],
)
def test_variable_parts_are_left_out(message: str | None, text: str) -> None:
    assert masked(message) == text


def test_long_messages_are_cut_between_words() -> None:
    assert masked("x" * 90 + " 1 " + "y" * 300) == "x" * 90 + " #"
