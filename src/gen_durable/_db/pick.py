"""Lease due rows, and load their inboxes and children."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias

import msgspec

from .._core.model import ChildContent, ChildRow, Execution, SignalRow
from ..errors import UsageError
from .plan import Plan, Row, Rows, statements

__all__ = [
    "BUDGET",
    "Denied",
    "Leases",
    "Machines",
    "PickRequest",
    "Picked",
    "Throttled",
    "child_content",
    "inboxes",
    "load",
    "pick",
    "pick_by_machine",
    "pick_by_prefix",
    "prefix_upper_bound",
    "signal_content",
]

_SQL = statements("pick.sql")
BUDGET: Final = 2**20
"""Bytes of JSON that are loaded with an execution: payloads of signals it does not await, and its children."""

Machines: TypeAlias = tuple[list[str], list[int]]
"""Names and versions, in parallel."""


class Leases(msgspec.Struct, frozen=True):
    """The length of leases: the default, and that of steps which have their own."""

    default: timedelta
    own: Mapping[tuple[str, int, str], timedelta] = {}

    def values(self) -> dict[str, Any]:
        """The parameters of the statements."""
        return {
            "lease": self.default,
            "own_fsms": [fsm for fsm, _, _ in self.own],
            "own_versions": [version for _, version, _ in self.own],
            "own_steps": [step for _, _, step in self.own],
            "own_leases": list(self.own.values()),
        }

    def of(self, fsm: str, version: int, step: str) -> timedelta:
        """The length for one step."""
        return self.own.get((fsm, version, step), self.default)


class PickRequest(msgspec.Struct, frozen=True):
    """What one pick leases, and under which lease."""

    machines: Machines | None
    """The machines whose rows it leases; `None`: all under a prefix."""
    demand: int
    """The most rows to lease."""
    lease_token: int
    worker: str
    leases: Leases
    startable: int | None = None
    """How many of the rows can start at once; `None`: all. Rows with a rate limit are not leased beyond these."""

    def values(self) -> dict[str, Any]:
        """The parameters of the statements."""
        fsms, versions = self.machines or (None, None)
        return {
            "fsms": fsms,
            "versions": versions,
            "demand": self.demand,
            "capacity": self.demand if self.startable is None else self.startable,
            "lease_token": self.lease_token,
            "worker": self.worker,
            **self.leases.values(),
        }


class Denied(msgspec.Struct, frozen=True, gc=False):
    """The first row of a concurrency key that a pick could not lease because the key has no free slot."""

    id: int
    fsm: str
    concurrency_key: str


class Throttled(msgspec.Struct, frozen=True, gc=False):
    """A bucket that had fewer tokens than a pick needed."""

    key: str
    queue: str
    wanted: int
    granted: int
    fsm: str
    step: str
    is_known: bool = True
    """Whether the rate limit exists."""


class Picked(msgspec.Struct, frozen=True, gc=False):
    """The result of one pick."""

    executions: list[Execution]
    denied: list[Denied]
    throttled: list[Throttled] = []
    has_foreign_head: bool = False
    """Whether rows of machines that this worker does not run fill the head of the queue: use `pick_by_machine`."""
    is_awaiting_capacity: bool = False
    """Whether the pick stopped at a row with a rate limit that cannot start now: tokens are not spent ahead."""


def pick(queue: str, request: PickRequest) -> Plan[Picked]:
    """Lease due instances of one queue.

    `load` reads their inboxes and children; the heartbeat must know their leases before.
    """
    return _picked((yield _SQL["pick"](queue=queue, **request.values())))


def pick_by_machine(queue: str, request: PickRequest, reach: int) -> Plan[Picked]:
    """Like `pick`, for a queue with many rows of other machines: its cost does not depend on them.

    Of the first `reach` due rows, up to `demand` that are not locked are leased.
    """
    return _picked((yield _SQL["pick_by_machine"](queue=queue, reach=reach, **request.values())))


def pick_by_prefix(prefix: str, request: PickRequest, reach: int) -> Plan[Picked]:
    """Like `pick`, for all machines whose name begins with a prefix, in any queue.

    Of the first `reach` due rows, up to `demand` that are not locked are leased.
    """
    call = _SQL["pick_by_prefix"](
        low=prefix, high=prefix_upper_bound(prefix), reach=reach, **request.values()
    )
    return _picked((yield call))


def prefix_upper_bound(prefix: str) -> str:
    """The least text, in code point order, above everything that begins with the prefix."""
    for place in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[place]) + 1
        if code <= sys.maxunicode:
            # Surrogates are not characters.
            return prefix[:place] + chr(0xE000 if 0xD800 <= code <= 0xDFFF else code)
    raise UsageError(f"prefix {prefix!r} has no upper bound", "use a prefix with another character")


def _picked(rows: Rows) -> Picked:
    if not rows:
        return Picked([], [])
    leased = [row for row in rows if row["lease_token"] is not None]
    others = [row for row in rows if row["lease_token"] is None]
    # UPDATE returns rows in no particular order; executions start in pick order.
    leased.sort(key=_urgency)
    return Picked(
        [_execution(row) for row in leased],
        [
            Denied(row["id"], row["fsm"], row["concurrency_key"])
            for row in others
            if row["concurrency_key"] is not None
        ],
        [_throttled(row) for row in others if row["rate_limit"] is not None],
        any(row["id"] is None for row in others),
        any(
            row["id"] is not None and row["concurrency_key"] is None and row["rate_limit"] is None
            for row in others
        ),
    )


def load(executions: Sequence[Execution]) -> Plan[list[Execution]]:
    """Load the signals and children of executions; at most two statements."""
    signals: Mapping[int, tuple[SignalRow, ...]] = {}
    in_time: set[int] = set()
    if with_signals := [one.id for one in executions if one.has_signals]:
        rows = yield _SQL["inboxes"](ids=with_signals, budget=BUDGET)
        signals = _by_target(rows)
        in_time = {row["target_id"] for row in rows if not row["timed_out"]}
    children: Mapping[int, list[ChildRow]] = {}
    if joined := [one for one in executions if one.has_children]:
        call = _SQL["children"](
            ids=[one.id for one in joined], rounds=[one.step_seq for one in joined], budget=BUDGET
        )
        children = _by_parent((yield call))
    return [
        msgspec.structs.replace(
            one,
            inbox=signals.get(one.id, ()),
            children=tuple(children.get(one.id, ())),
            timed_out=one.timed_out and one.id not in in_time,
        )
        if one.needs_load
        else one
        for one in executions
    ]


def inboxes(ids: Sequence[int]) -> Plan[Mapping[int, tuple[SignalRow, ...]]]:
    """Read the unread signals of these instances, oldest first."""
    return _by_target((yield _SQL["inboxes"](ids=ids, budget=BUDGET)))


def signal_content(id: int, ids: Sequence[int]) -> Plan[dict[int, str]]:
    """Read payloads of unread signals of one instance."""
    return {row["id"]: row["payload"] for row in (yield _SQL["signal_content"](id=id, ids=ids))}


def child_content(id: int, ids: Sequence[int]) -> Plan[dict[int, ChildContent]]:
    """Read states and results of children of one instance."""
    rows = yield _SQL["child_content"](id=id, ids=ids)
    return {row["id"]: ChildContent(row["status"], row["state"], row["result"]) for row in rows}


def _by_target(rows: Rows) -> Mapping[int, tuple[SignalRow, ...]]:
    found: defaultdict[int, list[SignalRow]] = defaultdict(list)
    for row in rows:
        found[row["target_id"]].append(
            SignalRow(
                row["id"],
                row["name"],
                row["payload"],
                row["inserted_at"],
                row["traceparent"],
                row["size"],
            )
        )
    return {id: tuple(signals) for id, signals in found.items()}


def _throttled(row: Row) -> Throttled:
    granted = row["granted"]
    return Throttled(
        row["rate_limit"],
        row["queue"],
        row["wanted"],
        granted or 0,
        row["fsm"],
        row["step"],
        granted is not None,
    )


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
                row["size"],
            )
        )
    return found


def _execution(row: Row) -> Execution:
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
        (),
        (),
        row["parent_id"],
        row["concurrency_key"],
        row["correlation_key"],
        row["leased_at"],
        row["has_signals"],
        row["max_attempts"],
        row["fire_time"],
        row["execution"],
        row["traceparent"],
        row["inserted_at"],
        row["rate_limit"],
        row["has_children"],
    )
