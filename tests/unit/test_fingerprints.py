"""Messages of errors without numbers, ids and quoted values."""

from __future__ import annotations

import pytest

from gen_durable._core.fingerprints import fingerprint


@pytest.mark.parametrize(
    ("message", "text", "pieces"),
    [
        ("KeyError: 'capture_id'", "KeyError: '…'", ("KeyError",)),
        ('no "a b" here', 'no "…" here', ("here",)),
        ("tenant 13: api key revoked", "tenant #: api key revoked", ("tenant", "api key revoked")),
        ("postcode EC1A 1BB refused", "postcode # # refused", ("postcode", "refused")),
        ("can't open file 'x'", "can't open file '…'", ("can't open file",)),
        ("at 0x7f3a91", "at #", ()),
        ("order 3f2504e0-4f89-11d3-9a0c-0305e82c3301 lost", "order # lost", ("order", "lost")),
        ("no answer in 1.5 s", "no answer in # s", ("no answer in",)),
        ("mail to ann@x.example bounced", "mail to … bounced", ("mail to", "bounced")),
        ("first line 1\nsecond line", "first line #", ("first line",)),
        ("12345", "#", ()),
        ("  ", "", ()),
        (None, "", ()),
    ],
)
def test_variable_parts_are_left_out(message: str | None, text: str, pieces: tuple[str, ...]) -> None:
    found = fingerprint(message)
    assert (found.text, found.pieces) == (text, pieces)


def test_pieces_are_parts_of_the_message() -> None:
    message = "x" * 90 + " 1 " + "y" * 300
    found = fingerprint(message)
    assert len(found.text) <= 200
    assert all(piece in message for piece in found.pieces)


def test_pieces_are_few_and_the_longest() -> None:
    words = ["ab", "abcd", "abcde", "abcdef", "abcdefg", "abcdefgh", "abc"]
    assert fingerprint(" 1 ".join(words)).pieces == ("abcd", "abcde", "abcdef", "abcdefg", "abcdefgh")
