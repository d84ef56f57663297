"""Read the facts that decide whether an instance can run."""

from __future__ import annotations

from .plan import Plan, Row, statements

__all__ = ["facts"]

_SQL = statements("explain.sql")


def facts(id: int) -> Plan[Row | None]:
    """Read all facts in one statement; `None` if the instance does not exist."""
    rows = yield _SQL["explain"](id=id)
    return rows[0] if rows else None
