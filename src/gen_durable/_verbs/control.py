"""Cancel, delete, restore and retry instances, one or all that match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from .._db import control
from .._db.plan import Plan
from .._typing import KEEP
from ..config import Settings
from ..definition import StepRef
from ..errors import NoTargetError
from ..instance import (
    LIVE_STATUSES,
    AlreadyFinished,
    Cancelled,
    CancelRequested,
    CancelResult,
    Compensating,
    Deleted,
    NotRetried,
    Restored,
    Retried,
    RetryResult,
    Status,
)
from ..refs import Insertable, Target, target_value
from .common import checked_actor, checked_reason, definition_of_target, found, resolve
from .edits import check_change
from .reads import filter_of

__all__ = [
    "cancel",
    "cancel_all",
    "cancel_batch",
    "delete_all",
    "delete_batch",
    "restore",
    "restore_batch",
    "retry",
    "retry_all",
    "retry_batch",
    "soft_delete",
]

T = TypeVar("T")
Changed: TypeAlias = tuple[list[T], set[str]]
"""A result for each instance that exists, and the queues that have work now."""


def cancel_batch(
    ids: Sequence[int], reason: str | None, actor: str | None, *, force: bool, undo: bool, autocommit: bool
) -> Plan[Changed[CancelResult]]:
    """Cancel instances in one statement. The caller has checked the reason and the actor."""
    rows = yield from control.cancel(ids, reason, actor, force=force, undo=undo, autocommit=autocommit)
    return [_cancel_result(row) for row in rows], _woken(rows)


def delete_batch(
    ids: Sequence[int], reason: str | None, actor: str | None, *, autocommit: bool
) -> Plan[Changed[Deleted]]:
    """Soft-delete instances in one statement. The caller has checked the reason and the actor."""
    rows = yield from control.delete(ids, reason, actor, autocommit=autocommit)
    deleted = [Deleted(row["id"], row["deleted_at"], row["status"] == Status.EXECUTING) for row in rows]
    return deleted, _woken(rows)


def restore_batch(
    ids: Sequence[int], reason: str | None, actor: str | None, *, autocommit: bool
) -> Plan[Changed[Restored]]:
    """Undo soft deletes in one statement. The caller has checked the reason and the actor."""
    rows = yield from control.restore(ids, reason, actor, autocommit=autocommit)
    return [Restored(row["id"], Status(row["status"])) for row in rows], set()


def retry_batch(
    ids: Sequence[int],
    state: str | None,
    step: str | None,
    reason: str | None,
    actor: str | None,
    *,
    autocommit: bool,
) -> Plan[Changed[RetryResult]]:
    """Retry instances in one statement; `state` is JSON. The caller has checked all values."""
    rows = yield from control.retry(ids, state, reason, actor, step=step, autocommit=autocommit)
    results: list[RetryResult] = [
        Retried(row["id"]) if row["is_retried"] else NotRetried(row["id"], Status(row["status"]))
        for row in rows
    ]
    return results, {row["queue"] for row in rows if row["is_retried"]}


def cancel(
    target: Target,
    reason: str | None,
    actor: str | None,
    *,
    force: bool,
    undo: bool,
    cascade: bool,
    autocommit: bool,
) -> Plan[tuple[CancelResult, set[str]]]:
    """Cancel an instance; with `cascade`, also all descendants."""
    id = yield from resolve(target, "cancel")
    why, who = checked_reason(reason), checked_actor(actor)
    results, queues = yield from cancel_batch([id], why, who, force=force, undo=undo, autocommit=autocommit)
    if not results:
        raise NoTargetError(id, "cancel")
    # One transaction per generation and batch: parents and children in one would be locked in the wrong order. Failed
    # and cancelled descendants are included, because they may have live children.
    # The children of an instance that runs undo steps may be part of its undo.
    parents = [id] if cascade and not isinstance(results[0], Compensating) else []
    while parents:
        parents = yield from control.unfinished_children(parents)
        yield from control.in_batches(
            parents,
            lambda batch: cancel_batch(batch, why, who, force=force, undo=undo, autocommit=autocommit),
            lambda changed: queues.update(changed[1]),
        )
    return results[0], queues


def cancel_all(
    machine: Insertable[Any, Any] | str | None,
    filters: Mapping[str, Any],
    reason: str | None,
    actor: str | None,
    *,
    force: bool,
    undo: bool,
    autocommit: bool,
) -> Plan[tuple[int, set[str]]]:
    """Cancel all live instances that match; return how many."""
    wanted = yield from filter_of(machine, filters, LIVE_STATUSES, is_change=True)
    why, who = checked_reason(reason), checked_actor(actor)
    count, queues = 0, set[str]()

    def on_changed(changed: Changed[CancelResult]) -> None:
        nonlocal count
        count += sum(not isinstance(result, AlreadyFinished | Compensating) for result in changed[0])
        queues.update(changed[1])

    yield from control.in_batches(
        _parents_first((yield from control.matching_ids(wanted))),
        lambda batch: cancel_batch(batch, why, who, force=force, undo=undo, autocommit=autocommit),
        on_changed,
    )
    return count, queues


def soft_delete(
    target: Target, reason: str | None, actor: str | None, *, autocommit: bool
) -> Plan[tuple[Deleted, set[str]]]:
    """Soft-delete an instance."""
    id = yield from resolve(target, "delete")
    results, queues = yield from delete_batch(
        [id], checked_reason(reason), checked_actor(actor), autocommit=autocommit
    )
    if not results:
        raise NoTargetError(id, "delete")
    return results[0], queues


def delete_all(
    machine: Insertable[Any, Any] | str | None,
    filters: Mapping[str, Any],
    reason: str | None,
    actor: str | None,
    *,
    autocommit: bool,
) -> Plan[tuple[int, set[str]]]:
    """Soft-delete all instances that match; return how many."""
    wanted = yield from filter_of(machine, filters, is_change=True)
    why, who = checked_reason(reason), checked_actor(actor)
    count, queues = 0, set[str]()

    def on_changed(changed: Changed[Deleted]) -> None:
        nonlocal count
        count += len(changed[0])
        queues.update(changed[1])

    yield from control.in_batches(
        _parents_first((yield from control.matching_ids(wanted))),
        lambda batch: delete_batch(batch, why, who, autocommit=autocommit),
        on_changed,
    )
    return count, queues


def restore(
    target: Target, reason: str | None, actor: str | None, *, autocommit: bool
) -> Plan[tuple[Restored, set[str]]]:
    """Undo a soft delete. A key refers to the deleted instance that had it, even if another instance has it now."""
    value = target_value(target)
    id = (yield from control.deleted_with_key(value)) if isinstance(value, str) else value
    if id is None:
        id = yield from resolve(target, "restore")
    results, queues = yield from restore_batch(
        [id], checked_reason(reason), checked_actor(actor), autocommit=autocommit
    )
    if not results:
        raise NoTargetError(id, "restore")
    return results[0], queues


def retry(
    target: Target,
    state: Any,
    step: StepRef[Any] | str | None,
    reason: str | None,
    actor: str | None,
    settings: Settings,
    *,
    autocommit: bool,
) -> Plan[tuple[RetryResult, set[str]]]:
    """Continue a failed or cancelled instance where it ended, or at another step."""
    why, who = checked_reason(reason), checked_actor(actor)
    text: str | None = None
    name: str | None = None
    if state is KEEP and step is None:
        id = yield from resolve(target, "retry")
    else:
        row = yield from found(target, "retry")
        id = row["id"]
        text, name = yield from check_change(row, definition_of_target(target), state, step, settings)
    results, queues = yield from retry_batch([id], text, name, why, who, autocommit=autocommit)
    if not results:
        raise NoTargetError(id, "retry")
    return results[0], queues


def retry_all(
    machine: Insertable[Any, Any] | str | None,
    filters: Mapping[str, Any],
    reason: str | None,
    actor: str | None,
    *,
    autocommit: bool,
) -> Plan[tuple[int, set[str]]]:
    """Retry all failed and cancelled instances that match; return how many.

    Newest first: children before their parents, which then wait for them.
    """
    wanted = yield from filter_of(machine, filters, (Status.FAILED, Status.CANCELLED), is_change=True)
    why, who = checked_reason(reason), checked_actor(actor)
    count, queues = 0, set[str]()

    def on_changed(changed: Changed[RetryResult]) -> None:
        nonlocal count
        count += sum(isinstance(result, Retried) for result in changed[0])
        queues.update(changed[1])

    yield from control.in_batches(
        (yield from control.matching_ids(wanted)),
        lambda batch: retry_batch(batch, None, None, why, who, autocommit=autocommit),
        on_changed,
    )
    return count, queues


def _parents_first(newest_first: Sequence[int]) -> Sequence[int]:
    """Order ids so that no cancelled child releases a parent that is cancelled next. Parents have smaller ids."""
    return newest_first[::-1]


def _cancel_result(row: Mapping[str, Any]) -> CancelResult:
    id: int = row["id"]
    if Status(row["was"]).is_terminal:
        return AlreadyFinished(id, Status(row["was"]))
    if row["status"] == "compensating":
        return Compensating(id)
    return Cancelled(id) if row["status"] == Status.CANCELLED else CancelRequested(id)


def _woken(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    return {queue for row in rows for queue in row["queues"] or ()}
