"""Keep rows that cannot start out of the pick: gate rows of busy keys, defer rows of empty buckets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from .pick import Machines, Throttled
from .plan import Plan, statements

__all__ = [
    "StuckKeys",
    "defer_throttled",
    "gate",
    "mark_unserved",
    "may_have_more",
    "pull_forward",
    "stuck_keys",
    "ungate",
]

_SQL = statements("admission.sql")
# How many rows one statement gates or defers; the same number is in the statements.
_CHUNK: Final = 1000


def gate(keys: Sequence[str], *, wait_for_holders: bool = True) -> Plan[Counter[str]]:
    """Gate due rows of busy keys, one chunk in all; return how many of each key. Needs a transaction.

    The holders of the keys stay locked until the commit. A holder that ends before that lock has freed its slot; one
    that ends after the commit ungates the next row. For each free slot, the first row of the key is locked instead and
    not gated.

    With `wait_for_holders` the statement waits for holders that another transaction has locked: set a short
    lock_timeout. Without it, locked holders count as free slots.
    """
    lock = _SQL["lock_holders" if wait_for_holders else "lock_free_holders"]
    rows = yield lock(keys=sorted(set(keys)))
    busy = [row["key"] for row in rows if not row["free"]]
    free = [(row["key"], row["free"]) for row in rows if row["free"]]
    gated: Counter[str] = Counter()
    if busy:
        rows = yield _SQL["gate"](keys=busy)
        gated.update(row["concurrency_key"] for row in rows)
    if free:
        rows = yield _SQL["gate_behind"](keys=[key for key, _ in free], free=[count for _, count in free])
        gated.update(row["concurrency_key"] for row in rows)
    return gated


def defer_throttled(throttled: Sequence[Throttled], machines: Machines | None) -> Plan[Counter[str]]:
    """Move due rows of empty buckets to the time when they get tokens, one chunk in all; return how many of each.

    Needs a transaction.
    """
    fsms, versions = machines or (None, None)
    rows = yield _SQL["defer_throttled"](
        keys=[one.key for one in throttled],
        queues=[one.queue for one in throttled],
        fsms=fsms,
        versions=versions,
    )
    deferred: Counter[str] = Counter()
    for row in rows:
        deferred[row["key"]] += row["count"]
    return deferred


def may_have_more(counts: Counter[str]) -> bool:
    """Whether the keys or buckets may have more rows than the chunk that was gated or deferred."""
    return counts.total() >= _CHUNK


def ungate(keys: Sequence[str]) -> Plan[set[str]]:
    """Let the next row of each freed key into the pick; return the queues of these rows."""
    rows = yield _SQL["ungate"](keys=sorted(set(keys)))
    return {row["queue"] for row in rows}


def pull_forward() -> Plan[set[str]]:
    """Make deferred rows of full buckets due now; return the queues of these rows.

    A bucket is full early if rows that had its next tokens were cancelled.
    """
    rows = yield _SQL["pull_forward"]()
    return {row["queue"] for row in rows}


def mark_unserved() -> Plan[None]:
    """Mark the groups of rows that no live worker can start. After a minute they do not block their keys."""
    yield _SQL["mark_unserved"]()


class StuckKeys(NamedTuple):
    """Keys with a free slot whose next row is gated."""

    keys: list[str]
    is_expected: bool
    """Whether a worker that started or stopped may be the reason; otherwise something failed."""


def stuck_keys() -> Plan[StuckKeys]:
    """Find keys with a free slot whose next row is gated."""
    rows = yield _SQL["stuck_keys"]()
    return StuckKeys([row["key"] for row in rows], any(row["is_expected"] for row in rows))
