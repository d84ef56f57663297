"""What goes in one statement: PostgreSQL ends a connection that sends it a message of a gigabyte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

__all__ = ["chunks", "fits"]

# In characters, of which each is up to four bytes. Names and keys are not counted one by one: there is room for them.
_MAX_SIZE: Final = 64 * 2**20


def fits(size: int) -> bool:
    """Whether so much goes in one portion."""
    return size <= _MAX_SIZE


def chunks(sizes: Iterable[int]) -> Iterator[slice]:
    """Cut rows of these sizes, in their order, into portions; one that is too large by itself goes alone."""
    start = total = 0
    for place, size in enumerate(sizes):
        total += size
        if place > start and not fits(total):
            yield slice(start, place)
            start, total = place, size
    yield slice(start, None)
