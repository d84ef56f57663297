"""Checks of the summary: compare the database with the ledger of the printer. Pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ..instance import ExecutionRecord, ExecutionStatus, Instance, Status
from .ledger import Print
from .machines import Order, Parcel, Receipt, Shipped

__all__ = ["Check", "Evidence", "checks"]

# The steps that each machine commits, one transition each.
_CHECKOUT: Final = ["start", "pack", "close"]
_SHIPMENT: Final = ["label", "hand_over"]
_COMMITTED: Final = (ExecutionStatus.COMMITTED, ExecutionStatus.DONE)
_SHOWN_FAULTS: Final = 3


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All data at the end of the demo."""

    sent: Mapping[int, int]
    """Cents paid, by id of the checkout; one entry per inserted checkout."""
    parcels: int
    """Parcels per checkout."""
    checkouts: Sequence[Instance[Order, Receipt]]
    shipments: Sequence[Instance[Parcel, Shipped]]
    prints: Sequence[Print]
    killed_pid: int
    killed_ids: frozenset[int]
    """Shipments whose label that process had printed, but not committed, when it was killed."""
    executions: Sequence[ExecutionRecord]
    """Of all these instances."""


class Check(msgspec.Struct, frozen=True):
    """A claim, and the first facts that contradict it."""

    claim: str
    faults: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Return whether nothing contradicts the claim."""
        return not self.faults


def checks(evidence: Evidence) -> list[Check]:
    """Return the checks of the summary in display order."""
    claims = (_nothing_lost, _children, _transitions, _payments, _killed, _prints)
    return [
        Check(claim, tuple(faults)[:_SHOWN_FAULTS]) for claim, faults in (each(evidence) for each in claims)
    ]


_Claim = tuple[str, Iterable[str]]


def _nothing_lost(evidence: Evidence) -> _Claim:
    count = len(evidence.sent)
    gone = set(evidence.sent) - {one.id for one in evidence.checkouts}
    unfinished = [
        f"{one.machine} {one.id} has status {one.status.value} at step '{one.step}': {one.last_error or 'no error'}"
        for one in _every(evidence)
        if one.status is not Status.DONE
    ]
    return (
        f"{count} checkouts inserted, {count} done: nothing was lost",
        [f"checkout {id} is missing" for id in sorted(gone)] + unfinished,
    )


def _children(evidence: Evidence) -> _Claim:
    numbers: dict[int | None, list[int]] = defaultdict(list)
    for shipment in evidence.shipments:
        numbers[shipment.parent_id].append(shipment.state.number)
    every = list(range(1, evidence.parcels + 1))
    return (
        f"{len(evidence.shipments)} shipments, exactly {evidence.parcels} per checkout: no fan-out was committed twice",
        [f"checkout {id} has parcels {sorted(n)}" for id, n in numbers.items() if sorted(n) != every]
        + [f"checkout {id} has no parcels" for id in evidence.sent if id not in numbers],
    )


def _transitions(evidence: Evidence) -> _Claim:
    return (
        f"{sum(one.step_seq for one in _every(evidence)):,} transitions committed, each by one execution, in order",
        [
            *_wrong_trails(evidence.checkouts, _CHECKOUT),
            *_wrong_trails(evidence.shipments, _SHIPMENT),
            *_wrong_transitions(evidence),
        ],
    )


def _wrong_transitions(evidence: Evidence) -> Iterable[str]:
    """Find transitions without exactly one committed execution."""
    counts = Counter((one.job_id, one.step_seq) for one in evidence.executions if one.status in _COMMITTED)
    made = {(one.id, number) for one in _every(evidence) for number in range(1, one.step_seq + 1)}
    for id, number in sorted(made | set(counts)):
        if (id, number) not in made or counts[id, number] != 1:
            yield f"transition {number} of instance {id} was committed by {counts[id, number]} executions"


def _every(evidence: Evidence) -> list[Instance[Any, Any]]:
    return [*evidence.checkouts, *evidence.shipments]


def _wrong_trails(instances: Iterable[Instance[Any, Any]], wanted: list[str]) -> Iterable[str]:
    for one in instances:
        trail = one.result.trail if one.status is Status.DONE else one.state.trail
        if one.step_seq != len(wanted) or trail != wanted:
            yield f"{one.machine} {one.id} committed {one.step_seq} transitions: {', '.join(trail)}"


def _payments(evidence: Evidence) -> _Claim:
    wrong = [
        f"checkout {one.id} has {one.result.cents} cents, paid {evidence.sent.get(one.id)}"
        for one in evidence.checkouts
        if one.status is Status.DONE and one.result.cents != evidence.sent.get(one.id)
    ]
    return f"{_euros(evidence)} paid, every payment counted once", wrong


def _euros(evidence: Evidence) -> str:
    return f"€ {sum(evidence.sent.values()) / 100:,.2f}"


def _killed(evidence: Evidence) -> _Claim:
    owner = f":{evidence.killed_pid}:"
    dead = [one for one in evidence.executions if one.outcome == "lease" and owner in (one.lease_owner or "")]
    again = {
        (one.job_id, one.step_seq)
        for one in evidence.executions
        if one.status in _COMMITTED and owner not in (one.lease_owner or "")
    }
    printed = {each.parcel_id for each in evidence.prints if each.pid != evidence.killed_pid}
    return (
        f"{len(dead)} running steps were lost with the killed worker ({len(evidence.killed_ids)} had printed their "
        "label); the other worker ran all of them again",
        [
            f"step {one.step} of instance {one.job_id} was not run again"
            for one in dead
            if (one.job_id, one.step_seq) not in again
        ]
        + [
            f"shipment {id} was not run again"
            for id in sorted(evidence.killed_ids - (printed & {one.job_id for one in dead}))
        ],
    )


def _prints(evidence: Evidence) -> _Claim:
    keys: dict[int, Counter[str]] = defaultdict(Counter)
    for each in evidence.prints:
        keys[each.parcel_id][each.key] += 1
    again = len(evidence.prints) - len(keys)
    return (
        f"{len(evidence.prints)} labels printed, {again} of them repeated, with the same idempotency key",
        [f"shipment {one.id} has no label" for one in evidence.shipments if one.id not in keys]
        + [
            f"shipment {id} printed with {len(counts)} keys" for id, counts in keys.items() if len(counts) > 1
        ],
    )
