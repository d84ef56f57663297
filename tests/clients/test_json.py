"""JSON values round-trip through jsonb or are rejected."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gen_durable import AsyncClient, Context, Done, Machine, Outcome, step
from gen_durable.errors import EncodeError

SPARE = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
TEXTS = st.text(max_size=20)  # including NUL and lone surrogates, which are rejected
LEAVES = st.none() | st.booleans() | st.integers(-(10**399), 10**399) | st.floats() | TEXTS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4)
)


class Open(Machine[dict[str, Any], Any]):
    @step
    async def only(self, ctx: Context[dict[str, Any]]) -> Outcome[Any]:
        return Done(ctx.state)


class Sample(msgspec.Struct):
    number: float
    count: int
    text: str


class Typed(Machine[Sample, None]):
    @step
    async def only(self, ctx: Context[Sample]) -> Outcome[None]:
        return Done()


@pytest.fixture
async def one_client(durable_dsn: str) -> AsyncIterator[AsyncClient]:
    """One client for all examples of a test."""
    async with AsyncClient(durable_dsn) as opened:
        yield opened


@given(VALUES)
@example({"a": 1e23, "b": -0.0, "c": 5e-324, "d": 1.7976931348623157e308})
@example({"": {"": [[], {}, None]}})
@example("\\u0000 \\ud800 \x7f\u2028\ufffe")
@SPARE
async def test_any_json_value_round_trips_or_is_rejected(one_client: AsyncClient, value: Any) -> None:
    try:
        inserted = await one_client.insert(Open, {"value": value})
    except EncodeError:
        assert not is_storable(value)
        return
    assert is_storable(value)
    found = await one_client.get(inserted)
    assert found is not None
    assert same(found.state["value"], value)


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**63), 2**63 - 1),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
)
@example(1e23, 0, "")
@SPARE
async def test_typed_values_round_trip_exactly(
    one_client: AsyncClient, number: float, count: int, text: str
) -> None:
    found = await one_client.get(await one_client.insert(Typed, Sample(number, count, text)))
    assert found is not None
    assert found.state == Sample(number, count, text)
    assert isinstance(found.state.number, float)


def is_storable(value: Any) -> bool:
    if isinstance(value, dict):
        return all(is_storable(part) for item in value.items() for part in item)
    if isinstance(value, list):
        return all(map(is_storable, value))
    if isinstance(value, str):
        return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)
    return not isinstance(value, float) or math.isfinite(value)


def same(found: Any, given: Any) -> bool:
    """Equal, except that jsonb returns a large float without a fraction as an int."""
    if isinstance(given, dict):
        return found.keys() == given.keys() and all(same(found[key], given[key]) for key in given)
    if isinstance(given, list):
        return len(found) == len(given) and all(map(same, found, given))
    if isinstance(given, float):
        return float(found) == given
    return type(found) is type(given) and bool(found == given)
