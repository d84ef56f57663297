"""The parts of a declared type, as msgspec reports them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec.inspect as shapes

__all__ = ["model_reader", "parts", "unsupported_types"]


def parts(type_: Any) -> Iterator[shapes.Type]:
    """Yield a type and all types in it, each once; a type may contain itself. `object` counts as `Any`."""
    seen: set[int] = set()
    waiting: list[object] = [shapes.type_info(type_)]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, tuple):
            waiting.extend(part)
        elif isinstance(part, shapes.Type | shapes.Field):
            waiting.extend(getattr(part, name) for name in part.__struct_fields__ if name != "default")
        if isinstance(part, shapes.CustomType) and part.cls is object:
            yield shapes.AnyType()
        elif isinstance(part, shapes.Type):
            yield part


def unsupported_types(type_: Any) -> list[Any]:
    """Return the classes in a type that cannot be stored as JSON."""
    return [
        part.cls
        for part in parts(type_)
        if isinstance(part, shapes.CustomType) and model_reader(part.cls) is None
    ]


def model_reader(type_: Any) -> Callable[[str | bytes], Any] | None:
    """Return the function by which a pydantic model decodes JSON; `None` for any other type."""
    return getattr(type_, "model_validate_json", None)
