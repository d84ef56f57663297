"""Delete rows whose retention is over: instances by pages, other tables by walking through their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

import msgspec

from . import signals, streams
from .plan import Plan, Rows, statements

__all__ = [
    "PAGE",
    "START",
    "Cursor",
    "Ended",
    "Swept",
    "collect_done",
    "delete_done",
    "sweep",
    "sweep_audit",
    "sweep_batches",
    "sweep_events",
    "sweep_requests",
    "vacuum",
    "walk_buckets",
    "walk_executions",
    "walk_items",
    "walk_messages",
    "walk_pending",
    "walk_signals",
]

_SQL = statements("collect.sql")

PAGE: Final = 500
"""How many rows one statement reads; the same number is in collect.sql."""
# Blocks of a table that one statement of a walk reads: 2 MB.
_BLOCKS: Final = 256

Ended: TypeAlias = Literal["done", "failed", "cancelled", "expired", "deleted"]
"""Which rows a sweep removes. `expired`: those whose machine declares its retention, in any status."""


class Cursor(msgspec.Struct, frozen=True):
    """The last row that a sweep has read."""

    at: datetime
    id: int


START: Final = Cursor(datetime(1, 1, 2, tzinfo=UTC), 0)


class Swept(msgspec.Struct, frozen=True):
    """The result of one page."""

    deleted: int
    stripped: int
    """Rows that are kept for their unique key, without state and result."""
    next: Cursor | None
    """Where the next page begins; `None` after the last."""


def sweep(ended: Ended, retention: timedelta, after: Cursor) -> Plan[Swept]:
    """Collect the next page of instances that ended this way, before the retention."""
    place = {"retention": retention, "after_at": after.at, "after_id": after.id}
    own = {"deleted": "sweep_deleted", "expired": "sweep_expired"}.get(ended)
    (row,) = yield _SQL["sweep_ended"](status=ended, **place) if own is None else _SQL[own](**place)
    following = Cursor(row["last_at"], row["last_id"]) if row["seen"] == PAGE else None
    return Swept(row["deleted"], row["stripped"], following)


def delete_done(ids: str, lease_tokens: str, step_seqs: str) -> Plan[str]:
    """Commit `done` outcomes by deleting their rows; return the numbers of the outcomes that were committed, from 1."""
    (row,) = yield _SQL["delete_done"](ids=ids, lease_tokens=lease_tokens, step_seqs=step_seqs)
    if row["with_signals"]:
        yield from signals.sweep(row["with_signals"])
        yield _SQL["delete_audit"](ids=row["with_signals"])
    if row["with_items"]:
        yield from streams.delete(row["with_items"])
    numbers: str = row["numbers"]
    return numbers


def collect_done(ids: Sequence[int]) -> Plan[None]:
    """Delete done instances that are not kept."""
    yield _SQL["collect_done"](ids=ids)


def sweep_events(retention: timedelta) -> Plan[bool]:
    """Delete published events after the retention; return whether there may be more."""
    (row,) = yield _SQL["sweep_events"](retention=retention)
    return bool(row["deleted"] == PAGE)


def sweep_audit(retention: timedelta) -> Plan[bool]:
    """Delete audit events after the retention, oldest first; return whether there may be more."""
    (row,) = yield _SQL["sweep_audit"](retention=retention)
    return bool(row["deleted"] == PAGE)


def sweep_batches(retention: timedelta) -> Plan[bool]:
    """Delete batches after the retention; return whether there may be more."""
    (row,) = yield _SQL["sweep_batches"](retention=retention)
    return bool(row["deleted"] == PAGE)


def sweep_requests(retention: timedelta) -> Plan[bool]:
    """Delete answers of requests after the retention; return whether there may be more."""
    (row,) = yield _SQL["sweep_requests"](retention=retention)
    return bool(row["deleted"] == PAGE)


def walk_executions(retention: timedelta, block: int) -> Plan[int]:
    """Delete old execution records in some blocks of the table; return the next block, 0 after the last."""
    return _following(
        (yield _SQL["sweep_executions"](retention=retention, block=block, blocks=_BLOCKS)), block
    )


def walk_signals(block: int) -> Plan[int]:
    """Delete signals that no instance can read in some blocks; return the next block, 0 after the last."""
    return _following((yield _SQL["sweep_signals"](block=block, blocks=_BLOCKS)), block)


def walk_items(block: int) -> Plan[int]:
    """Delete stream items of instances that do not exist in some blocks; return the next block, 0 after the last."""
    return _following((yield _SQL["sweep_items"](block=block, blocks=_BLOCKS)), block)


def walk_pending(retention: timedelta, block: int) -> Plan[tuple[dict[str, int], int]]:
    """Delete pending events after the retention in some blocks; return how many by sink, and the next block."""
    rows = yield _SQL["sweep_pending"](retention=retention, block=block, blocks=_BLOCKS)
    by_sink = {row["sink"]: row["deleted"] for row in rows if row["sink"] is not None}
    return by_sink, _following(rows, block)


def walk_messages(retention: timedelta, block: int) -> Plan[int]:
    """Delete old ids of incoming messages in some blocks; return the next block, 0 after the last."""
    return _following((yield _SQL["sweep_messages"](retention=retention, block=block, blocks=_BLOCKS)), block)


def walk_buckets(block: int) -> Plan[tuple[int, int]]:
    """Delete full buckets in some blocks; return how many, and the next block, 0 after the last."""
    rows = yield _SQL["sweep_buckets"](block=block, blocks=_BLOCKS)
    return rows[0]["deleted"], _following(rows, block)


def vacuum() -> Plan[None]:
    """Vacuum the table of instances. Cannot run in a transaction."""
    yield _SQL["vacuum"]()


def _following(rows: Rows, block: int) -> int:
    blocks: int = rows[0]["blocks"]
    return block + _BLOCKS if block + _BLOCKS < blocks else 0
