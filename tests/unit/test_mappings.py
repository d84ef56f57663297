"""A mapping is converted strictly to the declared type: `insert(Checkout, {"order": 42})`."""

from __future__ import annotations

from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NotRequired, TypedDict

import attrs
import msgspec
import pytest
from pydantic import BaseModel, Field

from gen_durable._core.codec import convert, decode, encode
from gen_durable.errors import EncodeError
from tests.unit.state_types import Line, Order, Point, Tree

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Renamed(msgspec.Struct, rename="camel"):
    order_id: int
    is_paid: bool = False


class Tagged(msgspec.Struct, tag="card"):
    number: str


class Cash(msgspec.Struct, tag="cash"):
    cents: int


class Aliased(BaseModel):
    order_id: int = Field(alias="orderId")
    when: datetime | None = None


class Wide(BaseModel, extra="allow"):
    id: int


class Cart(TypedDict):
    order: Order
    point: NotRequired[Point]


class Holder(msgspec.Struct):
    model: Aliased
    by_number: dict[int, Line] = {}


@attrs.define
class Box:
    width: int


@pytest.mark.parametrize(
    ("given", "type_", "converted"),
    [
        ({"id": 1}, Order, Order(1)),
        ({"id": 1}, Order | None, Order(1)),
        (MappingProxyType({"id": 1}), Order, Order(1)),
        ({"id": 1, "lines": [{"sku": "a", "price": 2}]}, Order, Order(1, [Line("a", 2.0)])),
        ({"id": 1, "lines": [Line("a", 2.0)]}, Order, Order(1, [Line("a", 2.0)])),
        ({"children": [{"children": []}]}, Tree, Tree([Tree()])),
        ({"x": 1, "y": None}, Point, Point(1)),
        ({"width": 1}, Box, Box(1)),
        ({"orderId": 1, "isPaid": True}, Renamed, Renamed(1, True)),
        ({"type": "cash", "cents": 5}, Tagged | Cash, Cash(5)),
        ({"cents": 5}, Cash, Cash(5)),
        ({"type": "cash", "cents": 5}, Cash, Cash(5)),
        ({"orderId": 1, "when": NOON.isoformat()}, Aliased, Aliased(orderId=1, when=NOON)),
        ({"orderId": 1, "when": NOON}, Aliased, Aliased(orderId=1, when=NOON)),
        ({"id": 1, "more": 2}, Wide, Wide(id=1, more=2)),  # type: ignore[call-arg]
        ({"order": {"id": 1}, "point": {"x": 2}}, Cart, {"order": Order(1), "point": Point(2)}),
        ({"a": {"id": 1}, "b": Order(2)}, dict[str, Order], {"a": Order(1), "b": Order(2)}),
        (
            {"model": {"orderId": 1}, "by_number": {"7": {"sku": "a", "price": 1.5}}},
            Holder,
            Holder(Aliased(orderId=1), {7: Line("a", 1.5)}),
        ),
        ({"model": Aliased(orderId=1)}, Holder, Holder(Aliased(orderId=1))),
    ],
)
def test_mapping_is_converted_to_the_declared_type(given: Any, type_: Any, converted: Any) -> None:
    found = convert(given, type_, "the state of M")
    assert found == converted
    assert type(found) is type(converted)
    assert decode(encode(found, type_, "the state of M", 2**20), type_, "the state of M") == converted


@pytest.mark.parametrize(
    ("given", "type_", "problem"),
    [
        ({}, Order, "Object missing required field `id`"),
        ({"id": "secret"}, Order, r"Expected `int`, got `str` - at `\$.id`"),
        ({"id": 1.0}, Order, r"Expected `int`, got `float` - at `\$.id`"),
        ({"id": True}, Order, r"Expected `int`, got `bool` - at `\$.id`"),
        ({"id": None}, Order, r"Expected `int`, got `null` - at `\$.id`"),
        (
            {"id": 1, "lines": [{"sku": "a", "price": "secret"}]},
            Order,
            r"Expected `float`, got `str` - at `\$.lines\[0\].price`",
        ),
        ({"id": 1, "linse": []}, Order, r"does not have this key - at `\$.linse`; did you mean 'lines'\?"),
        (
            {"id": 1, "lines": [{"sku": "a", "price": 1, "secret text": 2}]},
            Order,
            r"does not have this key - at `\$.lines\[0\]\[...\]`$",
        ),
        ({"order_id": 1}, Renamed, "Object missing required field `orderId`"),
        ({"orderId": 1, "is_paid": True}, Renamed, r"does not have this key - at `\$.is_paid`"),
        ({"x": 1, "z": 2}, Point, r"does not have this key - at `\$.z`"),
        ({"width": 1, "z": 2}, Box, r"does not have this key - at `\$.z`"),
        ({"cents": 1}, Tagged | Cash, "Object missing required field `type`"),
        ({"orderId": "1"}, Aliased, r"ValidationError while it was decoded, int_type at `\$.orderId`"),
        (
            {"orderId": 1, "wehn": None},
            Aliased,
            r"does not have this key - at `\$.wehn`; did you mean 'when'\?",
        ),
        ({"order": {"id": 1}, "pont": 1}, Cart, r"does not have this key - at `\$.pont`"),
        ({"order": {"id": 1, "z": 2}}, Cart, r"does not have this key - at `\$.order.z`"),
        ({"a": {"id": 1, "z": 2}}, dict[str, Order], r"does not have this key - at `\$.a.z`"),
        ({"model": {"orderId": 1, "z": 2}}, Holder, r"does not have this key - at `\$.model.z`"),
        ({"model": {"orderId": "secret"}}, Holder, "ValidationError while it was decoded"),
    ],
)
def test_mapping_that_does_not_fit_is_rejected(given: Any, type_: Any, problem: str) -> None:
    with pytest.raises(EncodeError, match=problem) as refused:
        convert(given, type_, "the state of M")
    assert str(refused.value).startswith("the state of M cannot be stored as ")
    assert "secret" not in str(refused.value)


def test_cyclic_mapping_is_rejected() -> None:
    class Loose(msgspec.Struct):
        any: Any

    cyclic: dict[str, Any] = {}
    cyclic["any"] = cyclic
    with pytest.raises(EncodeError, match="it is nested too deeply or contains itself"):
        encode(convert(cyclic, Loose, "the state of M"), Loose, "the state of M", 2**20)


@pytest.mark.parametrize(
    ("given", "type_"), [({"a": 1}, dict[str, int]), ({"a": 1}, Any), (1, Order), (Order(1), Order)]
)
def test_other_values_are_not_converted(given: Any, type_: Any) -> None:
    assert convert(given, type_, "the state of M") is given
