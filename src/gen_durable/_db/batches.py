"""Batches: changes of many instances that run page by page, under a lease."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from ..batches import Batch, BatchVerb
from ..errors import UsageError
from .plan import Plan, Row, statements
from .search import Filter

__all__ = [
    "PAGE",
    "DeadLetters",
    "Position",
    "Selected",
    "abandoned",
    "children",
    "get",
    "lease",
    "list_batches",
    "page",
    "position",
    "record_continue",
    "release",
    "selection",
    "start",
    "stop",
    "unfinished",
]

_SQL = statements("batches.sql")

PAGE: Final = 500
"""The most instances that one transaction changes."""
# Stored with the selection. A process that does not know a version, or a field of a filter, must not run the batch: it
# would change more instances than were confirmed.
_VERSION: Final = 1


class DeadLetters(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a replay changes."""

    sink: str | None = None
    """`None`: of any sink."""


class Selected(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """The stored selection: a filter, ids, or the dead letters of a sink."""

    version: int
    where: str | None = None
    """The search that the filter was made of, for people."""
    filter: dict[str, Any] | None = None
    ids: list[int] | None = None
    dead_letters: DeadLetters | None = None


class Level(msgspec.Struct, frozen=True):
    """Parents whose children a cascade visits, and the last child that it has visited."""

    parents: list[int]
    after: int


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where a batch is."""

    lease_token: int
    pages: int
    newest: int
    after_id: int | None
    pending: Sequence[int]
    levels: Sequence[Level]
    is_over: bool


def start(
    verb: BatchVerb,
    chosen: Filter | Sequence[int] | DeadLetters,
    options: str,
    *,
    where: str | None,
    reason: str | None,
    actor: str | None,
    expected: int | None,
    total: int,
    newest: int,
) -> Plan[int]:
    """Store a batch; return its id."""
    selected = Selected(version=_VERSION, where=where)
    if isinstance(chosen, Filter):
        selected = msgspec.structs.replace(selected, filter=_given(chosen))
    elif isinstance(chosen, DeadLetters):
        selected = msgspec.structs.replace(selected, dead_letters=chosen)
    else:
        selected = msgspec.structs.replace(selected, ids=sorted(set(chosen)))
    (row,) = yield _SQL["start_batch"](
        verb=verb,
        selection=msgspec.json.encode(selected).decode(),
        options=options,
        reason=reason,
        actor=actor,
        expected=expected,
        total=total,
        newest=newest,
    )
    id: int = row["id"]
    return id


def get(id: int) -> Plan[Batch | None]:
    """Read one batch."""
    rows = yield _SQL["get_batch"](id=id)
    return _batch(rows[0]) if rows else None


def list_batches(limit: int) -> Plan[Sequence[Batch]]:
    """Read the newest batches."""
    return [_batch(row) for row in (yield _SQL["list_batches"](demand=limit))]


def selection(id: int) -> Plan[Filter | list[int] | DeadLetters]:
    """Read which instances a batch changes: a filter, or ids in ascending order. Of a replay: which dead letters."""
    (row,) = yield _SQL["selection"](id=id)
    try:
        selected = msgspec.json.decode(row["selection"], type=Selected)
        if selected.version == _VERSION:
            if selected.ids is not None:
                return list(selected.ids)
            return selected.dead_letters or msgspec.convert(selected.filter, _StrictFilter)
    except msgspec.ValidationError:
        pass
    raise UsageError(
        f"batch {id} was started by a newer gen_durable, which knows filters that this one does not",
        "run it with that version, or stop it",
    )


def lease(id: int, runner: str, alive_for: timedelta) -> Plan[int | None]:
    """Lease a batch; `None` if another process runs it, or it has ended."""
    rows = yield _SQL["lease_batch"](id=id, runner=runner, alive_for=alive_for)
    return rows[0]["lease_token"] if rows else None


def position(id: int) -> Plan[Position]:
    """Read where a batch is."""
    (row,) = yield _SQL["progress_of_batch"](id=id)
    return Position(**{**row, "levels": msgspec.json.decode(row["levels"], type=list[Level])})


def page(
    id: int,
    at: Position,
    ids: Sequence[int],
    *,
    visited: int | None,
    is_exhausted: bool,
    alive_for: timedelta,
    skipped: str | None = None,
    problem: str | None = None,
) -> Plan[set[str] | None]:
    """Change these instances, or count them as `skipped`; return the queues that have work now.

    `None`: the lease is lost, the batch has ended, or this page is committed already.
    """
    rows = yield _SQL["batch_page"](
        id=id,
        token=at.lease_token,
        page=at.pages,
        ids=ids,
        visited=visited,
        is_exhausted=is_exhausted,
        skipped=skipped,
        problem=problem,
        alive_for=alive_for,
    )
    return set(rows[0]["queues"]) if rows else None


def release(id: int, token: int, problem: str | None) -> Plan[None]:
    """Give up the lease of a batch after an error."""
    yield _SQL["release_batch"](id=id, token=token, problem=problem)


def record_continue(id: int, reason: str | None, actor: str | None) -> Plan[None]:
    """Audit that a caller continues a batch, unless it has ended."""
    yield _SQL["record_continue"](id=id, reason=reason, actor=actor)


def stop(id: int, reason: str | None, actor: str | None) -> Plan[bool]:
    """Stop a batch before its next page; return whether it had not ended."""
    (row,) = yield _SQL["stop_batch"](id=id, reason=reason, actor=actor)
    return bool(row["is_stopped"])


def children(level: Level, demand: int) -> Plan[list[int]]:
    """The next children of a level of a cascade."""
    rows = yield _SQL["children_of_level"](parents=level.parents, after=level.after, demand=demand)
    return [row["id"] for row in rows]


def abandoned(idle: timedelta, demand: int) -> Plan[Sequence[Row]]:
    """Read unfinished batches that no process has run for some time."""
    return (yield _SQL["abandoned_batches"](idle=idle, demand=demand))


def unfinished(demand: int) -> Plan[dict[int, bool]]:
    """Read the ids of unfinished batches, and whether their process has died."""
    return {row["id"]: row["is_expired"] for row in (yield _SQL["unfinished_batches"](demand=demand))}


class _StrictFilter(Filter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A filter whose fields this version knows."""


def _given(wanted: Filter) -> dict[str, Any]:
    """The fields of a filter that are given, as JSON values."""
    values: dict[str, Any] = msgspec.to_builtins(wanted)
    if not wanted.conditions:
        del values["conditions"]
    return {name: value for name, value in values.items() if value is not None and value is not False}


def _batch(row: Row) -> Batch:
    read = msgspec.json.decode
    return Batch(
        **{
            **row,
            "filter": None if row["filter"] is None else read(row["filter"]),
            "options": read(row["options"]),
            "outcomes": read(row["outcomes"], type=dict[str, int]),
        }
    )
