"""Compare two JSON values, part by part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ..instance import StateChange

__all__ = ["differences"]


def differences(before: Any, after: Any, path: str = "$") -> Iterator[StateChange]:
    """Yield the parts that differ between two JSON values, in the order of their keys."""
    match before, after:
        case dict(), dict():
            for key in dict.fromkeys((*before, *after)):
                place = (
                    f"{path}.{key}" if key.isidentifier() else f"{path}[{msgspec.json.encode(key).decode()}]"
                )
                if key not in after:
                    yield StateChange(place, "removed", before[key])
                elif key not in before:
                    yield StateChange(place, "added", None, after[key])
                else:
                    yield from differences(before[key], after[key], place)
        case list(), list():
            shared = min(len(before), len(after))
            for index in range(shared):
                yield from differences(before[index], after[index], f"{path}[{index}]")
            for index in range(shared, len(before)):
                yield StateChange(f"{path}[{index}]", "removed", before[index])
            for index in range(shared, len(after)):
                yield StateChange(f"{path}[{index}]", "added", None, after[index])
        case _ if type(before) is not type(after) or before != after:
            yield StateChange(path, "changed", before, after)
