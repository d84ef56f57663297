"""A search as a filter: `where=` of clients and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

from .._core.query import Query, Term, Value
from .._core.query_terms import (
    OF_ROW,
    Bound,
    Numbers,
    Scalars,
    Texts,
    meaning_of,
    parse,
    statuses_of_values,
    with_names,
)
from .._db import machines, snapshots
from .._db.plan import Plan
from .._db.search import Condition, Filter
from ..errors import UsageError
from ..instance import LIVE_STATUSES, TERMINAL_STATUSES, Status
from .failures import ids_of_fingerprints

__all__ = ["checked_query", "is_indexed", "narrowed"]

T = TypeVar("T")

# For durations, where the time does not matter.
_ANY_TIME: Final = datetime(2100, 1, 1, tzinfo=UTC)

_STEP: Final = timedelta(microseconds=1)  # the resolution of a time in PostgreSQL
# Terms that are a field of the filter unless they are negated, and its type. Negated, they have no index.
_FIELDS: Final[Mapping[str, tuple[str, type]]] = {
    "id": ("ids", int),
    "key": ("keys", str),
    "concurrency": ("concurrency_keys", str),
    "parent": ("parent_ids", int),
    "schedule": ("schedules", str),
}
# The same for columns of the index of resting rows: it also serves their negation.
_INDEXED_FIELDS: Final[Mapping[str, str]] = {"step": "steps", "queue": "queues"}
# The parameter that a condition gets the texts of its term as.
_PARAMETERS: Final[Mapping[str, str]] = {
    "id": "ids",
    "parent": "ids",
    "key": "keys",
    "concurrency": "keys",
    "limit": "keys",
}
# The statuses that a term implies.
_STATUSES: Final[Mapping[str, Sequence[Status]]] = {
    "worker": (Status.EXECUTING,),
    "awaits": (Status.AWAITING_SIGNAL,),
    "stuck": LIVE_STATUSES,
    "ended": TERMINAL_STATUSES,
}


def checked_query(text: object) -> Query:
    """Read a search; raise UsageError if it is not one."""
    if not isinstance(text, str):
        raise UsageError(f"the search is of type {type(text).__name__}", 'give a text: "status:failed"')
    return parse(text)


def is_indexed(term: Term) -> bool:
    """Whether an index serves a term. Others are checked on a bounded number of rows per statement."""
    if term.name == "fingerprint":
        return not term.is_negated
    return not _narrow(Filter(), term, _ANY_TIME).is_bounded


def _resolved(query: Query) -> Plan[Query]:
    """Give the values without a name one, by the registered machines."""
    if all(term.name for term in query.terms):
        return query
    known = yield from machines.names()
    return with_names(query, known, {step for one in known.values() for step in one.steps})


def narrowed(
    wanted: Filter, query: Query, default_statuses: Sequence[str] | None = None
) -> Plan[tuple[Filter, Query]]:
    """Add the terms of a search to a filter; return the search with all names as well.

    `default_statuses` apply if neither the filter nor the search names a status.
    """
    query = yield from _resolved(query)
    names_status = any(term.name == "status" and not term.is_negated for term in query.terms)
    if default_statuses is not None and wanted.statuses is None and not names_status:
        wanted = _with(wanted, "statuses", default_statuses)
    now = None
    if any(term.name in ("age", "stuck", "ended") for term in query.terms):
        now = yield from snapshots.now()
    # Fingerprints last: they are not read for statuses without failed instances.
    for term in sorted(query.terms, key=lambda term: term.name == "fingerprint"):
        if term.name == "fingerprint":
            # No column has it: it becomes the ids of the failed instances that have it now.
            has_failed = wanted.statuses is None or Status.FAILED in wanted.statuses
            ids = (yield from ids_of_fingerprints({one.text for one in term.values})) if has_failed else []
            term = msgspec.structs.replace(term, name="id", values=tuple(Value(str(id)) for id in ids))
            if not term.is_negated:
                wanted = _with(wanted, "statuses", [Status.FAILED])
        wanted = _narrow(wanted, term, now)
    return wanted, query


def _narrow(wanted: Filter, term: Term, now: datetime | None) -> Filter:
    meaning = meaning_of(term)
    if term.name in _STATUSES and not term.is_negated:
        wanted = _with(wanted, "statuses", _STATUSES[term.name])
    match meaning:
        case Texts() if term.name == "status":
            return _narrow_status(wanted, term, meaning)
        case Texts():
            return _narrow_texts(wanted, term, meaning)
        case Numbers():
            if (
                term.name == "version"
                and not term.is_negated
                and all(low == high for low, high in meaning.ranges)
            ):
                return _with(wanted, "versions", [low for low, _ in meaning.ranges])
            lows, highs = zip(*meaning.ranges, strict=True)
            values = {"lows": list(lows), "highs": list(highs)}
            return _and(wanted, term, values, is_indexed=term.name == "version")
        case Scalars():
            return _and(wanted, term, {"path": list(term.path), "values": list(meaning.values)})
        case Bound():
            after, before = _range(meaning, now)
            if term.name in ("stuck", "ended"):
                # As text, like all values of a condition: a batch stores them as JSON.
                moments = {"after": after and after.isoformat(), "before": before and before.isoformat()}
                return _and(wanted, term, moments)
            if term.is_negated:
                after, before = before, after
            return _between(wanted, after, before)


def _narrow_texts(wanted: Filter, term: Term, meaning: Texts) -> Filter:
    texts = list(meaning.texts)
    if not term.is_negated and term.name in _FIELDS:
        field, kind = _FIELDS[term.name]
        return _with(wanted, field, [kind(text) for text in texts])
    if not term.is_negated and term.name in _INDEXED_FIELDS:
        return _with(wanted, _INDEXED_FIELDS[term.name], texts)
    if term.name == "machine":
        if not term.is_negated and not meaning.parts:
            return _with(wanted, "fsms", texts)
        values: dict[str, Any] = {"names": texts, "prefixes": list(meaning.parts)}
        return _and(wanted, term, values, is_indexed=True)
    if term.name == "error":
        return _and(wanted, term, {"texts": texts, "parts": list(meaning.parts)})
    kind = _FIELDS.get(term.name, ("", str))[1]
    values = {_PARAMETERS.get(term.name, "names"): [kind(text) for text in texts]}
    return _and(wanted, term, values, is_indexed=term.name in _INDEXED_FIELDS)


def _narrow_status(wanted: Filter, term: Term, meaning: Texts) -> Filter:
    statuses, of_row = statuses_of_values(meaning.texts)
    if term.is_negated:
        wanted = _with(wanted, "statuses", [status for status in Status if status not in statuses])
        return _and_status(wanted, term, (), of_row) if of_row else wanted
    possible = statuses.union(*(OF_ROW[word] for word in of_row))
    if possible != frozenset(Status):
        wanted = _with(wanted, "statuses", [status for status in Status if status in possible])
    if "deleted" in of_row:
        wanted = msgspec.structs.replace(wanted, with_deleted=True)
    match (sorted(statuses), sorted(of_row)):
        case [], ["compensating"]:
            return msgspec.structs.replace(wanted, compensating=True)
        case [], ["deleted"]:
            return msgspec.structs.replace(wanted, only_deleted=True)
        case [], ["gated"]:
            wanted = msgspec.structs.replace(wanted, only_gated=True)
        case [], ["due" | "later" as word]:
            return _and(wanted, term, {}, f"if_{word}", is_indexed=True)
        case _:
            pass
    return _and_status(wanted, term, statuses, of_row) if of_row else wanted


def _and_status(wanted: Filter, term: Term, statuses: Iterable[Status], of_row: Iterable[str]) -> Filter:
    words = sorted(of_row)
    values = {"statuses": [status.value for status in statuses], "words": words}
    # The others are columns that its sources read in any case.
    return _and(wanted, term, values, is_indexed="retrying" not in words)


def _and(
    wanted: Filter, term: Term, values: Mapping[str, Any], part: str = "", *, is_indexed: bool = False
) -> Filter:
    condition = Condition(part or f"if_{term.name}", values, term.is_negated, is_indexed)
    return msgspec.structs.replace(wanted, conditions=(*wanted.conditions, condition))


def _with(wanted: Filter, field: str, values: Iterable[T]) -> Filter:
    """Return the filter with only these values of a field, of those that it has."""
    given = getattr(wanted, field)
    chosen = [value for value in values if given is None or value in given]
    return msgspec.structs.replace(wanted, **{field: chosen})


def _between(wanted: Filter, after: datetime | None, before: datetime | None) -> Filter:
    if after is not None:
        after = max(after, wanted.inserted_after or after)
        wanted = msgspec.structs.replace(wanted, inserted_after=after)
    if before is not None:
        before = min(before, wanted.inserted_before or before)
        wanted = msgspec.structs.replace(wanted, inserted_before=before)
    return wanted


def _range(bound: Bound, now: datetime | None) -> tuple[datetime | None, datetime | None]:
    """Return the first time, and the time that follows the last one; `None`: any."""
    if isinstance(bound.value, datetime):
        moment = bound.value
    else:
        assert now is not None  # noqa: S101 - read for terms with a duration
        moment = now - bound.value
    if bound.is_after:
        return (moment if bound.is_included else moment + _STEP), None
    return None, (moment + _STEP if bound.is_included else moment)
