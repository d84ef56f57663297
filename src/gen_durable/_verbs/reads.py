"""Read instances: by target, by filter, with children, executions and explanations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypedDict

from .._checks import checked_id, checked_int, checked_moment, checked_name
from .._core.explanation import explanation_of
from .._core.records import record_of
from .._core.timeline import timeline_of
from .._db import explain as explains
from .._db import search, snapshots
from .._db import timeline as timelines
from .._db.plan import Plan
from .._dictionary import did_you_mean
from ..definition import StepRef, definition_of, step_name
from ..errors import NoTargetError, UsageError
from ..instance import STATUS_WORDS, ExecutionRecord, Instance, JobWord, Status, statuses_of
from ..reasons import Explanation
from ..refs import Insertable, Key, Ref, Target, key_text, target_value
from ..timeline import TimelineEntry
from .common import MAX_PAGE, definition_of_target, machine_name, read, resolve
from .where import checked_query, narrowed

__all__ = [
    "Filters",
    "children",
    "count",
    "executions",
    "explain",
    "filter_of",
    "get",
    "newest_executions",
    "page",
    "timeline",
]


class Filters(TypedDict, total=False):
    """Filters of `list`, `count` and the bulk methods. All given filters must match."""

    version: int
    step: StepRef[Any] | str
    status: Status | JobWord | Iterable[Status | JobWord]
    """A status, several, or a word of the job model: `pending`, `leased`, `succeeded`."""
    queue: str
    correlation_key: Key
    unique_key: Key | bytes
    concurrency_key: Key
    parent: Ref[Any, Any] | int
    schedule: str
    """Only instances that this schedule inserted."""
    compensating: bool
    """Only instances that run undo steps."""
    inserted_after: datetime
    inserted_before: datetime
    with_deleted: bool
    """Also instances that are soft-deleted."""
    where: str
    """A search: `"status:failed error:~timeout age:>1h"`."""


def get(target: Target, *, with_deleted: bool = False) -> Plan[Instance[Any, Any] | None]:
    """Return one instance, or `None`."""
    row = yield from snapshots.get(target_value(target))
    if row is None or (row["deleted_at"] is not None and not with_deleted):
        return None
    return read(row, definition_of_target(target))


def page(
    machine: Insertable[Any, Any] | str | None, limit: int, before: int | None, filters: Mapping[str, Any]
) -> Plan[Sequence[Instance[Any, Any]]]:
    """Return a page of instances, newest first."""
    checked_int(limit, "limit", 1, MAX_PAGE)
    if before is not None:
        checked_id(before)
    definition = None if machine is None or isinstance(machine, str) else definition_of(machine)
    rows = yield from search.page((yield from filter_of(machine, filters)), limit, before)
    return [read(row, definition) for row in rows]


def count(machine: Insertable[Any, Any] | str | None, filters: Mapping[str, Any]) -> Plan[int]:
    """Count instances."""
    return (yield from search.count((yield from filter_of(machine, filters))))


def children(target: Target, *, every: bool) -> Plan[Sequence[Instance[Any, Any]]]:
    """Return the children of an instance."""
    id = yield from resolve(target, "list the children")
    rows = yield from snapshots.children_of(id, every=every)
    return [read(row, None) for row in rows]


def executions(target: Target) -> Plan[Sequence[ExecutionRecord]]:
    """Return the executions of an instance."""
    id = yield from resolve(target, "list the executions")
    rows = yield from snapshots.executions(id)
    return [record_of(row) for row in rows]


def newest_executions(target: Target, limit: int) -> Plan[Sequence[ExecutionRecord]]:
    """Return the newest executions of an instance, oldest first."""
    id = yield from resolve(target, "list the executions")
    return [record_of(row) for row in (yield from snapshots.newest_executions(id, limit))]


def timeline(target: Target, limit: int, *, each: bool = False) -> Plan[Sequence[TimelineEntry]]:
    """Return the newest entries of the timeline of an instance, oldest first; `each`: as many of each kind."""
    checked_int(limit, "the limit of timeline entries", 1, MAX_PAGE)
    row = yield from snapshots.get(target_value(target))
    if row is None:
        raise NoTargetError(target_value(target), "show the timeline")
    records = yield from timelines.timeline(row["id"], limit)
    now = yield from snapshots.now()
    entries = timeline_of(row, records, now)
    return entries if each else entries[-limit:]


def explain(target: Target) -> Plan[Explanation]:
    """Explain why an instance does not run."""
    id = yield from resolve(target, "explain")
    row = yield from explains.facts(id)
    if row is None:
        raise NoTargetError(id, "explain")
    return explanation_of(row)


def filter_of(
    machine: Insertable[Any, Any] | str | None,
    filters: Mapping[str, Any],
    default_statuses: Sequence[str] | None = None,
    *,
    is_change: bool = False,
) -> Plan[search.Filter]:
    """Return the filter of a call. `default_statuses` apply if the call names no status."""
    given = dict(filters)
    query = checked_query(given.pop("where", ""))
    if is_change and "where" in filters and not query.terms:
        raise UsageError("the search is empty", "give a term, or leave where= out to select all instances")
    wanted, _ = yield from narrowed(_fields_of(machine, given), query, default_statuses)
    return wanted


def _fields_of(machine: Insertable[Any, Any] | str | None, filters: Mapping[str, Any]) -> search.Filter:
    values: dict[str, Any] = {}
    if machine is not None:
        values["fsms"] = [machine_name(machine)]
    for name, value in filters.items():
        if name not in _FILTERS:
            known = (*_FILTERS, "where")
            raise UsageError(
                f"there is no filter '{name}'{did_you_mean(name, known, 'filter')}",
                f"the filters are {', '.join(known)}",
            )
        field, checked = _FILTERS[name]
        values[field] = checked(value)
    return search.Filter(**values)


def _statuses(value: Any) -> list[str]:
    words = [value] if isinstance(value, str) else value
    return [status for word in words for status in _named_statuses(word)]


def _unique_key(value: Any) -> bytes:
    return value if isinstance(value, bytes) else key_text(value, "unique_key").encode()


def _parent_id(parent: Ref[Any, Any] | int) -> int:
    id = parent.target if isinstance(parent, Ref) else parent
    if isinstance(id, str):
        raise UsageError("parent is given by its key", "use its id, or what insert returned")
    return checked_id(id)


def _named_statuses(word: Any) -> tuple[Status, ...]:
    statuses = statuses_of(word)
    if statuses is None:
        hint = did_you_mean(word, STATUS_WORDS, "status") if isinstance(word, str) else ""
        raise UsageError(f"{word!r} is not a status", f"the statuses are {', '.join(STATUS_WORDS)}{hint}")
    return statuses


_FILTERS: Final[Mapping[str, tuple[str, Callable[[Any], object]]]] = {
    "version": ("versions", lambda value: [checked_int(value, "version", 1, 2**31 - 1)]),
    "step": ("steps", lambda value: [step_name(value)]),
    "status": ("statuses", _statuses),
    "queue": ("queues", lambda value: [checked_name(value, "queue")]),
    "correlation_key": ("correlation_keys", lambda value: [key_text(value, "correlation_key")]),
    "unique_key": ("unique_keys", lambda value: [_unique_key(value)]),
    "concurrency_key": ("concurrency_keys", lambda value: [key_text(value)]),
    "parent": ("parent_ids", lambda value: [_parent_id(value)]),
    "schedule": ("schedules", lambda value: [checked_name(value, "schedule")]),
    "compensating": ("compensating", bool),
    "inserted_after": ("inserted_after", lambda value: checked_moment(value, "inserted_after")),
    "with_deleted": ("with_deleted", bool),
    "inserted_before": ("inserted_before", lambda value: checked_moment(value, "inserted_before")),
}
