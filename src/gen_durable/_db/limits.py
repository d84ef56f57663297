"""Read and change concurrency and rate limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..limits import ConcurrencyLimit, Limit, LimitKind, RateLimit
from .plan import Plan, Row, statements

__all__ = ["insert_missing", "list_limits", "put", "remove"]

_SQL = statements("limits.sql")


def list_limits() -> Plan[list[Limit]]:
    """All limits, by name."""
    return [_limit(row) for row in (yield _SQL["ls"]())]


def put(limit: Limit, reason: str | None = None, actor: str | None = None) -> Plan[None]:
    """Set a limit; rows that wait for it become due again."""
    yield _SQL["put"](only_if_new=False, reason=reason, actor=actor, **_values(limit))


def insert_missing(limits: Sequence[Limit]) -> Plan[None]:
    """Set limits that do not exist yet. A value that was changed at run time survives a restart."""
    if not limits:
        return
    rows = yield _SQL["missing"](
        kinds=[limit.kind for limit in limits], names=[limit.name for limit in limits]
    )
    missing = {(row["kind"], row["name"]) for row in rows}
    for limit in limits:
        if (limit.kind, limit.name) in missing:
            yield _SQL["put"](only_if_new=True, reason=None, actor=None, **_values(limit))


def remove(
    name: str, kind: LimitKind | None, reason: str | None = None, actor: str | None = None
) -> Plan[bool]:
    """Remove a limit (`kind=None`: both of that name); return whether there was one."""
    (row,) = yield _SQL["remove"](name=name, kind=kind, reason=reason, actor=actor)
    return bool(row["is_gone"])


def _values(limit: Limit) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(("slots", "allowed", "period", "burst"))
    if isinstance(limit, ConcurrencyLimit):
        values["slots"] = limit.slots
    else:
        values.update(allowed=limit.allowed, period=limit.per, burst=limit.burst)
    return {"name": limit.name, "kind": limit.kind, **values}


def _limit(row: Row) -> Limit:
    if row["kind"] == "concurrency":
        return ConcurrencyLimit(row["name"], row["slots"])
    return RateLimit(row["name"], row["allowed"], row["period"], row["burst"])
