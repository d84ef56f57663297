"""Keys of a mapping that the declared type does not have: a conversion would drop them without an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import msgspec

from gen_durable._dictionary import did_you_mean

from .roundtrip import fields_of, inner_place, is_array

__all__ = ["unknown_key"]


def unknown_key(given: Any, found: Any, place: str = "$") -> str | None:
    """Compare a mapping with what was converted from it; name the first key that was dropped, and its place."""
    if given is found:
        return None
    for key, part, other, where in _pairs(given, found, place):
        if other is _NOTHING:
            hint = did_you_mean(key, tuple(_keys(found) or ())) if isinstance(key, str) else ""
            return f"the type does not have this key - at `{where}`{hint}"
        if problem := unknown_key(part, other, where):
            return problem
    return None


_NOTHING = object()


def _pairs(given: Any, found: Any, place: str) -> Iterator[tuple[Any, Any, Any, str]]:
    """The parts of a value beside what became of them."""
    if isinstance(given, Mapping):
        keys = _keys(found)
        if keys is not None:
            # In a dict a key may have changed its form ("1" to 1), but none is dropped.
            is_complete = isinstance(found, Mapping) and len(found) == len(given)
            others = iter(found.values()) if is_complete else None
            for key, part in given.items():
                other = next(others) if others else _NOTHING
                yield key, part, keys.get(key, other), inner_place(place, key)
    elif is_array(given) and is_array(found) and not isinstance(found, Set):
        for index, (part, other) in enumerate(zip(given, found, strict=False)):
            yield index, part, other, f"{place}[{index}]"


def _keys(found: Any) -> Mapping[Any, Any] | None:
    """The keys from which a value can be read, with its parts; `None` if its class does not declare any."""
    if isinstance(found, Mapping):
        return found
    fields = fields_of(found)
    if fields is None:
        return None
    if isinstance(found, msgspec.Struct):
        tag = found.__struct_config__.tag_field
        return fields if tag is None else {**fields, tag: None}
    if hasattr(type(found), "model_fields"):
        return fields | {
            key: fields.get(name)
            for name, field in type(found).model_fields.items()
            for alias in (field.alias, field.validation_alias)
            for key in _alias_keys(alias)
        }
    return fields


def _alias_keys(alias: Any) -> list[str]:
    """The keys of a pydantic alias: a text, a path into the mapping, or a choice of both."""
    if alias is None or isinstance(alias, str):
        return [alias] if alias else []
    if hasattr(alias, "choices"):
        return [key for choice in alias.choices for key in _alias_keys(choice)]
    return [alias.path[0]]
