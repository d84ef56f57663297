"""The term under the cursor, and what may stand there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gen_durable._core.query_completion import completion, place_at

VALUES = ["checkout", "shop.checkout", "shop.refund", "two words", "a*"]


@pytest.mark.parametrize(
    ("text", "name", "typed", "replaced"),
    [
        ("|", None, "", ""),
        ("st|", None, "st", "st"),
        ("status:failed | x", None, "", ""),
        ("-st|", None, "st", "st"),
        ("sta|tus:failed", None, "sta", "status:"),
        ("status:|", "status", "", ""),
        ("status:fa|iled", "status", "fa", "failed"),
        ("status:failed,ca|", "status", "ca", "ca"),
        ("status:fai|,done", "status", "fai", "fai"),
        ("-machine:sh|", "machine", "sh", "sh"),
        ('step:"a b|', "step", "a b", '"a b'),
        ('step:"a b,|"', "step", "a b,", '"a b,"'),
        ("error:~ti|", "error", "ti", "ti"),
        ("age:>|", "age", "", ""),
        ("key:order:4|", "key", "order:4", "order:4"),
    ],
)
def test_place_at_the_cursor(text: str, name: str | None, typed: str, replaced: str) -> None:
    cursor = text.index("|")
    text = text.replace("|", "")
    place = place_at(text, cursor)
    assert (place.name, place.typed, text[place.start : place.end]) == (name, typed, replaced)


def suggested(text: str, values: Sequence[str] = VALUES) -> list[str]:
    return [one.text for one in completion(place_at(text, len(text)), values).suggestions]


def test_names_are_suggested_first_by_their_beginning() -> None:
    assert suggested("st") == ["step:", "status:", "state:", "stuck:"]
    assert "machine:checkout" in suggested("chec")
    assert len(suggested("")) == 20


def test_values_are_quoted_if_necessary() -> None:
    assert suggested("machine:check") == ["checkout", "shop.checkout"]
    assert suggested("machine:wor") == ['"two words"']
    assert suggested("machine:a*") == ['"a*"']
    assert suggested("status:fa") == ["failed"]
    assert suggested("age:", []) == [">1h"]


def test_steps_are_those_of_the_named_machines() -> None:
    place = place_at("machine:shop.*,checkout step:", 29)
    assert [name for name in VALUES if place.is_of(name)] == ["checkout", "shop.checkout", "shop.refund"]
    assert place_at("step:", 5).is_of("anything")


@given(st.text('":,-.~<>\\ astmchine1', max_size=40) | st.text(max_size=30), st.integers(-3, 50))
def test_any_text_has_a_place(text: str, cursor: int) -> None:
    place = place_at(text, cursor)
    assert 0 <= place.start <= place.end <= len(text)
    completion(place, VALUES)
