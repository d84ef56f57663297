"""The closing summary: what the database and the printer's ledger say about loss and repetition. Pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ..instance import ExecutionRecord, ExecutionStatus, Instance, Status
from .ledger import Print
from .machines import Order, Parcel, Receipt, Shipped

__all__ = ["Check", "Evidence", "checks"]

# The steps that one run through each machine commits, and so the number of its transitions.
_CHECKOUT: Final = ["start", "pack", "close"]
_SHIPMENT: Final = ["label", "hand_over"]
_COMMITTED: Final = (ExecutionStatus.COMMITTED, ExecutionStatus.DONE)
_SHOWN_FAULTS: Final = 3


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known when the story is over."""

    sent: Mapping[int, int]
    """The cents that the bank announced, by the id of the checkout: one entry for each that was inserted."""
    parcels: int
    """How many parcels each checkout sends."""
    checkouts: Sequence[Instance[Order, Receipt]]
    shipments: Sequence[Instance[Parcel, Shipped]]
    prints: Sequence[Print]
    killed_pid: int
    killed_ids: frozenset[int]
    """The shipments whose label was being printed when that process was killed."""
    executions: Sequence[ExecutionRecord]
    """Of all of these instances."""


class Check(msgspec.Struct, frozen=True):
    """A claim, and the first few facts that contradict it."""

    claim: str
    faults: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing contradicts it."""
        return not self.faults


def checks(evidence: Evidence) -> list[Check]:
    """The claims of the summary, in the order in which they are shown."""
    claims = (_nothing_lost, _children, _transitions, _payments, _killed, _prints)
    return [
        Check(claim, tuple(faults)[:_SHOWN_FAULTS]) for claim, faults in (each(evidence) for each in claims)
    ]


_Claim = tuple[str, Iterable[str]]


def _nothing_lost(evidence: Evidence) -> _Claim:
    count = len(evidence.sent)
    gone = set(evidence.sent) - {one.id for one in evidence.checkouts}
    unfinished = [
        f"{one.machine} {one.id} is {one.status.value} at step '{one.step}': {one.last_error or 'no error'}"
        for one in _every(evidence)
        if one.status is not Status.DONE
    ]
    return (
        f"{count} checkouts inserted, {count} done: nothing lost",
        [f"checkout {id} is gone" for id in sorted(gone)] + unfinished,
    )


def _children(evidence: Evidence) -> _Claim:
    numbers: dict[int | None, list[int]] = defaultdict(list)
    for shipment in evidence.shipments:
        numbers[shipment.parent_id].append(shipment.state.number)
    every = list(range(1, evidence.parcels + 1))
    return (
        f"{len(evidence.shipments)} parcels, exactly {evidence.parcels} for each checkout: no fan-out ran twice",
        [f"checkout {id} has the parcels {sorted(n)}" for id, n in numbers.items() if sorted(n) != every]
        + [f"checkout {id} has no parcels" for id in evidence.sent if id not in numbers],
    )


def _transitions(evidence: Evidence) -> _Claim:
    return (
        f"{sum(one.step_seq for one in _every(evidence)):,} transitions committed, each by one execution and in order",
        [
            *_astray(evidence.checkouts, _CHECKOUT),
            *_astray(evidence.shipments, _SHIPMENT),
            *_uneven(evidence),
        ],
    )


def _uneven(evidence: Evidence) -> Iterable[str]:
    """Transitions that the records of executions do not have exactly once."""
    counts = Counter((one.job_id, one.step_seq) for one in evidence.executions if one.status in _COMMITTED)
    made = {(one.id, number) for one in _every(evidence) for number in range(1, one.step_seq + 1)}
    for id, number in sorted(made | set(counts)):
        if (id, number) not in made or counts[id, number] != 1:
            yield f"transition {number} of instance {id}: committed by {counts[id, number]} of its executions"


def _every(evidence: Evidence) -> list[Instance[Any, Any]]:
    return [*evidence.checkouts, *evidence.shipments]


def _astray(instances: Iterable[Instance[Any, Any]], wanted: list[str]) -> Iterable[str]:
    for one in instances:
        trail = one.result.trail if one.status is Status.DONE else one.state.trail
        if one.step_seq != len(wanted) or trail != wanted:
            yield f"{one.machine} {one.id} committed {one.step_seq} transitions: {', '.join(trail)}"


def _payments(evidence: Evidence) -> _Claim:
    wrong = [
        f"checkout {one.id} took {one.result.cents} cents of {evidence.sent.get(one.id)}"
        for one in evidence.checkouts
        if one.status is Status.DONE and one.result.cents != evidence.sent.get(one.id)
    ]
    return f"{_euros(evidence)} paid, every payment taken once", wrong


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
        f"leases lost by the SIGKILL: {len(dead)}, {len(evidence.killed_ids)} of them with a label just printed; "
        "the other worker ran all of these steps",
        [
            f"{one.step} of instance {one.job_id} was not run again"
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
        f"{len(evidence.prints)} labels printed, {again} more than parcels: repeats, under the same idempotency key",
        [f"shipment {one.id} has no label" for one in evidence.shipments if one.id not in keys]
        + [
            f"shipment {id} printed under {len(counts)} keys"
            for id, counts in keys.items()
            if len(counts) > 1
        ],
    )
