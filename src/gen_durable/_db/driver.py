"""The connection of the driver, which knows the types of our statements without asking."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Final

import asyncpg

__all__ = ["Connection"]


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
    """Knows the arrays that we send.

    asyncpg asks the server about them on every new connection, several times: most of what a first statement costs.
    Should a version of it do that elsewhere, this is never called.
    """

    async def _introspect_types(self, oids: Iterable[int], *rest: Any) -> Any:
        if _OIDS.issuperset(oids):
            return _ARRAYS, _NO_STATEMENT
        return await super()._introspect_types(oids, *rest)
