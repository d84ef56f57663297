"""Compare a value with what it decodes to after it was encoded.

Mostly `==` is enough. Where it is not, both values are compared part by part: JSON has one form for a list, a tuple
and a set, and under `Any` a date decodes to its text. Such changes of form are accepted. A field that is not written or
not read is an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Set
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

__all__ = ["change", "dump_model", "fields_of", "inner_place", "is_array", "is_equal"]

_OTHER: Final = (
    "a value of type {} decodes to a different value; do not exclude, rename or change fields when it is encoded or "
    "decoded"
)
_MASKED: Final = "only the mask of a secret is stored; store a reference to the secret instead"
_CLASS: Final = "a value of type {0} decodes to {1}; declare {0}, or store {1}"
_PRIVATE: Final = "private attributes of an attrs class are not stored; rename it without the underscore"
_UNKNOWN: Final = "a key that its TypedDict does not declare would be lost; declare it or remove it"
_ONE_KEY: Final = 'two of its keys are equal in JSON, like 1 and "1"; use keys of one type'

_IDENTITY: Final[Any] = object.__eq__


def is_equal(found: Any, given: Any) -> bool:
    """Whether two values are equal by `==`."""
    try:
        return bool(found == given)
    except Exception:  # noqa: BLE001 - user code; the parts are compared next
        return False


def change(given: Any, found: Any, place: str = "$") -> str | None:
    """Say which part decodes to a different value, and its place; `None` if all parts are equal."""
    if isinstance(given, msgspec.Raw) or is_equal(found, given):
        return None
    if (fields := fields_of(found)) is not None:
        if type(given) is not type(found):
            return _at(_CLASS.format(type(given).__name__, type(found).__name__), place)
        return _change_of_fields(given, fields, place)
    if hasattr(given, "model_dump"):
        return change(dump_model(given), found, place)
    if hasattr(given, "get_secret_value"):
        return _at(_MASKED, place)
    given = _as_mapping(given, found)
    if isinstance(given, Mapping) and isinstance(found, Mapping):
        return _change_of_keys(given, found, place)
    if is_array(given) and is_array(found):
        return _change_of_items(given, found, place)
    return None if _is_form(given, found) else _other(given, place)


def dump_model(model: Any) -> Any:
    """Dump a pydantic model to plain values, as it is encoded."""
    return model.model_dump(by_alias=True, round_trip=True, warnings=False)


def inner_place(place: str, key: Any) -> str:
    """Return the place of a key. A key that is not an identifier may be private data, so it is not named."""
    return f"{place}.{key}" if isinstance(key, str) and key.isidentifier() else f"{place}[...]"


def _change_of_fields(given: Any, found: Mapping[str, Any], place: str) -> str | None:
    for name, part in (fields_of(given) or {}).items():
        where = inner_place(place, name)
        if problem := change(part, found.get(name), where):
            is_unwritten = name.startswith("_") and hasattr(given, "__attrs_attrs__")
            return _at(_PRIVATE, where) if is_unwritten else problem
    return None


def _as_mapping(given: Any, found: Any) -> Any:
    """Return an object as the mapping that it decodes to under `Any`."""
    fields = fields_of(given)
    if fields is None or not isinstance(found, Mapping):
        return given
    # Fields with default values may be omitted, and a tag is not a field.
    return {name: fields.get(name, part) for name, part in found.items()}


def _change_of_keys(given: Mapping[Any, Any], found: Mapping[Any, Any], place: str) -> str | None:
    if len(given) > len(found):
        if not all(isinstance(key, str) for key in given):
            return _at(_ONE_KEY, place)
        return _at(_UNKNOWN, inner_place(place, next(key for key in given if key not in found)))
    if len(given) < len(found):
        return _other(given, place)
    # A key may change its form, but the order stays.
    for (key, part), other in zip(given.items(), found.values(), strict=True):
        if problem := change(part, found.get(key, other), inner_place(place, key)):
            return problem
    return None


def _change_of_items(given: Collection[Any], found: Collection[Any], place: str) -> str | None:
    if len(given) != len(found):
        return _other(given, place)
    if isinstance(found, Set):  # unordered
        texts = [sorted(map(_text, items)) for items in (given, found)]
        return _other(given, place) if texts[0] != texts[1] else None
    for index, (part, other) in enumerate(zip(given, found, strict=True)):
        if problem := change(part, other, f"{place}[{index}]"):
            return problem
    return None


def _other(given: Any, place: str) -> str:
    return _at(_OTHER.format(type(given).__name__), place)


def _at(problem: str, place: str) -> str:
    return f"{problem} - at `{place}`"


def is_array(value: Any) -> bool:
    """Whether a value is encoded as a JSON array."""
    return isinstance(value, Collection) and not isinstance(
        value, str | bytes | bytearray | memoryview | Mapping
    )


def _is_form(given: Any, found: Any) -> bool:
    """Whether a value has changed its form only."""
    if isinstance(given, datetime) and isinstance(found, datetime):
        # In the repeated hour of a time zone, `==` is false for equal moments in two zones.
        is_naive = given.utcoffset() is None
        return is_naive == (found.utcoffset() is None) and given - found == timedelta()
    if type(given) is type(found):
        return type(given).__eq__ is _IDENTITY or _text(given) == _text(found) != b""
    if given is None or isinstance(given, str | int | float):
        return _text(given) == _text(found)
    # Under `Any`: a date as its text, an enum as its number, an object as an array.
    return given is not msgspec.UNSET and isinstance(found, str | int | float | list)


def _text(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError):
        return b""


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of an object by their names in JSON; `None` if its class does not declare fields."""
    cls = type(value)
    if isinstance(value, msgspec.Struct):
        names = zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True)
        return {written: getattr(value, name) for written, name in names}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(cls, "__attrs_attrs__"):
        return {field.name: getattr(value, field.name) for field in cls.__attrs_attrs__}
    if hasattr(cls, "model_fields"):
        declared = {name: part for name, part in vars(value).items() if name in cls.model_fields}
        return declared | (value.__pydantic_extra__ or {}) | (value.__pydantic_private__ or {})
    return None
