"""Leasing work: the pick itself, what the picked rows need, and the gate in front of busy keys."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import msgspec

from .._core.model import ChildRow, Execution, SignalRow
from ..errors import UsageError
from .plan import Plan, Row, Rows, statements

__all__ = [
    "Denied",
    "Leases",
    "Machines",
    "Picked",
    "after",
    "gate",
    "inboxes",
    "pick",
    "pick_by_prefix",
    "stuck_keys",
    "ungate",
]

_SQL = statements("pick.sql")

Machines: TypeAlias = tuple[list[str], list[int]]
"""Names and versions, in parallel."""


class Leases(msgspec.Struct, frozen=True):
    """How long executions are leased: the rule, and the steps that have a length of their own."""

    rule: timedelta
    own: Mapping[tuple[str, int, str], timedelta] = {}

    def values(self) -> dict[str, Any]:
        """As the statements take them."""
        return {
            "lease": self.rule,
            "own_fsms": [fsm for fsm, _, _ in self.own],
            "own_versions": [version for _, version, _ in self.own],
            "own_steps": [step for _, _, step in self.own],
            "own_leases": list(self.own.values()),
        }

    def of(self, fsm: str, version: int, step: str) -> timedelta:
        """The length for one step."""
        return self.own.get((fsm, version, step), self.rule)


class Denied(msgspec.Struct, frozen=True, gc=False):
    """The first row of a key that a pick met and could not take."""

    id: int
    fsm: str
    concurrency_key: str


class Picked(msgspec.Struct, frozen=True, gc=False):
    """What one pick brought."""

    executions: list[Execution]
    denied: list[Denied]


def pick(
    queue: str,
    machines: Machines,
    demand: int,
    lease_token: int,
    worker: str,
    leases: Leases,
) -> Plan[Picked]:
    """Lease up to `demand` due instances of these machines: one statement, and at most two more for what they carry."""
    fsms, versions = machines
    call = _SQL["pick"](
        queue=queue,
        fsms=fsms,
        versions=versions,
        demand=demand,
        lease_token=lease_token,
        worker=worker,
        **leases.values(),
    )
    return (yield from _picked((yield call)))


def pick_by_prefix(
    prefix: str,
    machines: Machines | None,
    demand: int,
    reach: int,
    lease_token: int,
    worker: str,
    leases: Leases,
) -> Plan[Picked]:
    """The same for every machine whose name begins with the prefix; of these machines only, if any are given.

    Of the first `reach` due rows, those that nobody else holds are leased, at most `demand` of them.
    """
    fsms, versions = machines or (None, None)
    call = _SQL["pick_by_prefix"](
        low=prefix,
        high=after(prefix),
        fsms=fsms,
        versions=versions,
        demand=demand,
        reach=reach,
        lease_token=lease_token,
        worker=worker,
        **leases.values(),
    )
    return (yield from _picked((yield call)))


def after(prefix: str) -> str:
    """The first text, in the order of code points, that is above everything that begins with the prefix."""
    for place in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[place]) + 1
        if code <= sys.maxunicode:
            # Surrogates are no characters of their own.
            return prefix[:place] + chr(0xE000 if 0xD800 <= code <= 0xDFFF else code)
    raise UsageError(f"the prefix {prefix!r} has no end", "give one with another character in it")


def _picked(rows: Rows) -> Plan[Picked]:
    if not rows:
        return Picked([], [])
    leased = [row for row in rows if row["lease_token"] is not None]
    denied = [
        Denied(row["id"], row["fsm"], row["concurrency_key"]) for row in rows if row["lease_token"] is None
    ]
    signals: Mapping[int, tuple[SignalRow, ...]] = {}
    if with_signals := [row["id"] for row in leased if row["has_signals"]]:
        signals = yield from inboxes(with_signals)
    children: Mapping[int, list[ChildRow]] = {}
    if joined := [row for row in leased if row["has_children"]]:
        children = _by_parent(
            (
                yield _SQL["children"](
                    ids=[row["id"] for row in joined], rounds=[row["step_seq"] for row in joined]
                )
            )
        )
    # UPDATE returns rows in no order; work starts in the order in which it was due.
    leased.sort(key=_urgency)
    return Picked(
        [_execution(row, signals.get(row["id"], ()), tuple(children.get(row["id"], ()))) for row in leased],
        denied,
    )


def inboxes(ids: Sequence[int]) -> Plan[Mapping[int, tuple[SignalRow, ...]]]:
    """The unread signals of these instances, oldest first."""
    rows = yield _SQL["inboxes"](ids=ids)
    found: defaultdict[int, list[SignalRow]] = defaultdict(list)
    for row in rows:
        found[row["target_id"]].append(
            SignalRow(row["id"], row["name"], row["payload"], row["inserted_at"], row["traceparent"])
        )
    return {id: tuple(signals) for id, signals in found.items()}


def gate(keys: Sequence[str]) -> Plan[Counter[str]]:
    """Take the due rows of busy keys out of the pick; how many of each key. Needs a transaction.

    The holders are locked while their rows are gated, so a holder that ends does so after, and then it lets the next
    row in. Where nobody holds the key, or somebody has locked who does, the first row is locked instead, and stays.
    Nothing here waits: a pick comes before.
    """
    rows = yield _SQL["lock_holders"](keys=sorted(keys))
    busy = {row["concurrency_key"] for row in rows}
    gated: Counter[str] = Counter()
    if busy:
        rows = yield _SQL["gate"](keys=sorted(busy))
        gated.update(row["concurrency_key"] for row in rows)
    if free := set(keys) - busy:
        rows = yield _SQL["gate_behind"](keys=sorted(free))
        gated.update(row["concurrency_key"] for row in rows)
    return gated


def ungate(keys: Sequence[str]) -> Plan[set[str]]:
    """Let the next row of each freed key in; the queues that they wait in."""
    rows = yield _SQL["ungate"](keys=sorted(set(keys)))
    return {row["queue"] for row in rows}


def stuck_keys() -> Plan[list[str]]:
    """Keys that nobody holds and whose rows are all gated. Without faults there is none."""
    rows = yield _SQL["stuck_keys"]()
    return [row["key"] for row in rows]


def _urgency(row: Row) -> tuple[int, object, int]:
    return (row["priority"], row["due"], row["id"])


def _by_parent(rows: Rows) -> Mapping[int, list[ChildRow]]:
    found: defaultdict[int, list[ChildRow]] = defaultdict(list)
    for row in rows:
        found[row["parent_id"]].append(
            ChildRow(
                row["id"],
                row["fsm"],
                row["fsm_version"],
                row["status"],
                row["state"],
                row["result"],
                row["last_error"],
            )
        )
    return found


def _execution(row: Row, inbox: tuple[SignalRow, ...], children: tuple[ChildRow, ...]) -> Execution:
    awaits = row["awaits"]
    return Execution(
        row["id"],
        row["lease_token"],
        row["fsm"],
        row["fsm_version"],
        row["step"],
        row["step_seq"],
        row["attempt"],
        row["state"],
        row["queue"],
        None if awaits is None else tuple(awaits),
        row["timed_out"],
        inbox,
        children,
        row["parent_id"],
        row["concurrency_key"],
        row["correlation_key"],
        row["leased_at"],
        row["has_signals"],
        row["max_attempts"],
        row["slot_at"],
        row["execution"],
        row["traceparent"],
        row["inserted_at"],
    )
