"""Failures, grouped by message, machine and step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from ... import _verbs
from ..._core.fingerprints import masked
from ..._core.query import quoted
from ..._db import dashboard, search, snapshots
from ..._db.plan import Plan, Row
from ..board import Board
from ..endpoints import get

__all__ = ["FailuresPage", "failure_groups", "failures", "failures_raised", "machine_errors"]

_MOST_COUNTED: Final = 10_000
_MOST_GROUPS: Final = 200
_SAMPLES: Final = 3
_BUCKETS: Final = 36
# Instances of a group of attempts: they have no fingerprint.
_MOST_IDS: Final = 500


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of the same step with the same message, apart from its numbers, ids and quoted values."""

    fingerprint: str
    message: str
    """Quoted values are "…", numbers and ids "#"; empty: no message."""
    example: str
    """The newest message."""
    machine: str
    step: str
    versions: Sequence[int]
    count: int
    """Failed instances, or attempts that were tried again."""
    counts: Sequence[int]
    """Over time, from `since` of the page to `at`."""
    first_at: datetime
    last_at: datetime
    samples: Sequence[int]
    """The newest instances."""
    q: str
    """The search for exactly these instances. Of attempts: for at most the newest 500 instances."""
    instances: int
    """How many instances the search selects."""


class FailuresPage(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of the newest failures, the largest first."""

    at: datetime
    since: datetime
    """The first one of these failures."""
    total: int
    """How many there are; at most 10,000 are counted."""
    grouped: int
    """How many of them are in the groups: the newest ones."""
    groups: Sequence[FailureGroup]


@get("/failures", every=10, summary="Failed instances, grouped by message, machine and step")
async def failures(board: Board) -> FailuresPage:
    """Group the newest 5,000 failed instances."""
    return await board.cached("failures", 2.0, failure_groups)


@get(
    "/machines/{name}/errors",
    summary="Failed instances of a version of a machine, grouped by message and step",
)
async def machine_errors(board: Board, name: str, *, version: int) -> FailuresPage:
    """Group those of the newest 5,000 failed instances that are of this version."""
    return await board.cached(f"errors:{name}:{version}", 10.0, lambda: _of_version(name, version))


@get("/failures/raised", every=10, summary="Failed attempts that were tried again, grouped in the same way")
async def failures_raised(board: Board) -> FailuresPage:
    """Group the newest failed attempts, from the records of the newest instances."""
    return await board.cached("failures raised", 2.0, _raised)


def failure_groups() -> Plan[FailuresPage]:
    """Group the newest failed instances."""
    wanted = search.Filter(statuses=["failed"])
    total, _ = yield from search.count_up_to(wanted, _MOST_COUNTED)
    rows = yield from _verbs.newest_failures()
    return _page((yield from snapshots.now()), max(total, len(rows)), rows, are_failed=True)


def _of_version(name: str, version: int) -> Plan[FailuresPage]:
    rows = yield from _verbs.newest_failures()
    chosen = [row for row in rows if (row["fsm"], row["fsm_version"]) == (name, version)]
    page = _page((yield from snapshots.now()), len(chosen), chosen, are_failed=True)
    groups = [msgspec.structs.replace(one, q=f"{one.q} version:{version}") for one in page.groups]
    return msgspec.structs.replace(page, groups=groups)


def _raised() -> Plan[FailuresPage]:
    rows = yield from dashboard.newest_raised(_verbs.MOST_GROUPED)
    return _page((yield from snapshots.now()), len(rows), rows, are_failed=False)


def _page(at: datetime, total: int, rows: Sequence[Row], *, are_failed: bool) -> FailuresPage:
    since = min((row["at"] for row in rows), default=at)
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["fsm"], row["step"], masked(row["error"])), []).append(row)
    largest = sorted(found.values(), key=lambda one: -len(one))[:_MOST_GROUPS]
    return FailuresPage(
        at=at,
        since=since,
        total=total,
        grouped=len(rows),
        groups=[_group(of_group, since, at, are_failed=are_failed) for of_group in largest],
    )


def _group(rows: Sequence[Row], since: datetime, at: datetime, *, are_failed: bool) -> FailureGroup:
    """Describe a group; its rows are the newest first."""
    newest = rows[0]
    text = masked(newest["error"])
    machine, step = newest["fsm"], newest["step"]
    name = _verbs.fingerprint_of(machine, step, text)
    ids = list(dict.fromkeys(row["id"] for row in rows))
    chosen = ids if are_failed else ids[:_MOST_IDS]
    terms = [f"machine:{_value(machine)}", f"step:{_value(step)}", "status:failed", f"fingerprint:{name}"]
    return FailureGroup(
        fingerprint=name,
        message=text,
        example=newest["error"] or "",
        machine=machine,
        step=step,
        versions=sorted({row["fsm_version"] for row in rows}),
        count=len(rows),
        counts=_over_time((row["at"] for row in rows), since, at),
        first_at=rows[-1]["at"],
        last_at=newest["at"],
        samples=ids[:_SAMPLES],
        q=" ".join(terms) if are_failed else f"id:{','.join(map(str, chosen))}",
        instances=len(chosen),
    )


def _value(text: str) -> str:
    is_plain = text.replace(".", "").replace("_", "").replace("-", "").isalnum()
    return text if is_plain else quoted(text)


def _over_time(moments: Iterable[datetime], since: datetime, at: datetime) -> list[int]:
    counts = [0] * _BUCKETS
    span = (at - since).total_seconds() or 1.0
    for moment in moments:
        place = int((moment - since).total_seconds() / span * _BUCKETS)
        counts[max(0, min(_BUCKETS - 1, place))] += 1
    return counts
