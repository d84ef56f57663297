"""Search for tools: pages with a cursor, counts at a bounded cost, completion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from .._checks import checked_id, checked_int
from .._core.query import Query
from .._core.query_completion import Place, completion, place_at
from .._core.query_words import in_words, term_in_words
from .._db import machines, search
from .._db.plan import Plan
from ..instance import Status
from ..search import Completion, SearchCount, SearchPage, SearchTerm
from .common import MAX_PAGE, read
from .where import checked_query, is_indexed, narrowed

__all__ = ["complete", "find", "find_count"]


def find(text: str, limit: int, before: int | None, *, with_deleted: bool) -> Plan[SearchPage]:
    """Return a page of a search, by one statement."""
    checked_int(limit, "limit", 1, MAX_PAGE)
    if before is not None:
        checked_id(before)
    wanted, query = yield from narrowed(search.Filter(with_deleted=with_deleted), checked_query(text))
    found = yield from search.first(wanted, limit, before)
    return SearchPage(
        items=tuple(read(row, None) for row in found.rows),
        next=found.next,
        bounded=search.BOUND if found.is_bounded else None,
        terms=_terms(query),
        words=in_words(query),
    )


def find_count(text: str, *, with_deleted: bool) -> Plan[SearchCount]:
    """Count the matching instances among the newest ones, by one statement."""
    wanted, _ = yield from narrowed(search.Filter(with_deleted=with_deleted), checked_query(text))
    found = yield from search.examine("tally", wanted, search.BOUND, None)
    counts = Counter[Status]()
    for row in found.rows:
        counts[Status(row["status"])] += row["count"]
    return SearchCount(count=counts.total(), is_exact=not found.is_bounded, by_status=dict(counts))


def complete(text: str, cursor: int | None) -> Plan[Completion]:
    """Suggest texts for the term at the cursor; at the end if there is none."""
    place = place_at(text, len(text) if cursor is None else cursor)
    values = _VALUES.get(place.name or "machine")
    return completion(place, [] if values is None else (yield from values(place)))


def _terms(query: Query) -> tuple[SearchTerm, ...]:
    return tuple(
        SearchTerm(
            name=term.name,
            text=str(term),
            words=term_in_words(term),
            is_indexed=is_indexed(term),
            start=term.start,
            end=term.end,
        )
        for term in query.terms
    )


def _machines(place: Place) -> Plan[list[str]]:
    return list((yield from machines.names()))


def _steps(place: Place) -> Plan[list[str]]:
    known = yield from machines.names()
    return [step for name, one in known.items() if place.is_of(name) for step in one.steps]


def _signals(place: Place) -> Plan[list[str]]:
    known = yield from machines.names()
    return [signal for name, one in known.items() if place.is_of(name) for signal in one.signals]


def _queues(place: Place) -> Plan[list[str]]:
    known = yield from machines.names()
    return [queue for one in known.values() for queue in one.queues] + (yield from search.names("queue"))


def _stored(kind: search.Named) -> Callable[[Place], Plan[list[str]]]:
    return lambda place: search.names(kind)


_VALUES: Final[Mapping[str, Callable[[Place], Plan[list[str]]]]] = {
    "machine": _machines,
    "step": _steps,
    "awaits": _signals,
    "queue": _queues,
    "schedule": _stored("schedule"),
    "worker": _stored("worker"),
    "concurrency": _stored("concurrency_limit"),
    "limit": _stored("rate_limit"),
}
