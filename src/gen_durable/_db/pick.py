"""Leasing work: the pick itself, what the picked rows need, and the gate in front of busy keys."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
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
    "Picked",
    "Throttled",
    "after",
    "child_content",
    "gate",
    "hurry",
    "inboxes",
    "load",
    "pick",
    "pick_by_machine",
    "pick_by_prefix",
    "put_off",
    "signal_content",
    "stuck_keys",
    "unfinished",
    "ungate",
]

_SQL = statements("pick.sql")
BUDGET: Final = 2**20
"""Bytes of JSON that come along with an execution: of signals that it does not await, and of its children."""
# How many rows of one key or bucket leave the head of a queue in one transaction.
_CHUNK = 1000

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


class Throttled(msgspec.Struct, frozen=True, gc=False):
    """A bucket that had fewer tokens than a pick wanted."""

    key: str
    queue: str
    wanted: int
    granted: int
    fsm: str
    step: str
    is_known: bool = True
    """Whether there is such a limit."""


class Picked(msgspec.Struct, frozen=True, gc=False):
    """What one pick brought."""

    executions: list[Execution]
    denied: list[Denied]
    throttled: list[Throttled] = []
    is_crowded: bool = False
    """Whether rows of machines that this worker does not know fill the head of the queue."""
    is_held_back: bool = False
    """Whether the next one in line has to wait for a free slot, because its start costs tokens."""


def pick(
    queue: str,
    machines: Machines,
    demand: int,
    lease_token: int,
    worker: str,
    leases: Leases,
    room: int | None = None,
) -> Plan[Picked]:
    """Lease up to `demand` due instances of these machines. What they carry is for `load`, when their leases are kept.

    Only `room` of them begin at once (`None`: all). The others are leased ahead, but for those under a rate limit.
    """
    fsms, versions = machines
    call = _SQL["pick"](
        queue=queue,
        fsms=fsms,
        versions=versions,
        demand=demand,
        room=demand if room is None else room,
        lease_token=lease_token,
        worker=worker,
        **leases.values(),
    )
    return _picked((yield call))


def pick_by_machine(
    queue: str,
    machines: Machines,
    demand: int,
    reach: int,
    lease_token: int,
    worker: str,
    leases: Leases,
    room: int | None = None,
) -> Plan[Picked]:
    """The same rows, when the queue is crowded: what it costs does not depend on rows of other machines.

    Of the first `reach` due rows, those that nobody else holds are leased, at most `demand` of them.
    """
    fsms, versions = machines
    call = _SQL["pick_by_machine"](
        queue=queue,
        fsms=fsms,
        versions=versions,
        demand=demand,
        room=demand if room is None else room,
        reach=reach,
        lease_token=lease_token,
        worker=worker,
        **leases.values(),
    )
    return _picked((yield call))


def pick_by_prefix(
    prefix: str,
    machines: Machines | None,
    demand: int,
    reach: int,
    lease_token: int,
    worker: str,
    leases: Leases,
    room: int | None = None,
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
        room=demand if room is None else room,
        reach=reach,
        lease_token=lease_token,
        worker=worker,
        **leases.values(),
    )
    return _picked((yield call))


def after(prefix: str) -> str:
    """The first text, in the order of code points, that is above everything that begins with the prefix."""
    for place in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[place]) + 1
        if code <= sys.maxunicode:
            # Surrogates are no characters of their own.
            return prefix[:place] + chr(0xE000 if 0xD800 <= code <= 0xDFFF else code)
    raise UsageError(f"the prefix {prefix!r} has no end", "give one with another character in it")


def _picked(rows: Rows) -> Picked:
    if not rows:
        return Picked([], [])
    leased = [row for row in rows if row["lease_token"] is not None]
    others = [row for row in rows if row["lease_token"] is None]
    # UPDATE returns rows in no order; work starts in the order in which it was due.
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
    """These executions with what they carry, signals and children: two statements at most."""
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
        if one.is_laden
        else one
        for one in executions
    ]


def inboxes(ids: Sequence[int]) -> Plan[Mapping[int, tuple[SignalRow, ...]]]:
    """The unread signals of these instances, oldest first."""
    return _by_target((yield _SQL["inboxes"](ids=ids, budget=BUDGET)))


def signal_content(id: int, ids: Sequence[int]) -> Plan[dict[int, str]]:
    """Payloads of unread signals of one instance."""
    return {row["id"]: row["payload"] for row in (yield _SQL["signal_content"](id=id, ids=ids))}


def child_content(id: int, ids: Sequence[int]) -> Plan[dict[int, ChildContent]]:
    """States and results of children of one instance."""
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


def gate(keys: Sequence[str], *, is_patient: bool = True) -> Plan[Counter[str]]:
    """Take due rows of busy keys out of the pick, a chunk of each; how many of each key. Needs a transaction.

    The holders are locked while their rows are gated, so a holder that ends now does so before, and its slot counts as
    free, or after, and then it lets the next row in. For free slots the first rows of the line are locked instead, and
    stay. Patient, it waits for holders that somebody has locked: run it where that is only briefly. Else those count as
    free slots.
    """
    lock = _SQL["lock_holders" if is_patient else "lock_free_holders"]
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


def put_off(throttled: Sequence[Throttled], machines: Machines | None) -> Plan[Counter[str]]:
    """Give due rows of empty buckets the times of their turns, a chunk of each; how many. Needs a transaction."""
    fsms, versions = machines or (None, None)
    rows = yield _SQL["put_off"](
        keys=[one.key for one in throttled],
        queues=[one.queue for one in throttled],
        fsms=fsms,
        versions=versions,
    )
    found: Counter[str] = Counter()
    for row in rows:
        found[row["key"]] += row["count"]
    return found


def unfinished(counts: Counter[str]) -> set[str]:
    """The keys or buckets of which there may be more rows than one chunk."""
    return {key for key, count in counts.items() if count >= _CHUNK}


def ungate(keys: Sequence[str]) -> Plan[set[str]]:
    """Let the next row of each freed key in; the queues that they wait in."""
    rows = yield _SQL["ungate"](keys=sorted(set(keys)))
    return {row["queue"] for row in rows}


def hurry() -> Plan[set[str]]:
    """Let those start earlier who wait for their turn at a full bucket; the queues that they wait in."""
    rows = yield _SQL["hurry"]()
    return {row["queue"] for row in rows}


def stuck_keys() -> Plan[list[str]]:
    """Keys with a free slot for which the next in line is gated. Without faults there is none."""
    rows = yield _SQL["stuck_keys"]()
    return [row["key"] for row in rows]


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
        row["slot_at"],
        row["execution"],
        row["traceparent"],
        row["inserted_at"],
        row["rate_limit"],
        row["has_children"],
    )
