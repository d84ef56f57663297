"""The facts about one instance that may keep it from running."""

from __future__ import annotations

from .plan import Plan, Row, statements

__all__ = ["facts"]

_SQL = statements("explain.sql")


def facts(id: int) -> Plan[Row | None]:
    """All of them, in one statement."""
    rows = yield _SQL["explain"](id=id)
    return rows[0] if rows else None
