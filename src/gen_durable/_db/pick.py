"""Lease due rows, and load their inboxes and children."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Final, TypeAlias

import msgspec

from .._core.model import ChildContent, ChildRow, Execution, SignalRow
from ..errors import UsageError
from .plan import Plan, Row, Rows, statements

__all__ = [
    "BUDGET",
    "MAX_ROWS",
    "Denied",
    "Leases",
    "Machines",
    "Passed",
    "PickRequest",
    "Picked",
    "Throttled",
    "child_content",
    "inboxes",
    "load",
    "pick",
    "pick_by_machine",
    "pick_by_prefix",
    "pick_with_admission",
    "prefix_upper_bound",
    "signal_content",
    "undo_starts",
]

_SQL = statements("pick.sql")
BUDGET: Final = 2**20
"""Bytes of JSON that are loaded with an execution: payloads of signals it does not await, and its children."""
MAX_ROWS: Final = 1000
"""The most rows that one pick leases. The statements have it as a literal."""

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
            "own_fsms": [fsm for fsm, _, _ in self.own] or None,
            "own_versions": [version for _, version, _ in self.own],
            "own_steps": [step for _, _, step in self.own],
            "own_leases": list(self.own.values()),
        }

    def of(self, fsm: str, version: int, step: str) -> timedelta:
        """The length for one step."""
        return self.own.get((fsm, version, step), self.default)


class Passed(msgspec.Struct, frozen=True):
    """Concurrency keys and rate limit buckets whose rows a pick passes over, because they are being set aside."""

    keys: list[str] = []
    buckets: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.keys or self.buckets)


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
    passed: Passed = Passed()
    is_traced: bool = False
    """Whether to read `inserted_at`, which traces of instances without a producer's trace need."""

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
            "passed_keys": self.passed.keys,
            "passed_buckets": self.passed.buckets,
            "traced": self.is_traced,
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
    needs_admission: bool = False
    """Whether a candidate has a concurrency key or a rate limit."""


def pick(queue: str, request: PickRequest) -> Plan[Picked]:
    """Lease due instances of one queue; in a second statement if one of them has a concurrency key or a rate limit.

    `load` reads their inboxes and children; the heartbeat must know their leases before.
    """
    picked = _picked((yield _SQL["pick"](queue=queue, **request.values())), request)
    if picked.needs_admission:
        return (yield from pick_with_admission(queue, request))
    return picked


def pick_with_admission(queue: str, request: PickRequest) -> Plan[Picked]:
    """Like `pick`, in one statement, for a queue with concurrency keys or rate limits. It costs more per row."""
    return _picked((yield _SQL["pick_with_admission"](queue=queue, **request.values())), request)


def pick_by_machine(queue: str, request: PickRequest, reach: int) -> Plan[Picked]:
    """Like `pick`, for a queue with many rows of other machines: its cost does not depend on them.

    Of the first `reach` due rows, up to `demand` that are not locked are leased.
    """
    call = _SQL["pick_by_machine"](queue=queue, reach=reach, **request.values())
    return _picked((yield call), request)


def pick_by_prefix(prefix: str, request: PickRequest, reach: int) -> Plan[Picked]:
    """Like `pick`, for all machines whose name begins with a prefix, in any queue.

    Of the first `reach` due rows, up to `demand` that are not locked are leased.
    """
    call = _SQL["pick_by_prefix"](
        low=prefix, high=prefix_upper_bound(prefix), reach=reach, **request.values()
    )
    return _picked((yield call), request)


def prefix_upper_bound(prefix: str) -> str:
    """The least text, in code point order, above everything that begins with the prefix."""
    for place in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[place]) + 1
        if code <= sys.maxunicode:
            # Surrogates are not characters.
            return prefix[:place] + chr(0xE000 if 0xD800 <= code <= 0xDFFF else code)
    raise UsageError(f"prefix {prefix!r} has no upper bound", "use a prefix with another character")


class _Details(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Columns that most instances do not use, in the order of `leased` in pick.sql."""

    awaits: tuple[str, ...] | None
    timed_out: bool
    has_signals: bool
    has_children: bool
    parent_id: int | None
    concurrency_key: str | None
    correlation_key: str | None
    max_attempts: int | None
    fire_time: datetime | None
    rate_limit: str | None
    traceparent: str | None
    inserted_at: datetime | None
    failure: str | None
    is_compensating: bool
    checkpoint: str | None


_details = msgspec.json.Decoder(_Details).decode
_charge = msgspec.json.Decoder(tuple[str, int, int | None]).decode
_text = msgspec.json.Decoder(str).decode
_position = itemgetter("position")


def _picked(rows: Rows, request: PickRequest) -> Picked:
    leased = [row for row in rows if row["kind"] == "leased"]
    # UPDATE returns rows in no particular order; executions start in pick order.
    leased.sort(key=_position)
    executions = _executions(leased, request.lease_token)
    if len(leased) == len(rows):
        return Picked(executions, [])
    others: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        others[row["kind"]].append(row)
    return Picked(
        executions,
        [Denied(row["id"], row["fsm"], _text(row["details"])) for row in others["denied"]],
        [_throttled(row) for row in others["throttled"]],
        has_foreign_head="foreign_head" in others,
        is_awaiting_capacity="awaiting_capacity" in others,
        needs_admission="needs_admission" in others,
    )


def _executions(rows: Rows, lease_token: int) -> list[Execution]:
    """Leased rows as executions. The columns are read by position, which costs half as much as by name."""
    found: list[Execution] = []
    for row in rows:
        _, _, id, fsm, version, step, step_seq, attempt, state, queue, number, leased_at, due_at, details = (
            row.values()
        )
        if details is None:
            execution = Execution(
                id,
                lease_token,
                fsm,
                version,
                step,
                step_seq,
                attempt,
                state,
                queue,
                leased_at=leased_at,
                due_at=due_at,
                number=number,
            )
        else:
            more = _details(details)
            execution = Execution(
                id,
                lease_token,
                fsm,
                version,
                step,
                step_seq,
                attempt,
                state,
                queue,
                leased_at=leased_at,
                due_at=due_at,
                number=number,
                awaits=more.awaits,
                timed_out=more.timed_out,
                has_signals=more.has_signals,
                has_children=more.has_children,
                parent_id=more.parent_id,
                concurrency_key=more.concurrency_key,
                correlation_key=more.correlation_key,
                max_attempts=more.max_attempts,
                fire_time=more.fire_time,
                rate_limit=more.rate_limit,
                traceparent=more.traceparent,
                inserted_at=more.inserted_at,
                failure=more.failure,
                is_compensating=more.is_compensating,
                checkpoint=more.checkpoint,
            )
        found.append(execution)
    return found


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


def undo_starts(executions: Sequence[Execution]) -> Plan[dict[int, str]]:
    """Of executions at undo steps, return those whose undo a client has started, with the step of the cancel, by id."""
    rows = yield _SQL["undo_starts"](
        ids=[one.id for one in executions],
        step_seqs=[one.step_seq for one in executions],
        numbers=[one.number for one in executions],
    )
    return {row["id"]: row["step"] for row in rows}


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
    key, wanted, granted = _charge(row["details"])
    return Throttled(key, row["queue"], wanted, granted or 0, row["fsm"], row["step"], granted is not None)


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
