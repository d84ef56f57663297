"""Find instances by filters: pages, ids and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Final, Literal, TypeAlias

import msgspec

from .plan import Call, Plan, Row, Statement, fill, parts, statements

__all__ = ["Filter", "count", "ids", "page", "statement", "tally"]

Read: TypeAlias = Literal["page", "ids", "count", "tally"]

_SQL = statements("search.sql")
_PARTS = parts("search.sql")
# Above every id, for the first page.
_TOP: Final = 2**63 - 1
# The time that a statement may take between its timestamp and its first new id.
_SLACK: Final = timedelta(hours=1)
# Sources by the most selective field that is given.
_BY_FIELD: Final = {
    "correlation_key": ("by_correlation_key",),
    "unique_key": ("by_unique_key", "by_former_unique_key"),
    "parent_id": ("by_parent",),
    "schedule": ("by_schedule",),
    "compensating": ("by_compensation",),
    "concurrency_key": ("by_concurrency_key", "runnable_by_concurrency_key", "executing"),
}
# Fields of the index of resting rows. Without one of them, a page walks the primary key.
_INDEXED: Final = frozenset({"fsms", "version", "statuses", "queue", "steps"})
# Sources that no index has in the order of ids.
_UNORDERED: Final = frozenset(
    {"by_parent", "runnable", "runnable_of_machines", "gated", "runnable_by_concurrency_key"}
    | {"deleted", "deleted_live", "deleted_parked"}
)
# Conditions that some sources replace; "": the source implies them.
_REPLACED: Final[Mapping[str, Mapping[str, str]]] = {
    "runnable": {"on_statuses": "", "without_deleted": "without_deleted_live"},
    "runnable_of_machines": {"on_statuses": "", "on_fsms": "", "without_deleted": "without_deleted_live"},
    "gated": {"on_statuses": ""},
    "resting": dict.fromkeys(
        ("on_fsms", "on_version", "on_statuses", "on_queue", "on_steps", "without_deleted"), ""
    ),
}


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
    compensating: bool = False
    with_deleted: bool = False
    only_deleted: bool = False


def page(wanted: Filter, limit: int, before: int | None) -> Plan[Sequence[Row]]:
    """Read the newest instances with an id below `before`."""
    call = yield from _call("page", wanted, before=_TOP if before is None else before, limit=limit)
    return (yield call)


def ids(wanted: Filter, limit: int, before: int | None) -> Plan[list[int]]:
    """The same, ids only."""
    call = yield from _call("ids", wanted, before=_TOP if before is None else before, limit=limit)
    return [row["id"] for row in (yield call)]


def count(wanted: Filter) -> Plan[int]:
    """Count instances."""
    rows = yield (yield from _call("count", wanted))
    number: int = rows[0]["count"]
    return number


def tally(wanted: Filter) -> Plan[Sequence[Row]]:
    """Count instances by machine and status."""
    return (yield (yield from _call("tally", wanted)))


def _call(read: Read, wanted: Filter, **more: int) -> Plan[Call]:
    low, high = 0, _TOP
    if wanted.inserted_after is not None:
        (row,) = yield _SQL["bounds"](moment=wanted.inserted_after, slack=-_SLACK)
        low = row["low"] or low
    if wanted.inserted_before is not None:
        (row,) = yield _SQL["bounds"](moment=wanted.inserted_before, slack=_SLACK)
        high = row["high"] or high
    values = msgspec.structs.asdict(wanted)
    given = tuple(name for name, value in values.items() if value is not None and value is not False)
    statuses = None if wanted.statuses is None else frozenset(wanted.statuses)
    return statement(read, given, statuses)(**values, **more, low=low, high=high)


@cache
def statement(read: Read, given: tuple[str, ...], statuses: frozenset[str] | None) -> Statement:
    """Compose the statement that reads instances by these fields of a filter and these statuses."""
    is_page = read in ("page", "ids")
    conditions = [f"on_{name}" for name in given if f"on_{name}" in _PARTS]
    conditions += ["on_before"] * is_page
    if "only_deleted" in given:
        conditions.append("only_deleted")
    elif "with_deleted" not in given:
        conditions.append("without_deleted")
    sources = _sources(given, statuses, is_page=is_page)
    groups = "groups_of_machines" if "fsms" in given else "groups"
    filled = {
        "groups": _PARTS[groups] if "resting" in sources else "",
        "sources": "\nunion all\n".join(
            f"({_source(name, conditions, is_page=is_page)})" for name in sources
        ),
    }
    text = fill(_PARTS["ids" if is_page else read], filled)
    return Statement(read, fill(_PARTS["page"], {"ids": text}) if read == "page" else text)


def _sources(given: tuple[str, ...], statuses: frozenset[str] | None, *, is_page: bool) -> list[str]:
    for field, sources in _BY_FIELD.items():
        if field in given:
            return list(sources)
    if "only_deleted" in given:
        return ["deleted", "deleted_live"]
    if not _INDEXED & set(given) and (is_page or {"inserted_after", "inserted_before"} & set(given)):
        return ["by_id"]
    chosen = []
    if statuses is None or "runnable" in statuses:
        chosen += ["runnable_of_machines" if "fsms" in given else "runnable", "gated"]
    if statuses is None or "executing" in statuses:
        chosen.append("executing")
    if statuses is None or not statuses <= {"runnable", "executing"} or not statuses:
        chosen.append("resting")
        if "with_deleted" in given:
            chosen += ["deleted", "deleted_parked"]
    return chosen


def _source(name: str, conditions: list[str], *, is_page: bool) -> str:
    """The text of a source with its conditions; of a page: only as many rows as it may contain."""
    is_sorted = name in _UNORDERED
    replaced = {"on_before": "on_before_sorted"} if is_sorted else {}
    replaced |= _REPLACED.get(name, {})
    on_rows = [replaced.get(one, one) for one in conditions]
    on_groups = [f"group_{one.removeprefix('on_')}" for one in conditions]
    newest = ("newest_sorted" if is_sorted else "newest") if is_page else "all"
    return fill(
        _PARTS[name],
        {
            "conditions": "".join(_PARTS[one] for one in on_rows if one),
            "group_conditions": "".join(_PARTS.get(one, "") for one in on_groups),
            "newest": _PARTS[newest],
        },
    )
