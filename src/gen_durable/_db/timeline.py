"""Read what happened to one instance."""

from __future__ import annotations

from .plan import Plan, Rows, statements

__all__ = ["timeline"]

_SQL = statements("timeline.sql")


def timeline(id: int, most: int) -> Plan[Rows]:
    """Read the newest rows of each source, in one statement; not sorted."""
    return (yield _SQL["timeline"](id=id, most=most))
