"""An asyncpg connection that knows the array types of our statements, and since when it waits for a reply."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import asyncpg

from .reply_timeouts import keep_alive

__all__ = ["Connection"]

T = TypeVar("T")


def _array(oid: int, name: str, element: int) -> dict[str, Any]:
    """The description of an array type, as asyncpg would read it from the server."""
    return {
        "oid": oid,
        "ns": "pg_catalog",
        "name": name,
        "kind": b"b",
        "elemtype": element,
        "elemdelim": b",",
        "basetype": None,
        "range_subtype": None,
        "attrtypoids": None,
    }


# The OIDs are the same in every version. asyncpg knows text[] already.
_ARRAYS: Final = (
    _array(1000, "_bool", 16),
    _array(1001, "_bytea", 17),
    _array(1007, "_int4", 23),
    _array(1016, "_int8", 20),
    _array(1185, "_timestamptz", 1184),
    _array(1187, "_interval", 1186),
)
_OIDS: Final = frozenset(array["oid"] for array in _ARRAYS)
# asyncpg expects the statement that read the types; there was none.
_NO_STATEMENT: Final = SimpleNamespace(name="known")


class Connection(asyncpg.Connection):  # type: ignore[misc] # asyncpg ships no types
    """Knows the array types that we send, and records since when it waits for a reply."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.made_at = time.monotonic()
        self.asked_at: float | None = None
        """Monotonic time at which the pending statement was sent; `None`: no statement is pending."""
        self.seen_at = 0.0
        """Monotonic time at which the server last reported that it runs the statement."""
        self._silence: float | None = None

    def keep_alive(self, values: Mapping[str, int]) -> None:
        """Set TCP keepalive."""
        keep_alive(self._transport.get_extra_info("socket"), values)

    def cut(self, seconds: float) -> None:
        """Terminate a connection that was silent for this time. The pending call raises `TimeoutError`."""
        self._silence = seconds
        self.terminate()

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        return await self._answer(super().execute(query, *args, timeout=timeout))

    async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
        return await self._answer(super().fetch(query, *args, **options))

    async def fetchrow(self, query: str, *args: Any, **options: Any) -> Any:
        return await self._answer(super().fetchrow(query, *args, **options))

    async def fetchval(self, query: str, *args: Any, **options: Any) -> Any:
        return await self._answer(super().fetchval(query, *args, **options))

    async def _answer(self, statement: Awaitable[T]) -> T:
        # asyncpg refuses a second statement while one runs; keep the time of the first.
        asked_at = self.asked_at
        self.asked_at = asked_at or time.monotonic()
        try:
            return await statement
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            if self._silence is None:
                raise
            raise TimeoutError(f"no reply for {self._silence:.1f} s") from None
        finally:
            self.asked_at = asked_at

    # asyncpg queries the array types several times per connection, which is most of the cost of a first statement.
    # A version of asyncpg that does this elsewhere never calls this method.
    async def _introspect_types(self, oids: Iterable[int], *rest: Any) -> Any:
        if _OIDS.issuperset(oids):
            return _ARRAYS, _NO_STATEMENT
        return await super()._introspect_types(oids, *rest)
