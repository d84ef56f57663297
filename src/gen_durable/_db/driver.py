"""The connection of the driver, with a memory that all connections of a process share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import asyncpg

__all__ = ["Connection"]

# Types with numbers below are PostgreSQL's own, and the same in every database of every version.
_FIRST_VARIABLE_OID: Final = 10_000
_known: dict[frozenset[int], Any] = {}
# Nothing was asked, so no statement of that has to be looked after.
_NO_STATEMENT: Final = SimpleNamespace(name="known")


class Connection(asyncpg.Connection):  # type: ignore[misc] # asyncpg ships no types
    """Asks what PostgreSQL's own types are like once per process.

    asyncpg asks on every new connection, several times: most of what a first statement costs. Should a version of it do
    that elsewhere, this is never called.
    """

    async def _introspect_types(self, oids: set[int], *rest: Any) -> Any:
        asked = frozenset(oids)
        if max(asked) >= _FIRST_VARIABLE_OID:
            return await super()._introspect_types(oids, *rest)
        if asked not in _known:
            _known[asked], _ = await super()._introspect_types(oids, *rest)
        return _known[asked], _NO_STATEMENT
