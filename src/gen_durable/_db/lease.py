"""Renew leases, reap expired ones, and expire awaits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Self

import msgspec

from .._core.model import Lease, Redirect
from ..config import RecordLevel, Settings
from . import admission
from .insert import dead_letter_failed
from .plan import Plan, Row, Rows, statements
from .signals import sweep

__all__ = [
    "Crash",
    "CrashPolicy",
    "Expired",
    "Reaped",
    "Redirected",
    "Suspect",
    "end_deleted",
    "expire",
    "has_deleted",
    "mark_started",
    "reap",
    "reap_execution",
    "reap_worker",
    "renew",
    "suspect",
    "watch",
]

_SQL = statements("lease.sql")


class CrashPolicy(msgspec.Struct, frozen=True):
    """What a reap does with a crashed execution."""

    limit: int
    """After this many crashes in one step the instance fails as poison."""
    level: RecordLevel
    """Which executions leave a record."""
    alerts: str | None = None
    """The sink that gets an event for each instance that fails."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The policy of a worker with these settings."""
        return cls(settings.crash_limit, settings.executions, settings.alerts or None)

    def values(self) -> dict[str, Any]:
        """The parameters of the statements."""
        return {"crash_limit": self.limit, "record": self.level, "alerts": self.alerts}


class Redirected(msgspec.Struct, frozen=True, gc=False):
    """An instance that went to another step instead of ending."""

    id: int
    fsm: str
    step: str
    """The step in which its process died."""
    redirect: Redirect


class Crash(msgspec.Struct, frozen=True, gc=False):
    """An execution that a reap has ended, as the rollups count it."""

    fsm: str
    version: int
    step: str
    outcome: str
    cause: str | None
    to_step: str
    became: str
    """The status of the instance now, or where it went instead of ending."""
    execution: int


class Reaped(msgspec.Struct, frozen=True, gc=False):
    """The result of one reap."""

    ids: list[int]
    capped: list[int]
    """Instances that failed as poison: they reached the crash limit."""
    queues: set[str]
    redirected: list[Redirected] = []
    """Instances that went to an undo or `on_cancel` step instead of ending."""
    moved: list[int] = []
    """Instances that reached the crash limit and continue at the `on_failure` of their step."""
    crashes: list[Crash] = []


class Suspect(msgspec.Struct, frozen=True, gc=False):
    """An execution whose lease has expired and whose row was not locked."""

    id: int
    ended_at: datetime
    """When its lease expired. It differs if the lease was renewed, or if the row has a new lease."""
    touches: frozenset[int | str]
    """What a reap locks besides its row: the parent (by id) and the concurrency key."""


class Expired(msgspec.Struct, frozen=True, gc=False):
    """An await that was ended by its deadline."""

    id: int
    fsm: str
    step: str
    queue: str


def renew(leases: Mapping[Lease, timedelta]) -> Plan[tuple[set[Lease], set[Lease]]]:
    """Renew leases, each by its length; return the lost ones, and those whose row is locked by another transaction."""
    rows = yield _SQL["renew"](
        ids=[id for id, _ in leases],
        lease_tokens=[token for _, token in leases],
        leases=list(leases.values()),
    )
    missing = set(leases) - {(row["id"], row["lease_token"]) for row in rows}
    if not missing:
        return missing, missing
    rows = yield _SQL["still_held"](
        ids=[id for id, _ in missing], lease_tokens=[token for _, token in missing]
    )
    held = {(row["id"], row["lease_token"]) for row in rows}
    return missing - held, held


def watch(leases: Collection[Lease]) -> Plan[tuple[set[Lease], set[Lease]]]:
    """Of these leases, return the lost ones, and those whose instance has a cancel request."""
    rows = yield _SQL["watch"](ids=[id for id, _ in leases], lease_tokens=[token for _, token in leases])
    lost = {(row["id"], row["lease_token"]) for row in rows if row["is_lost"]}
    return lost, {(row["id"], row["lease_token"]) for row in rows} - lost


def mark_started(begun: Mapping[tuple[Lease, int], datetime | None]) -> Plan[set[tuple[Lease, int]]]:
    """Record when the steps of executions (lease and step_seq) started; return the recorded ones."""
    rows = yield _SQL["mark_started"](
        ids=[lease[0] for lease, _ in begun],
        lease_tokens=[lease[1] for lease, _ in begun],
        step_seqs=[step_seq for _, step_seq in begun],
        moments=list(begun.values()),
    )
    return {((row["id"], row["lease_token"]), row["step_seq"]) for row in rows}


def suspect() -> Plan[list[Suspect]]:
    """The executions with an expired lease whose row is not locked, so that a live worker could have renewed it."""
    found: list[Suspect] = []
    while rows := (yield _SQL["suspect"](after=found[-1].id if found else 0)):
        found += [
            Suspect(
                row["id"],
                row["lease_expires_at"],
                frozenset({row["parent_id"], row["concurrency_key"]} - {None}),
            )
            for row in rows
        ]
    return found


def reap(lease: timedelta, policy: CrashPolicy, suspects: Collection[Suspect] | None = None) -> Plan[Reaped]:
    """Return executions with an expired lease to their queues, one batch per call. Needs a transaction.

    Args:
        lease: reap nothing until the server has been up for this long, so that workers could renew.
        policy: what to do with the executions.
        suspects: reap only these, and only if their lease has not changed.
    """
    rows = yield _SQL["reap"](
        lease=lease,
        ids=None if suspects is None else [one.id for one in suspects],
        ends=None if suspects is None else [one.ended_at for one in suspects],
        **policy.values(),
    )
    return (yield from _reclaimed(rows))


def reap_worker(worker: str, policy: CrashPolicy) -> Plan[Reaped]:
    """Reap the executions of a worker whose process has died, and remove the worker. Needs a transaction.

    One batch per call.
    """
    rows = yield _SQL["reap_worker"](worker=worker, **policy.values())
    return (yield from _reclaimed(rows))


def reap_execution(lease: Lease, step_seq: int, policy: CrashPolicy) -> Plan[Reaped]:
    """Reap one execution whose process has died, if it still has its lease. Needs a transaction."""
    rows = yield _SQL["reap_execution"](
        id=lease[0], lease_token=lease[1], step_seq=step_seq, **policy.values()
    )
    return (yield from _reclaimed(rows))


def _reclaimed(rows: Rows) -> Plan[Reaped]:
    queues = {row["queue"] for row in rows if row["status"] == "runnable"}
    for row in rows:
        queues.update(row["released"] or ())
    if ended := [row["id"] for row in rows if row["has_inbox"]]:
        yield from sweep(ended)
    capped = {row["id"]: row["attempts"] for row in rows if row["status"] == "failed"}
    if capped:
        queues |= yield from dead_letter_failed(capped)
    if freed := [row["concurrency_key"] for row in rows if row["concurrency_key"] is not None]:
        queues |= yield from admission.ungate(freed)
    moved = [row["id"] for row in rows if row["verdict"] == "moved"]
    redirected = [
        Redirected(row["id"], row["fsm"], row["step"], row["redirect"])
        for row in rows
        if row["redirect"] is not None
    ]
    return Reaped(
        [row["id"] for row in rows], list(capped), queues, redirected, moved, [_crash(row) for row in rows]
    )


def _crash(row: Row) -> Crash:
    verdict = row["verdict"]
    outcome = {"cancelled": "cancelled", "requeued": "lease", "unwound": row["redirect"]}.get(
        verdict, "poison"
    )
    causes = {"lease": "crash", "poison": "poison", "undo": "poison"}
    return Crash(
        row["fsm"],
        row["fsm_version"],
        row["step"],
        outcome,
        causes.get(outcome),
        row["next_step"] if verdict == "moved" else "",
        row["redirect"] or row["status"],
        row["execution"],
    )


def has_deleted() -> Plan[bool]:
    """Whether a live instance has a `deleted_at` and no cancel request."""
    return bool((yield _SQL["deleted_live"]()))


def end_deleted(most: int) -> Plan[set[str]]:
    """End at most `most` live instances that have a `deleted_at`; return the queues that have work now."""
    return {row["queue"] for row in (yield _SQL["end_deleted"](most=most))}


def expire() -> Plan[list[Expired]]:
    """Make instances runnable whose await deadline has passed."""
    rows = yield _SQL["expire"]()
    return [Expired(row["id"], row["fsm"], row["step"], row["queue"]) for row in rows]
