"""Find keys of a mapping that the declared type does not have. A conversion drops them without an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import msgspec

from .._dictionary import did_you_mean
from .roundtrip import fields_of, inner_place, is_array

__all__ = ["unknown_key"]


def unknown_key(given: Any, found: Any, place: str = "$") -> str | None:
    """Compare a mapping with its conversion; name the first dropped key and its place."""
    if given is found:
        return None
    for key, part, other, where in _pairs(given, found, place):
        if other is _DROPPED:
            hint = did_you_mean(key, tuple(_keys(found) or ())) if isinstance(key, str) else ""
            return f"the type does not have this key - at `{where}`{hint}"
        if problem := unknown_key(part, other, where):
            return problem
    return None


_DROPPED = object()


def _pairs(given: Any, found: Any, place: str) -> Iterator[tuple[Any, Any, Any, str]]:
    """Pair the parts of a value with their conversions."""
    if isinstance(given, Mapping):
        keys = _keys(found)
        if keys is not None:
            # A dict drops no key, but a key may change its form ("1" to 1).
            is_complete = isinstance(found, Mapping) and len(found) == len(given)
            others = iter(found.values()) if is_complete else None
            for key, part in given.items():
                other = next(others) if others else _DROPPED
                yield key, part, keys.get(key, other), inner_place(place, key)
    elif is_array(given) and is_array(found) and not isinstance(found, Set):
        for index, (part, other) in enumerate(zip(given, found, strict=False)):
            yield index, part, other, f"{place}[{index}]"


def _keys(found: Any) -> Mapping[Any, Any] | None:
    """Return the accepted keys of a value, with its parts; `None` if its class does not declare any."""
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
    """Return the keys of a pydantic alias: a string, a path, or a choice of both."""
    if alias is None or isinstance(alias, str):
        return [alias] if alias else []
    if hasattr(alias, "choices"):
        return [key for choice in alias.choices for key in _alias_keys(choice)]
    return [alias.path[0]]
