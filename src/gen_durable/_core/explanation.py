"""Explain why an instance does not run, from the facts about its row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from .._dictionary import closest
from ..instance import Status
from ..operations import BlockedLoop
from ..reasons import (
    AwaitingChildren,
    AwaitingSignals,
    BucketEmpty,
    CancelHandled,
    CancelPending,
    CompensationRuns,
    Deletion,
    Executing,
    Explanation,
    Finished,
    Holder,
    Incompatible,
    KeyBusy,
    LoopBlocked,
    NotDue,
    NotFirstInLine,
    NoWorkerForMachine,
    NoWorkerForQueue,
    NoWorkerForStep,
    QueuePaused,
    Reason,
    Retrying,
    UnknownLimit,
    UnreadSignals,
    Waiting,
    WorkersBusy,
)
from .hydration import (
    compensation_of,
    failure_of,
    is_cancel_handled,
    progress_of,
    step_after_cancel,
    step_of_retry,
    undo_steps_left,
)

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
    yield from _end(row, status)
    unread = None if status.is_terminal else _unread(row, status)
    is_cause = unread is not None and bool(unread.meant) and status is Status.AWAITING_SIGNAL
    if unread is not None and is_cause:
        yield unread
    yield from _current(row, status)
    if unread is not None and not is_cause:
        yield unread


def _end(row: Mapping[str, Any], status: Status) -> Iterator[Reason]:
    """It has ended, is to end, or was deleted."""
    if row["deleted_at"] is not None:
        yield Deletion(at=row["deleted_at"], why=row["delete_reason"])
    if status.is_terminal:
        why = row["cancel_reason"] if status is Status.CANCELLED else row["last_error"]
        yield Finished(
            status=status,
            at=row["finished_at"],
            why=None if status is Status.DONE else why,
            attempts=row["attempt"] + 1 if status is Status.FAILED else 1,
            collected_at=row["collected_at"],
            pending=undo_steps_left(row["undo_steps"]),
            retry_step=step_of_retry(row),
        )
    elif row["cancel_requested_at"] is not None:
        yield CancelPending(
            at=row["cancel_requested_at"],
            by=row["cancelled_by"],
            why=row["cancel_reason"],
            then=step_after_cancel(row["compensation"], row["undo_steps"]),
        )
    undo = compensation_of(row["compensation"], row["undo_steps"])
    if is_cancel_handled(row):
        yield CancelHandled(by=row["cancelled_by"], why=row["cancel_reason"])
    if undo is not None and not status.is_terminal:
        yield CompensationRuns(
            ends_as=undo.status,
            step=undo.step,
            at=undo.since,
            why=undo.reason,
            pending=undo.pending,
            continues_at=row["step"] if undo.pending and row["step"] != undo.pending[0] else None,
        )


def _current(row: Mapping[str, Any], status: Status) -> Iterator[Reason]:
    """What it waits for, or that it executes."""
    match status:
        case Status.EXECUTING:
            yield from _retrying(row)
            yield from _executing(row)
        case Status.AWAITING_SIGNAL:
            yield AwaitingSignals(
                names=tuple(row["awaits"] or ()),
                since=row["updated_at"],
                until=row["await_deadline"],
                with_payload=tuple(sorted({*(row["awaits"] or ())} & {*row["signals_with_payload"]})),
            )
            yield from _lasting(row)
        case Status.AWAITING_CHILDREN:
            undo = compensation_of(row["compensation"], row["undo_steps"])
            yield AwaitingChildren(
                pending=row["children_pending"],
                total=row["children"],
                live=tuple(row["live_children"] or ()),
                then=None if undo is None else row["step"],
            )
            yield from _lasting(row)
        case Status.RUNNABLE:
            retrying, obstacles = [*_retrying(row)], [*_lasting(row), *_temporary(row)]
            yield from retrying
            yield from obstacles
            if not obstacles and row["deleted_at"] is None and all(each.until is None for each in retrying):
                yield from _blocked_workers(row)
                yield from _full_workers(row)
                yield Waiting(since=row["eligible_at"], ahead=row["ahead"], workers=row["able"])
        case _:
            pass


def _unread(row: Mapping[str, Any], status: Status) -> UnreadSignals | None:
    """Signals that nothing awaits. Of an instance that awaits none now, a declared name may be for a later step."""
    declared = row["signals"]
    names = row["other_signals"] or ()
    if status is not Status.AWAITING_SIGNAL:
        names = [name for name in names if declared and name not in declared]
    if not names:
        return None
    known = dict.fromkeys([*(row["awaits"] or ()), *declared])
    meant = {name: close for name in names if name not in known and (close := closest(name, tuple(known)))}
    return UnreadSignals(names=tuple(names), meant=meant)


def _retrying(row: Mapping[str, Any]) -> Iterator[Retrying]:
    attempts, crashes = row["attempt"], min(row["crash_count"], row["attempt"])
    if attempts <= 0:
        return
    # The stored error may be that of an earlier step.
    failure = None if row["error"] is None else failure_of(row["error"])
    is_own = failure is not None and failure.step == row["step"] and failure.attempt < attempts
    is_later = row["status"] == Status.RUNNABLE and row["eligible_at"] > row["now"]
    yield Retrying(
        step=row["step"],
        attempts=attempts,
        max_attempts=row["max_attempts"]
        if is_own or crashes
        else None,  # a Retry without an error is not counted
        last_error=row["last_error"] if is_own else None,
        crashes=crashes,
        until=row["eligible_at"] if is_later and not row["has_rate_turn"] else None,
    )


def _full_workers(row: Mapping[str, Any]) -> Iterator[WorkersBusy]:
    if row["queue_capacity"] is None:
        return
    oldest = row["oldest"] and Holder(row["oldest"], row["oldest_worker"], row["oldest_since"])
    yield WorkersBusy(
        queue=row["queue"],
        running=int(row["running"]),
        capacity=int(row["queue_capacity"]),
        workers=row["able"],
        oldest=oldest,
    )


def _executing(row: Mapping[str, Any]) -> Iterator[Reason]:
    yield Executing(
        worker=row["locked_by"],
        since=row["started_at"] or row["leased_at"],
        until=row["lease_expires_at"],
        is_worker_live=row["is_worker_live"],
        is_lease_over=row["lease_expires_at"] < row["now"],
        is_any_worker_live=row["is_any_worker_live"],
        progress=progress_of(row["progress"]),
    )
    if row["blocked"] is not None:
        blocked = msgspec.json.decode(row["blocked"], type=BlockedLoop)
        yield LoopBlocked(worker=row["locked_by"], blocked=blocked)


class _BlockedWorker(msgspec.Struct):
    worker: str
    blocked: BlockedLoop


def _blocked_workers(row: Mapping[str, Any]) -> Iterator[LoopBlocked]:
    if row["blocked_workers"] is not None:
        for each in msgspec.json.decode(row["blocked_workers"], type=list[_BlockedWorker]):
            yield LoopBlocked(worker=each.worker, blocked=each.blocked)


def _temporary(row: Mapping[str, Any]) -> Iterator[Reason]:
    """Reasons that time or other instances resolve. They apply to runnable instances only."""
    # A throttled row is due at its rate_turn_at; its reason is the empty bucket.
    if row["eligible_at"] > row["now"] and not row["has_rate_turn"] and row["attempt"] <= 0:
        yield NotDue(until=row["eligible_at"])
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
    if row["incompatible"] is not None:
        yield from msgspec.json.decode(row["incompatible"], type=list[Incompatible])
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
