"""Bound the size of one statement: PostgreSQL closes a connection that sends a message of 1 GB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

__all__ = ["chunks", "fits"]

# In characters of up to four bytes. Names and keys are not counted: the limit leaves enough margin for them.
_MAX_SIZE: Final = 64 * 2**20


def fits(size: int) -> bool:
    """Whether rows of this size together fit in one statement."""
    return size <= _MAX_SIZE


def chunks(sizes: Iterable[int]) -> Iterator[slice]:
    """Split rows of these sizes into consecutive chunks. A row above the limit is a chunk of its own."""
    start = total = 0
    for place, size in enumerate(sizes):
        total += size
        if place > start and not fits(total):
            yield slice(start, place)
            start, total = place, size
    yield slice(start, None)
