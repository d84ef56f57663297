"""Explain why an instance does not run, from the facts about its row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from ..instance import Status
from ..reasons import (
    AwaitingChildren,
    AwaitingSignals,
    BucketEmpty,
    CancelPending,
    CompensationRuns,
    Deletion,
    Executing,
    Explanation,
    Finished,
    Holder,
    KeyBusy,
    NotDue,
    NotFirstInLine,
    NoWorkerForMachine,
    NoWorkerForQueue,
    NoWorkerForStep,
    QueuePaused,
    Reason,
    UnknownLimit,
    Waiting,
)
from .hydration import compensation_of

__all__ = ["explanation_of"]


def explanation_of(row: Mapping[str, Any]) -> Explanation:
    """Build an explanation from the row of the statement `explain`."""
    return Explanation(
        id=row["id"],
        machine=row["fsm"],
        version=row["fsm_version"],
        step=row["step"],
        status=Status(row["status"]),
        queue=row["queue"],
        at=row["now"],
        reasons=tuple(_reasons(row)),
    )


def _reasons(row: Mapping[str, Any]) -> Iterator[Reason]:
    status = Status(row["status"])
    is_deleted = row["deleted_at"] is not None
    if is_deleted:
        yield Deletion(at=row["deleted_at"], why=row["delete_reason"])
    if status.is_terminal:
        why = row["cancel_reason"] if status is Status.CANCELLED else row["last_error"]
        yield Finished(
            status=status,
            at=row["finished_at"],
            why=None if status is Status.DONE else why,
            collected_at=row["collected_at"],
        )
    elif row["cancel_requested_at"] is not None:
        yield CancelPending(at=row["cancel_requested_at"], by=row["cancelled_by"], why=row["cancel_reason"])
    undo = compensation_of(row["compensation"], row["undo_steps"])
    if undo is not None and not status.is_terminal:
        yield CompensationRuns(
            ends_as=undo.status, step=undo.step, at=undo.since, why=undo.reason, pending=undo.pending
        )
    match status:
        case Status.EXECUTING:
            yield Executing(
                worker=row["locked_by"],
                since=row["started_at"] or row["leased_at"],
                until=row["lease_expires_at"],
                is_worker_live=row["is_worker_live"],
                is_lease_over=row["lease_expires_at"] < row["now"],
            )
        case Status.AWAITING_SIGNAL:
            yield AwaitingSignals(
                names=tuple(row["awaits"] or ()),
                since=row["updated_at"],
                until=row["await_deadline"],
                others=tuple(row["other_signals"] or ()),
            )
            yield from _lasting(row)
        case Status.AWAITING_CHILDREN:
            yield AwaitingChildren(
                pending=row["children_pending"], total=row["children"], live=tuple(row["live_children"] or ())
            )
            yield from _lasting(row)
        case Status.RUNNABLE:
            obstacles = [*_temporary(row), *_lasting(row)]
            yield from obstacles
            if not obstacles and not is_deleted:
                yield Waiting(since=row["eligible_at"], ahead=row["ahead"], workers=row["able"])
        case _:
            pass


def _temporary(row: Mapping[str, Any]) -> Iterator[Reason]:
    """Reasons that time or other instances resolve. They apply to runnable instances only."""
    # A throttled row is due at its rate_turn_at; its reason is the empty bucket.
    if row["eligible_at"] > row["now"] and not row["has_rate_turn"]:
        attempts = row["attempt"]
        yield NotDue(
            until=row["eligible_at"],
            failed_attempts=attempts,
            last_error=row["last_error"]
            if attempts
            else None,  # otherwise it is the error of an earlier step
        )
    if row["holders"] is not None:
        holders = tuple(_holders(row["holders"]))
        yield KeyBusy(key=row["concurrency_key"], slots=row["slots"], holders=holders)
    if row["first_of_key"] is not None:
        yield NotFirstInLine(key=row["concurrency_key"], first=row["first_of_key"], ahead=row["ahead_of_key"])
    if row["tokens_at"] is not None:
        yield BucketEmpty(key=row["rate_limit"], weight=row["weight"], until=row["tokens_at"])


def _lasting(row: Mapping[str, Any]) -> Iterator[Reason]:
    """Reasons that stay until an operator acts."""
    if row["paused_at"] is not None:
        yield QueuePaused(queue=row["queue"], since=row["paused_at"], by=row["paused_by"])
    if (key := row["rate_limit"]) is not None and row["limit_name"] is None:
        yield UnknownLimit(key=key, limit=key.partition(":")[0])
    yield from _workers(row)


def _workers(row: Mapping[str, Any]) -> Iterator[Reason]:
    if row["able"]:
        # No steps: only workers that own a prefix are able, and they fail the instance.
        if row["known_steps"] and not row["has_step"]:
            yield NoWorkerForStep(
                machine=row["fsm"],
                version=row["fsm_version"],
                step=row["step"],
                known=tuple(row["known_steps"]),
            )
        return
    if not row["serving"]:
        yield NoWorkerForQueue(queue=row["queue"], machine=row["fsm"])
    else:
        yield NoWorkerForMachine(
            machine=row["fsm"], version=row["fsm_version"], known_elsewhere=row["knowing"]
        )


class _HolderRow(msgspec.Struct):
    id: int
    worker: str | None
    since: datetime | None


def _holders(text: str) -> Iterator[Holder]:
    for each in msgspec.json.decode(text, type=list[_HolderRow]):
        yield Holder(each.id, each.worker, each.since)
