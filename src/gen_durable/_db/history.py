"""Read the committed transitions of an instance."""

from __future__ import annotations

from collections.abc import Sequence

from .plan import Plan, Row, statements

__all__ = ["children", "initial_state", "transitions"]

_SQL = statements("history.sql")


def transitions(id: int, first: int, most: int) -> Plan[Sequence[Row]]:
    """Read the transitions of one instance from number `first` on, at most `most`."""
    return (yield _SQL["transitions"](id=id, first=first, most=most))


def initial_state(id: int) -> Plan[str | None]:
    """Read the state with which an instance was inserted, as JSON; `None` if it was not kept."""
    rows = yield _SQL["initial_state"](id=id)
    return rows[0]["state"] if rows else None


def children(id: int) -> Plan[Sequence[Row]]:
    """Read the ids of the children of one instance, with their rounds."""
    return (yield _SQL["children"](id=id))
