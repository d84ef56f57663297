"""Payloads, states and results that exceed the budget of a pick: steps load them on demand.

Independent of the event loop: the runtime passes in how a thread waits for a fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

__all__ = ["NOT_LOADED", "LiveChildError", "Loader", "Wait", "chunks"]

T = TypeVar("T")
_SizedT = TypeVar("_SizedT", bound="_Sized")

Wait: TypeAlias = Callable[[Coroutine[Any, Any, Any], str], Any]
"""Run a coroutine on the event loop of the execution, for a method called in another thread; wait for its result."""

# Bounds of one statement. Sizes are those of compressed values, which in practice expand to at most 100 times as much;
# no value is larger than a few MiB.
_CHUNK_BYTES: Final = 16 * 2**20
_CHUNK_ROWS: Final = 1000
_EXPANSION: Final = 100
_MAX_EXPANDED: Final = 2 * 2**20


class _NotLoaded:
    def __repr__(self) -> str:
        return "NOT_LOADED"


NOT_LOADED: Final = _NotLoaded()
"""In place of a payload, state or result that has not been loaded."""


class LiveChildError(Exception):
    """A child was retried while the joining step loaded its result. The instance has to wait for it again."""


class Loader(Generic[T]):
    """Loads content by id, for one execution."""

    __slots__ = ("_fetch", "_wait")

    def __init__(
        self, fetch: Callable[[Sequence[int]], Coroutine[Any, Any, Mapping[int, T]]], wait: Wait
    ) -> None:
        self._fetch = fetch
        self._wait = wait

    async def fetch(self, ids: Sequence[int]) -> Mapping[int, T]:
        """Load content by id."""
        return await self._fetch(ids)

    def fetch_sync(self, ids: Sequence[int], method: str) -> Mapping[int, T]:
        """Load content by id, for a method called in a thread."""
        found: Mapping[int, T] = self._wait(self._fetch(ids), method)
        return found


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


def chunks(items: Sequence[_SizedT]) -> Iterator[list[_SizedT]]:
    """Split items, in order, into lists that one statement may fetch."""
    chunk: list[_SizedT] = []
    total = 0
    for item in items:
        size = min(item.size * _EXPANSION, max(_MAX_EXPANDED, item.size))
        if chunk and (total + size > _CHUNK_BYTES or len(chunk) == _CHUNK_ROWS):
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += size
    if chunk:
        yield chunk
