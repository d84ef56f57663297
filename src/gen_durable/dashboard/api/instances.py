"""Search instances: pages, counts by status, completion."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from ... import _verbs
from ..._core.hydration import progress_of
from ..._core.query_words import in_words
from ..._db import search, snapshots
from ..._db.plan import Plan
from ..._verbs.where import checked_query, narrowed
from ...instance import Status
from ...progress import Progress
from ..board import Board
from ..endpoints import get
from ..problems import ProblemError
from ..searching import checked, statuses_in, with_status

__all__ = ["complete", "instances", "instances_counts"]

_MOST_ROWS: Final = 500
_MAX_ID: Final = 2**63 - 1
# Instances of one status that are counted.
_MOST_COUNTED: Final = 10_000
# Rows of one status on which conditions without an index are checked.
_MOST_CHECKED: Final = 2000


class InstanceRow(msgspec.Struct, frozen=True, kw_only=True):
    """An instance in a list, without its state."""

    id: int
    machine: str
    version: int
    step: str
    status: Status
    key: str | None
    """Its correlation key, otherwise its unique key."""
    queue: str
    attempt: int
    is_gated: bool
    inserted_at: datetime
    eligible_at: datetime
    deleted_at: datetime | None
    since: datetime
    """When its last change was; for an executing instance, when its step began."""
    about: str
    """What it waits for, which worker runs it and its progress, or its last error; `until` follows."""
    is_error: bool
    until: datetime | None
    """The deadline of a wait, or when it is due."""
    progress: Progress | None


class InstancesPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a search, newest first."""

    items: Sequence[InstanceRow]
    next: int | None
    """`before` of the next page; null: there are no further instances."""
    bounded: int | None
    """How many of the newest instances were checked for conditions without an index, if there are more."""
    words: str
    """What the search selects."""


class StatusCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many instances a search selects in one status."""

    status: str
    """Empty: any."""
    text: str
    """Its name."""
    count: int
    is_exact: bool
    """Otherwise there are at least as many."""
    q: str
    """The search for them."""


class InstancesCounts(msgspec.Struct, frozen=True, kw_only=True):
    """A search with each status in place of those that it has."""

    items: Sequence[StatusCount]
    selected: str | None
    """The status of the search itself; null: it has several, or a group of them."""
    count: int
    """Instances that the search itself selects."""
    is_exact: bool
    """Otherwise there are at least as many."""


class CompletionItem(msgspec.Struct, frozen=True):
    """A text that may be at the cursor."""

    text: str
    detail: str


class CompletionPage(msgspec.Struct, frozen=True, kw_only=True):
    """Completions of a search: each replaces the text from `start` to `end`."""

    start: int
    end: int
    items: Sequence[CompletionItem]


@get("/instances", every=5, summary="Instances that match a search, newest first")
async def instances(
    board: Board, *, q: str = "", before: int | None = None, limit: int = 50
) -> InstancesPage:
    """Return a page of a search. Conditions without an index are checked on the newest 10,000 instances."""
    if not 1 <= limit <= _MOST_ROWS:
        raise ProblemError(422, "The query is not valid", f"limit={limit} is not from 1 to {_MOST_ROWS}")
    if before is not None and not 1 <= before <= _MAX_ID:
        raise ProblemError(422, "The query is not valid", f"before={before} is not an id")
    checked(q, board.redact)
    return await board.cached(f"instances {limit} {before} {q}", 1.0, lambda: _page(q, before, limit))


def _page(q: str, before: int | None, limit: int) -> Plan[InstancesPage]:
    wanted, query = yield from narrowed(search.Filter(), checked_query(q))
    found = yield from search.first(wanted, limit, before, "ids")
    rows = yield from snapshots.briefs([row["id"] for row in found.rows])
    now = yield from snapshots.now()
    words = in_words(query)
    return InstancesPage(
        items=[_row(row, now) for row in rows],
        next=found.next,
        bounded=search.BOUND if found.is_bounded else None,
        words=words[0].upper() + words[1:],
    )


def _row(row: Any, now: datetime) -> InstanceRow:
    about, is_error, until = _about(row, now)
    unique = row["unique_key"]
    return InstanceRow(
        id=row["id"],
        machine=row["fsm"],
        version=row["fsm_version"],
        step=row["step"],
        status=Status(row["status"]),
        key=row["correlation_key"] or (unique and unique.decode(errors="backslashreplace")),
        queue=row["queue"],
        attempt=row["attempt"],
        is_gated=row["gated"],
        inserted_at=row["inserted_at"],
        eligible_at=row["eligible_at"],
        deleted_at=row["deleted_at"],
        since=row["since"],
        about=about,
        is_error=is_error,
        until=until,
        progress=progress_of(row["progress"]) if row["status"] == Status.EXECUTING else None,
    )


def _about(row: Any, now: datetime) -> tuple[str, bool, datetime | None]:
    undo = "runs undo steps; " if row["is_compensating"] else ""
    match row["status"]:
        case Status.AWAITING_SIGNAL:
            names = ", ".join(row["awaits"] or ())
            deadline = row["await_deadline"]
            return f"{undo}waits for {names}{', deadline' if deadline else ''}", False, deadline
        case Status.AWAITING_CHILDREN:
            number = row["children_pending"]
            return f"{undo}waits for {number:,} {'child' if number == 1 else 'children'}", False, None
        case Status.EXECUTING:
            cancel = "; cancel requested" if row["cancel_requested_at"] else ""
            progress = progress_of(row["progress"])
            so_far = "" if progress is None else f": {progress}"
            return f"{undo}on {row['locked_by']}{so_far}{cancel}", False, None
        case Status.RUNNABLE:
            error = row["last_error"]
            later = row["eligible_at"] if row["eligible_at"] > now else None
            parts = [undo.removesuffix("; "), error, later and ("next attempt" if row["attempt"] else "due")]
            return "; ".join(filter(None, parts)), bool(error), later
        case Status.CANCELLED:
            return row["cancel_reason"] or "", False, None
        case Status.FAILED:
            return row["last_error"] or "", True, None
        case _:
            return "", False, None


_DELETED: Final = "deleted"
_TABS: Final = {
    Status.EXECUTING.value: "Running",
    Status.RUNNABLE.value: "Runnable",
    Status.AWAITING_SIGNAL.value: "Waiting",
    Status.AWAITING_CHILDREN.value: "Children",
    Status.FAILED.value: "Failed",
    Status.DONE.value: "Done",
    Status.CANCELLED.value: "Cancelled",
    _DELETED: "Deleted",
}


@get("/instances/counts", every=15, summary="Instances of a search by status, at most 10,000 each")
async def instances_counts(board: Board, *, q: str = "") -> InstancesCounts:
    """Count the instances of a search in each status, instead of the status that the search has.

    Conditions without an index are checked on the newest 2,000 instances of each status.
    """
    checked(q, board.redact)
    return await board.cached(f"counts {q}", 2.0, lambda: _counts(q))


def _counts(q: str) -> Plan[InstancesCounts]:
    query = checked_query(q)
    words = frozenset(statuses_in(query))
    items = []
    for status, name in _TABS.items():
        text = with_status(q, query, status)
        count, is_exact = yield from _count(text)
        if count or status != _DELETED or status in words:
            items.append(StatusCount(status=status, text=name, count=count, is_exact=is_exact, q=text))
    kept = [one for one in items if one.status != _DELETED]
    every = StatusCount(
        status="",
        text="All",
        count=sum(one.count for one in kept),
        is_exact=all(one.is_exact for one in kept),
        q=with_status(q, query, ""),
    )
    items.insert(0, every)
    for one in items:
        if words == {one.status} or (not words and not one.status):
            return InstancesCounts(items=items, selected=one.status, count=one.count, is_exact=one.is_exact)
    count, is_exact = yield from _count(q)
    return InstancesCounts(items=items, selected=None, count=count, is_exact=is_exact)


def _count(q: str) -> Plan[tuple[int, bool]]:
    wanted, _ = yield from narrowed(search.Filter(), checked_query(q))
    return (yield from search.count_up_to(wanted, _MOST_COUNTED, _MOST_CHECKED))


@get("/complete", summary="Complete a search at the cursor")
async def complete(board: Board, *, q: str = "", at: int | None = None) -> CompletionPage:
    """Suggest names and values for the term at the cursor; default: at the end."""
    found = await board.read(_verbs.complete(q, at))
    return CompletionPage(
        start=found.start,
        end=found.end,
        items=[CompletionItem(one.text, one.help) for one in found.suggestions],
    )
