"""Read instances: snapshots, executions, inbox, children and audit events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from .plan import Call, Plan, Row, statements

__all__ = [
    "Filter",
    "audit",
    "children_of",
    "children_summary",
    "count",
    "details",
    "executions",
    "finished_or_parked",
    "get",
    "ids",
    "inbox",
    "now",
    "page",
    "tally",
]

_SQL = statements("snapshots.sql")
# Above every id, for the first page.
_TOP = 2**63 - 1


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which instances; `None`: any. The fields are the parameters of the statements."""

    fsms: list[str] | None = None
    version: int | None = None
    steps: list[str] | None = None
    statuses: list[str] | None = None
    queue: str | None = None
    correlation_key: str | None = None
    unique_key: bytes | None = None
    concurrency_key: str | None = None
    parent_id: int | None = None
    schedule: str | None = None
    inserted_after: datetime | None = None
    inserted_before: datetime | None = None
    with_deleted: bool = False
    only_deleted: bool = False


def get(target: int | str) -> Plan[Row | None]:
    """Read one instance by id or correlation key."""
    call = _SQL["get"](id=target) if isinstance(target, int) else _SQL["get_by_key"](key=target)
    rows = yield call
    return rows[0] if rows else None


def page(wanted: Filter, limit: int, before: int | None) -> Plan[Sequence[Row]]:
    """Read the newest instances with an id below `before`."""
    return (yield _call("list", wanted, before=_TOP if before is None else before, limit=limit))


def ids(wanted: Filter, limit: int, before: int | None) -> Plan[list[int]]:
    """The same, ids only."""
    rows = yield _call("ids", wanted, before=_TOP if before is None else before, limit=limit)
    return [row["id"] for row in rows]


def count(wanted: Filter) -> Plan[int]:
    """Count instances."""
    rows = yield _call("count", wanted)
    number: int = rows[0]["count"]
    return number


def tally(wanted: Filter) -> Plan[Sequence[Row]]:
    """Count instances by machine and status."""
    return (yield _call("tally", wanted))


def children_of(parent_id: int, *, every: bool) -> Plan[Sequence[Row]]:
    """Read the children of one instance, in the order of their specs."""
    return (yield _SQL["children_of"](id=parent_id, every=every))


def executions(id: int) -> Plan[Sequence[Row]]:
    """Read all executions of one instance, oldest first."""
    return (yield _SQL["executions"](id=id))


def details(id: int) -> Plan[Row | None]:
    """Read the columns of one instance that are not in its snapshot."""
    rows = yield _SQL["details"](id=id)
    return rows[0] if rows else None


def inbox(id: int) -> Plan[Sequence[Row]]:
    """Count the unread signals of one instance by name."""
    return (yield _SQL["inbox"](id=id))


def children_summary(id: int) -> Plan[Sequence[Row]]:
    """Read all children of one instance, without states and results."""
    return (yield _SQL["children_summary"](id=id))


def audit(id: int) -> Plan[Sequence[Row]]:
    """Read the audit events of one instance."""
    return (yield _SQL["audit"](id=id))


def now() -> Plan[datetime]:
    """Read the clock of the database."""
    rows = yield _SQL["now"]()
    moment: datetime = rows[0]["now"]
    return moment


def finished_or_parked(waiting: Mapping[int, bool]) -> Plan[Mapping[int, Row | None]]:
    """Of these ids, return those that have ended, or (value `True`) are parked. `None`: the instance does not exist."""
    rows = yield _SQL["finished_or_parked"](ids=list(waiting), parked=list(waiting.values()))
    return {row["wanted_id"]: None if row["id"] is None else row for row in rows}


def _call(name: str, wanted: Filter, **more: object) -> Call:
    """The variant of a statement that uses the index of the most selective filter."""
    if wanted.correlation_key is not None:
        name += "_by_key"
    elif wanted.parent_id is not None:
        name += "_by_parent"
    return _SQL[name](**msgspec.structs.asdict(wanted), **more)
