"""Encoded values can be stored and decoded; others are rejected, without quoting values."""

from __future__ import annotations

import base64
import enum
import json
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType, Protocol, TypedDict
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, PrivateAttr, RootModel, SecretStr, field_validator

from gen_durable._core.codec import MAX_DEPTH, MAX_DIGITS, decode, encode
from gen_durable.errors import DecodeError, EncodeError, PayloadTooLargeError
from tests.unit.state_types import Line, Order, Point, Tree

MEGABYTE = 2**20
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def stored(value: Any, type_: Any = Any, limit: int = MEGABYTE) -> str:
    return encode(value, type_, "the state of M", limit)


def back(value: Any, type_: Any = Any) -> Any:
    return decode(stored(value, type_), type_, "the state of M")


class Row(NamedTuple):
    a: int
    b: str


@attrs.define
class Meter:
    reading: int
    _offset: int = 0


class Inner(BaseModel):
    a: int


class Outer(BaseModel):
    inner: Inner
    anything: Any = None


class Keyed(TypedDict):
    n: int


class Color(enum.Enum):
    RED = "red"


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


UserId = NewType("UserId", int)


class Model:
    """A stand-in for a pydantic model, with the methods that identify one."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def model_dump(self, **_: bool) -> dict[str, Any]:
        return self.fields

    def model_dump_json(self, **options: bool) -> str:
        assert options == {"by_alias": True, "round_trip": True, "warnings": False}
        if "unwritable" in self.fields:
            raise ValueError("secret")
        return msgspec.json.encode(self.fields).decode()

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> Model:
        fields = msgspec.json.decode(text)
        if not isinstance(fields, dict) or "wrong" in fields:
            raise InvalidError
        return cls(**fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and self.fields == other.fields

    __hash__ = None  # type: ignore[assignment]


class InvalidError(ValueError):
    """A stand-in for pydantic's ValidationError, whose text quotes values."""

    def __str__(self) -> str:
        return "secret"

    def errors(self, **_: bool) -> list[dict[str, Any]]:
        return [{"type": "int_parsing", "loc": ("lines", 0)}]


class Holder(msgspec.Struct):
    model: Model
    n: int | None = None


# Round trips


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (Order(1, [Line("a", 1.5), Line("b", 2.0, "blue")]), Order),
        (Point(1, 2.5), Point),
        (Point(1), Point),
        (Row(1, "x"), Row),
        (Keyed(n=1), Keyed),
        (Meter(1), Meter),
        (Outer(inner=Inner(a=1)), Outer),
        (Color.RED, Color),
        (Dog("rex"), Cat | Dog),
        ([Cat(9), Dog("rex")], list[Cat | Dog]),
        (UserId(7), UserId),
        (None, None),
        (None, type(None)),
        (None, Any),
        (None, int | None),
        (7, float),
        (7, Annotated[int, msgspec.Meta(ge=0)]),
        (7, Annotated[int, ["an unhashable note"]]),
        (2**100, int),
        ("x", Literal["x", "y"]),
        (b"\x00\xff", bytes),
        (NOON, datetime),
        (date(2030, 1, 1), date),
        (timedelta(seconds=90), timedelta),
        (Decimal("1.10"), Decimal),
        (uuid.UUID(int=7), uuid.UUID),
        ({1: "a"}, dict[int, str]),
        ({"a", "b"}, set[str]),
        ((1, "x"), tuple[int, str]),
        ([1, 2], Sequence[int]),
        ({"a": [1, None, True, {"b": "ü😀"}]}, dict[str, Any]),
        ({"a": [1, None, 1.5, {"b": "ü"}]}, dict[str, object]),
        ([1, "x", None], Sequence[object]),
        ({"a": 1}, object),
        (None, object),
        (Tree([Tree(), Tree([Tree()])]), Tree),
        (Model(a=1), Model),
        ([Model(a=1)], list[Model]),
        (Model(a=1), Model | None),
        (Holder(Model(a=1)), Holder),
    ],
)
def test_value_round_trips(value: Any, type_: Any) -> None:
    assert back(value, type_) == value
    assert type(back(value, type_)) is type(value) or type_ is float


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), inner, max_size=4
        )
    ),
    max_leaves=15,
)


@settings(max_examples=60)
@given(JSON)
def test_any_json_value_round_trips(value: Any) -> None:
    assert back(value) == value


WILD = st.recursive(
    st.none()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.sampled_from(["\0", "\\u0000", "\\", '"', "\ud83d", "\ud83d\ude00"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=())), inner, max_size=4)
    ),
    max_leaves=15,
)


@settings(max_examples=60)
@given(WILD)
def test_any_value_is_stored_exactly_or_rejected(value: Any) -> None:
    try:
        text = stored(value)
    except EncodeError:
        # json raises a different error for each of these.
        faulty = json.dumps(value)
        assert any(sign in faulty for sign in ("NaN", "Infinity", "\\u0000", "\\ud"))
    else:
        assert json.loads(text) == value
        assert "\0" not in text
        text.encode()


@settings(max_examples=60)
@given(
    st.builds(Order, st.integers(), st.lists(st.builds(Line, st.text(), st.floats(), st.none() | st.text())))
)
def test_typed_state_is_stored_exactly_or_rejected(order: Order) -> None:
    try:
        text = stored(order, Order)
    except EncodeError:
        assert any(
            "\0" in line.sku + (line.note or "") or not math.isfinite(line.price) for line in order.lines
        )
    else:
        assert decode(text, Order, "it") == order


# Values that do not fit the declared type


@pytest.mark.parametrize(
    ("value", "type_", "message"),
    [
        ({"id": 1}, Order, "the state of M cannot be stored as Order: it is of type dict"),
        (Order(1), dict[str, Any], "it is of type Order"),
        (None, Order, "it is of type NoneType"),
        (1, None, "cannot be stored as None: it is of type int"),
        ([1], dict[str, Any], "it is of type list"),
        (7, Annotated[str, msgspec.Meta(max_length=3)], "it is of type int"),
        (True, int, "Expected `int`, got `bool`"),
        (Order("secret"), Order, "Expected `int`, got `str` - at `$.id`"),  # type: ignore[arg-type]
        (Order(1, [Line("a", 1.0), Line(5, 1.0)]), Order, "Expected `str`, got `int` - at `$.lines[1].sku`"),  # type: ignore[arg-type]
        ({"m": "secret"}, Keyed, "Object missing required field `n`"),
        ({"n": "secret"}, Keyed, "Expected `int`, got `str` - at `$.n`"),
        ({"a": "secret"}, dict[str, int], "Expected `int`, got `str` - at `$[...]`"),
        ("secret", Literal["x"], "Invalid enum value"),
        (-5, Annotated[int, msgspec.Meta(ge=0)], "Expected `int` >= 0"),
        ([Cat(9)], list[Dog], "Invalid value - at `$[0].type`"),
        (Model(wrong="secret"), Model, "InvalidError while it was decoded, int_parsing at `$.lines.0`"),
        (
            Holder(Model(wrong="secret")),
            Holder,
            "InvalidError while it was decoded - at `$.model`, int_parsing at",
        ),
        (Model(unwritable="secret"), Model, "Model raised ValueError while it was encoded"),
        (object(), Any, "a value of type object has no form in JSON"),
        ([object()], list[object], "a value of type object has no form in JSON"),
        ({"a": float("nan")}, dict[str, object], "it contains NaN"),
        ({(1, 2): "secret"}, Any, "a key of type tuple has no form in JSON"),
        ({None: "secret"}, Any, "a key of type NoneType has no form in JSON"),
        (1j, complex, "a value of type complex has no form in JSON"),
        (Row(1, 2), Row, "Expected `str`, got `int` - at `$[1]`"),  # type: ignore[arg-type]
    ],
)
def test_value_of_another_type_is_rejected_without_quoting_it(value: Any, type_: Any, message: str) -> None:
    with pytest.raises(EncodeError) as caught:
        stored(value, type_)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


class Strict(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError(f"secret {self.n}")


@pytest.mark.parametrize(
    ("text", "type_", "message"),
    [
        (
            '{"id": "secret"}',
            Order,
            "the state of M does not match Order: Expected `int`, got `str` - at `$.id`",
        ),
        ('"secret"', Color, "does not match Color: Invalid enum value"),
        ('["secret"]', list[Color], "Invalid enum value - at `$[0]`"),
        ('[{"n": -1}]', list[Strict], "ValueError while it was decoded - at `$[0]`"),
        ('{"type": "secret"}', Cat | Dog, "Invalid value - at `$.type`"),
        ("{", Any, "Input data was truncated"),
        ("secret", Any, "JSON is malformed"),
        ("1e400", Any, "Number out of range"),
        ("[" * 100_000, Any, "nested too deeply to be decoded"),
        ('{"wrong": "secret"}', Model, "InvalidError while it was decoded, int_parsing at `$.lines.0`"),
        ('"\ud800"', Any, "UnicodeEncodeError while it was decoded"),
        ("1", complex, "complex"),
    ],
)
def test_json_of_another_type_is_rejected_without_quoting_it(text: str, type_: Any, message: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(text, type_, "the state of M")
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_type_without_json_form_is_named() -> None:
    class Card(msgspec.Struct):
        a: int

    class Cash(msgspec.Struct):
        b: int

    for refused in (lambda: stored(Card(1), Card | Cash), lambda: decode("{}", Card | Cash, "it")):
        with pytest.raises(
            (EncodeError, DecodeError), match=r"that type cannot be used with JSON \(If a type union"
        ):
            refused()


def test_type_with_unresolved_names_is_named() -> None:
    class Broken(msgspec.Struct):
        a: Missing  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(
        EncodeError, match=r"that type cannot be used with JSON \(name 'Missing' is not defined\)"
    ):
        stored(Broken(1), Broken)


class Named(Protocol):
    name: str


def test_protocol_is_not_used_for_instance_checks() -> None:
    with pytest.raises(
        EncodeError, match=r"cannot be decoded from JSON|has no form in JSON|while it was decoded"
    ):
        stored(Dog("rex"), Named)


# What decodes to something else


class Gift(Line):
    ribbon: str = ""


class Bow(Line):
    """A subclass without additional fields."""


class Counted(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        self.n += 1


@dataclass
class Point3(Point):
    z: int = 0


class Box(msgspec.Struct):
    content: Any = None
    lines: Sequence[Line] = ()
    count: int | msgspec.UnsetType = 0
    when: datetime = NOON


class Frozen(msgspec.Struct, frozen=True):
    sku: str


class FrozenGift(Frozen, frozen=True):
    ribbon: str = ""


class Basket(msgspec.Struct):
    gifts: set[Frozen]


class Partial(TypedDict, total=False):
    n: int


class Renamed(BaseModel):
    x: int = Field(0, serialization_alias="other")


class Excluding(BaseModel):
    x: int | None = Field(None, exclude=True)


class Guarded(BaseModel):
    password: SecretStr


class Raised(BaseModel):
    x: int

    @field_validator("x")
    @classmethod
    def more(cls, x: int) -> int:
        return x + 1


class Filled(BaseModel):
    counts: dict[str, int]

    @field_validator("counts")
    @classmethod
    def fill(cls, counts: dict[str, int]) -> dict[str, int]:
        return {"all": 0, **counts}


def emptied() -> Filled:
    model = Filled(counts={})
    model.counts = {}
    return model


class InnerMore(Inner):
    b: int = 0


class Hiding(BaseModel):
    _count: int = PrivateAttr(0)
    _lock: Any = PrivateAttr(default_factory=object)


def hiding(count: int) -> Hiding:
    model = Hiding()
    model._count = count
    return model


SECRET = Guarded(password=SecretStr("secret"))
OTHER = "a value of type int decodes to a different value; do not exclude, rename or change fields"
MASKED = "only the mask of a secret is stored; store a reference to the secret instead"
ODD_ZONE = datetime(2030, 1, 1, tzinfo=timezone(timedelta(seconds=3601)))


@pytest.mark.parametrize(
    ("value", "type_", "message", "place"),
    [
        (
            Gift("secret", 1.0),
            Line,
            "type Gift decodes to Line; declare Gift, or store Line",
            "$",
        ),
        (Bow("secret", 1.0), Line, "type Bow decodes to Line", "$"),
        ([Line("a", 1.0), Gift("a", 1.0)], list[Line], "type Gift decodes to Line", "$[1]"),
        (Order(1, [Gift("a", 1.0)]), Order, "type Gift decodes to Line", "$.lines[0]"),
        (Order(1, [{"sku": "a", "price": 1.0}]), Order, "type dict decodes to Line", "$.lines[0]"),  # type: ignore[list-item]
        (Point3(1, z=2), Point, "type Point3 decodes to Point", "$"),
        ({"a": Point3(1)}, dict[str, Point], "type Point3 decodes to Point", "$.a"),
        ({"ada@example.com": Point3(1)}, dict[str, Point], "type Point3 decodes to Point", "$[...]"),
        (Basket({FrozenGift("a", "red")}), Basket, "type set decodes to a different value", "$.gifts"),
        (Basket([Frozen("a")] * 2), Basket, "type list decodes to a different value", "$.gifts"),  # type: ignore[arg-type]
        (Counted(1), Counted, OTHER, "$.n"),
        (Box(count=msgspec.UNSET), Box, "type UnsetType decodes to a different value", "$.count"),
        (2**53 + 1, float, OTHER, "$"),
        (ODD_ZONE, datetime, "type datetime decodes to a different value", "$"),
        (Box(when=ODD_ZONE), Box, "type datetime decodes to a different value", "$.when"),
        ({1: "secret", "1": "b"}, Any, 'two of its keys are equal in JSON, like 1 and "1"', "$"),
        ({1: "secret", "1": "b"}, dict, "two of its keys are equal in JSON", "$"),
        ({1: "secret", "1": "b"}, dict[int | str, str], "two of its keys are equal in JSON", "$"),
        (Box({"a": [{1: "secret", "1": "b"}]}), Box, "two of its keys are equal in JSON", "$.content.a[0]"),
        (Box(Box({1: "secret", "1": "b"})), Box, "two of its keys are equal in JSON", "$.content.content"),
        (
            {"n": 1, "more": "secret"},
            Partial,
            "a key that its TypedDict does not declare would be lost",
            "$.more",
        ),
        (
            {"n": 1, "a secret": 1},
            Partial,
            "a key that its TypedDict does not declare would be lost",
            "$[...]",
        ),
        (
            Meter(1, offset=2),
            Meter,
            "private attributes of an attrs class are not stored; rename it without the underscore",
            "$._offset",
        ),
        (Renamed(x=5), Renamed, OTHER, "$.x"),
        ([Renamed(x=5)], list[Renamed], OTHER, "$[0].x"),
        (Excluding(x=5), Excluding, OTHER, "$.x"),
        (SECRET, Guarded, MASKED, "$.password"),
        (SECRET, Any, MASKED, "$.password"),
        (Box([SECRET]), Box, MASKED, "$.content[0].password"),
        (Raised(x=1), Raised, OTHER, "$.x"),
        (emptied(), Filled, "type dict decodes to a different value", "$.counts"),
        (InnerMore(a=1, b=2), Inner, "type InnerMore decodes to Inner", "$"),
        (Outer(inner=InnerMore(a=1, b=2)), Outer, "type InnerMore decodes to Inner", "$.inner"),
        (hiding(1), Hiding, OTHER, "$._count"),
    ],
)
def test_value_that_would_change_is_rejected(value: Any, type_: Any, message: str, place: str) -> None:
    with pytest.raises(EncodeError) as caught:
        stored(value, type_)
    assert message in str(caught.value)
    assert str(caught.value).endswith(f" - at `{place}`")
    assert "secret" not in str(caught.value).replace(MASKED, "")


class Lonely(msgspec.Struct, eq=False):
    n: int


class Sparing(msgspec.Struct, omit_defaults=True, tag=True):
    n: int = 0
    m: Any = 0


class Short(msgspec.Struct, array_like=True):
    n: int = 0


class Odd(msgspec.Struct):
    n: int

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("it does not compare")

    __hash__ = None  # type: ignore[assignment]


# The first of two 02:30 in Berlin (fold=0): unequal to any time in another zone.
TWICE = datetime(2030, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))


@pytest.mark.parametrize(
    ("value", "type_", "text"),
    [
        ((1, (2, {3})), Any, "[1,[2,[3]]]"),
        ({1: "a"}, Any, '{"1":"a"}'),
        ({"a": Color.RED, "b": b"x", "c": NOON}, Any, '{"a":"red","b":"eA==","c":"2030-01-01T12:00:00Z"}'),
        (Line("a", 1.0), Any, '{"sku":"a","price":1.0,"note":null}'),
        (["*" * 10, (1, {2})], Any, f'["{"*" * 10}",[1,[2]]]'),
        (TWICE, datetime, '"2030-10-27T02:30:00+02:00"'),
        ({TWICE}, set[datetime], '["2030-10-27T02:30:00+02:00"]'),
        (Decimal("NaN"), Decimal, '"NaN"'),
        (Lonely(1), Lonely, '{"n":1}'),
        (Odd(1), Odd, '{"n":1}'),
        (hiding(0), Hiding, "{}"),
        (Outer(inner=Inner(a=1), anything=(1,)), Outer, '{"inner":{"a":1},"anything":[1]}'),
    ],
)
def test_equal_value_in_another_form_is_stored(value: Any, type_: Any, text: str) -> None:
    assert stored(value, type_) == text


@pytest.mark.parametrize(
    "content",
    [
        (1, {2}, Color.RED, uuid.UUID(int=7), NOON, b"x"),
        {1: (), NOON: [Line("a", 1.0)]},
        Sparing(),
        Sparing(1, (Lonely(1),)),
        [Short(1)],
        Point(1),
        RootModel[list[int]]([1]),
        Outer(inner=Inner(a=1), anything=(1,)),
        msgspec.Raw(b"[1]"),
    ],
)
def test_any_typed_value_comes_back_in_json_form(content: Any) -> None:
    found = back(Box(content, (Line("a", 1.0),)), Box)
    assert found.content == json.loads(stored(content))
    assert found.lines == [Line("a", 1.0)]


# Values that PostgreSQL cannot store


class Sparse(msgspec.Struct):
    x: float | None = None
    raw: msgspec.Raw = msgspec.Raw(b"1")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("wrap", "type_", "place"),
    [
        (lambda x: x, float, "$"),
        (lambda x: x, Any, "$"),
        (lambda x: Line("a", x), Line, "$.price"),
        (lambda x: Order(1, [Line("a", 1.0, None), Line("b", x)]), Order, "$.lines[1].price"),
        (lambda x: Line("a", 1.0, x), Line, "$.note"),
        (Sparse, Sparse, "$.x"),
        (lambda x: Point(1, x), Point, "$.y"),
        (lambda x: {"a": [None, {"b": x}]}, dict[str, Any], "$.a[1].b"),
        (lambda x: {"ada@example.com": x}, Any, "$[...]"),
        (lambda x: Model(a=x), Model, "$.a"),
        (lambda x: Holder(Model(a=x)), Holder, "$.model.a"),
        (lambda x: (1, x), Any, "$[1]"),
    ],
)
def test_nan_and_infinity_are_rejected(wrap: Any, type_: Any, place: str, number: float) -> None:
    with pytest.raises(EncodeError) as caught:
        stored(wrap(number), type_)
    assert "it contains NaN or infinity" in str(caught.value)
    assert str(caught.value).endswith(f" - at `{place}`")


@pytest.mark.parametrize(
    "value", [{"a": None}, {"null": "null"}, [None, 1.5], {"a": (None,)}, Line("null", 1.0)]
)
def test_null_is_accepted(value: Any) -> None:
    assert "null" in stored(value)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("a\0b", "`$`"),
        ({"a": ["", "\0"]}, "`$.a[1]`"),
        ({"a": {"x\0y": 1}}, "a key of `$.a`"),
        (Line("\0", 1.0), "`$.sku`"),
        (Model(a="\0"), "`$.a`"),
        ({"a\\u0000": "\\\0"}, "`$[...]`"),
    ],
    ids=["text", "list", "key", "struct", "model", "escaped"],
)
def test_nul_character_is_rejected(value: Any, place: str) -> None:
    with pytest.raises(EncodeError) as caught:
        stored(value)
    assert str(caught.value).endswith(
        f"it contains a NUL character, which PostgreSQL cannot store; remove it - at {place}"
    )


@pytest.mark.parametrize(
    "text", ["\\u0000", "\\\\u0000", "\x01\x1f\x7f", "\\ud800", "\\\\ud83d", "😀", "\u2028"]
)
def test_escaped_backslash_is_not_taken_for_an_escape(text: str) -> None:
    assert back({text: text}) == {text: text}


@pytest.mark.parametrize("half", ["\ud800", "a\udfff", "\ude00\ud83d"])
def test_lone_surrogate_is_rejected(half: str) -> None:
    for value, place in ((half, "`$`"), ({"a": [half]}, "`$.a[0]`"), ({half: 1}, "a key of `$`")):
        with pytest.raises(EncodeError) as caught:
            stored(value)
        assert "it contains a lone surrogate" in str(caught.value)
        assert str(caught.value).endswith(f" - at {place}")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (rb'"\ud800"', "a lone surrogate"),
        (rb'"\udc00"', "a lone surrogate"),
        (rb'"\ud83dx\ude00"', "a lone surrogate"),
        (rb'"\ud83d\ud83d\ude00"', "a lone surrogate"),
        (rb'"\ud83d\n\ude00"', "a lone surrogate"),
        (rb'"\uD83D\u0000"', "NUL"),
        (b"1e100000", "is not valid JSON"),
        (b"nonsense", "is not valid JSON"),
        (b"1" * 500, "digits"),
        (b"0." + b"0" * 500, "digits"),
        (b"[" * 101 + b"]" * 101, "more than 100"),
    ],
)
def test_raw_json_is_checked(raw: bytes, message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        stored(Sparse(raw=msgspec.Raw(raw)), Sparse)


def test_raw_json_is_checked_in_untyped_fields() -> None:
    for raw, message in (
        (b"nonsense", "malformed"),
        (b"1e100000", "out of range"),
        (b"[" * 10**5, "more than 100"),
    ):
        with pytest.raises(EncodeError, match=message):
            stored([None, msgspec.Raw(raw)])
    assert stored([None, msgspec.Raw(b"null")]) == "[null,null]"


def test_escaped_surrogate_pair_is_accepted() -> None:
    text = stored(Sparse(1.0, msgspec.Raw(rb'"\ud83d\ude00"')), Sparse)
    assert json.loads(text)["raw"] == "😀"


def nested(depth: int, kind: str) -> Any:
    value: Any = [] if kind == "list" else {}
    for _ in range(depth - 1):
        value = [value] if kind == "list" else {"a": value}
    return value


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_nesting_is_bounded_at_100_levels(kind: str) -> None:
    assert back(nested(MAX_DEPTH, kind)) == nested(MAX_DEPTH, kind)
    with pytest.raises(EncodeError, match="it is nested more than 100 levels deep; flatten it"):
        stored(nested(MAX_DEPTH + 1, kind))


def test_many_siblings_are_not_nesting() -> None:
    broad = [{"a": [[], {}], "b": '[[[[{"\\'} for _ in range(500)]
    assert back(broad) == broad
    with pytest.raises(EncodeError, match="more than 100"):
        stored([*broad, nested(MAX_DEPTH, "list")])


def test_brackets_in_strings_do_not_count_as_nesting() -> None:
    value: Any = ["]"]
    for _ in range(MAX_DEPTH):
        value = ["]", value, "["]
    with pytest.raises(EncodeError, match="more than 100"):
        stored(value)


def test_cyclic_value_is_rejected() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for value in (loop, ["\ud800", loop], {"a": loop}):
        with pytest.raises(EncodeError, match=r"contains itself|surrogate"):
            stored(value)
    deep = Tree()
    for _ in range(5000):
        deep = Tree([deep])
    with pytest.raises(EncodeError, match="nested too deeply or contains itself"):
        stored(deep, Tree)


def test_integers_are_bounded_at_400_digits() -> None:
    longest = 10**MAX_DIGITS - 1
    assert back([longest, -longest, "9" * 1000]) == [longest, -longest, "9" * 1000]
    for number in (10**MAX_DIGITS, -(10**MAX_DIGITS), 10**5000):
        with pytest.raises(
            EncodeError, match="it contains a number of more than 400 digits; store it as a string"
        ):
            stored({"n": number})


@pytest.mark.parametrize("number", [1.7976931348623157e308, 5e-324, 1e22, 0.1, -2.5])
def test_every_float_is_accepted(number: float) -> None:
    assert back([number] * 100) == [number] * 100


def test_payload_bound_counts_bytes_of_json() -> None:
    assert stored("é", limit=4) == '"é"'
    with pytest.raises(PayloadTooLargeError, match="it is 4 bytes of JSON, 3 are allowed") as caught:
        stored("é", limit=3)
    assert (caught.value.size, caught.value.limit) == (4, 3)


def test_bytes_and_str_are_distinguished() -> None:
    assert stored(b"\x00", bytes) == f'"{base64.b64encode(bytes(1)).decode()}"'
    assert decode(b'{"n": 1}', Keyed, "it") == {"n": 1}
