"""The connection of the driver: it knows the types of our statements, and how long it waits for an answer."""

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
    """What the driver would be told about an array of one of PostgreSQL's own types."""
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


# Their numbers are the same in every database of every version. text[] the driver knows by itself.
_ARRAYS: Final = (
    _array(1000, "_bool", 16),
    _array(1001, "_bytea", 17),
    _array(1007, "_int4", 23),
    _array(1016, "_int8", 20),
    _array(1185, "_timestamptz", 1184),
    _array(1187, "_interval", 1186),
)
_OIDS: Final = frozenset(array["oid"] for array in _ARRAYS)
# Nothing was asked, so no statement of that has to be looked after.
_NO_STATEMENT: Final = SimpleNamespace(name="known")


class Connection(asyncpg.Connection):  # type: ignore[misc] # asyncpg ships no types
    """Knows the arrays that we send, and notes what it waits for."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.made_at = time.monotonic()
        self.asked_at: float | None = None
        """Since when (monotonic) a statement has had no answer."""
        self.seen_at = 0.0
        """When the server last said that it works on that statement."""
        self._silence: float | None = None

    def keep_alive(self, values: Mapping[str, int]) -> None:
        """Let the kernel end the connection when its peer is gone."""
        keep_alive(self._transport.get_extra_info("socket"), values)

    def cut(self, seconds: float) -> None:
        """End a connection that was silent for this time. The pending call raises a `TimeoutError`."""
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
        # The driver refuses a second statement while one runs; the first one still waits then.
        asked_at = self.asked_at
        self.asked_at = asked_at or time.monotonic()
        try:
            return await statement
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            if self._silence is None:
                raise
            raise TimeoutError(f"no answer for {self._silence:.1f} s") from None
        finally:
            self.asked_at = asked_at

    # asyncpg asks the server about arrays on every new connection, several times: most of what a first statement costs.
    # Should a version of it do that elsewhere, this is never called.
    async def _introspect_types(self, oids: Iterable[int], *rest: Any) -> Any:
        if _OIDS.issuperset(oids):
            return _ARRAYS, _NO_STATEMENT
        return await super()._introspect_types(oids, *rest)
