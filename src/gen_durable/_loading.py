"""Content that a pick leaves in the database: payloads, states and results beyond its budget, fetched on demand.

This module imports no event loop: the runtime passes in how a thread waits for a fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

__all__ = ["NOT_LOADED", "LiveChildError", "Loader", "Wait", "chunks"]

T = TypeVar("T")
_SizedT = TypeVar("_SizedT", bound="_Sized")

Wait: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Any]
"""Run a coroutine on the event loop of the execution, from a thread of its own, and wait for its result."""

# What one statement fetches. Sizes are those of compressed values, which expand to at most a hundred times as much in
# practice; no value is larger than a few MiB.
_CHUNK_BYTES: Final = 16 * 2**20
_CHUNK_ROWS: Final = 1000
_EXPANSION: Final = 100
_MOST: Final = 2 * 2**20


class _NotLoaded:
    def __repr__(self) -> str:
        return "NOT_LOADED"


NOT_LOADED: Final = _NotLoaded()
"""In place of a payload, state or result that is still in the database only."""


class LiveChildError(Exception):
    """A child was retried while the step that joins loaded its result: the instance has to wait for it again."""


class Loader(Generic[T]):
    """Fetches content by id, for one execution."""

    __slots__ = ("_fetch", "_wait")

    def __init__(
        self, fetch: Callable[[Sequence[int]], Coroutine[Any, Any, Mapping[int, T]]], wait: Wait
    ) -> None:
        self._fetch = fetch
        self._wait = wait

    async def fetch(self, ids: Sequence[int]) -> Mapping[int, T]:
        """Fetch the content of these."""
        return await self._fetch(ids)

    def fetch_sync(self, ids: Sequence[int]) -> Mapping[int, T]:
        """The same from a thread."""
        found: Mapping[int, T] = self._wait(self._fetch(ids))
        return found


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


def chunks(items: Sequence[_SizedT]) -> Iterator[list[_SizedT]]:
    """Cut items, in their order, into lists that one statement may fetch."""
    chunk: list[_SizedT] = []
    total = 0
    for item in items:
        size = min(item.size * _EXPANSION, max(_MOST, item.size))
        if chunk and (total + size > _CHUNK_BYTES or len(chunk) == _CHUNK_ROWS):
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += size
    if chunk:
        yield chunk
