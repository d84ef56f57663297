"""Violations of a JSON Schema, as messages name them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from gen_durable._core.schemas import violation


class Item(msgspec.Struct, forbid_unknown_fields=True):
    price: int
    kind: Literal["book", "toy"] = "book"


class Cart(msgspec.Struct):
    items: list[Item]
    note: str | None = None


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"items": []}, None),
        ({"items": [{"price": 1}], "note": None}, None),
        ({}, "at $: the key 'items' is missing"),
        ({"items": [{"price": "1"}]}, "at $.items[0].price: expected integer, got string"),
        ({"items": [{"price": 1, "cost": 2}]}, "at $.items[0]: the key 'cost' is unknown"),
        ({"items": [{"price": 1, "kind": "car"}]}, "at $.items[0].kind: expected one of 'book', 'toy'"),
        (
            {"item": [], "x": 1},
            "at $: the key 'items' is missing; instead of 'item', did you mean 'items'?",
        ),
        (
            {"items": [{"price": 1, "knd": 2}]},
            "at $.items[0]: the key 'knd' is unknown; did you mean 'kind'?",
        ),
        ([], "at $: expected object, got array"),
    ],
)
def test_violation_names_the_place_and_not_the_value(value: Any, problem: str | None) -> None:
    assert violation(value, msgspec.json.schema(Cart)) == problem
