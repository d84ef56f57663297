"""Changes of instances: cancel, retry, delete and restore, with a prediction of their effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from .._db.plan import Plan
from ..batches import BatchOutcome, InstanceVerb
from ..instance import (
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
from .control import cancel_batch, delete_batch, restore_batch, retry_batch
from .edits import check_by_name

__all__ = [
    "Cancel",
    "Change",
    "Delete",
    "Restore",
    "Retry",
    "Verb",
]

_OUTCOMES: Final[Mapping[type, BatchOutcome]] = {
    Cancelled: "cancelled",
    CancelRequested: "requested",
    Compensating: "compensating",
    AlreadyFinished: "finished",
    Retried: "retried",
    NotRetried: "left",
    Deleted: "deleted",
    Restored: "restored",
}


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result for one instance."""

    id: int
    outcome: BatchOutcome
    problem: str = ""
    """Why it was refused, and what to do."""


class Verb(msgspec.Struct, frozen=True, kw_only=True):
    """A change of instances."""

    reason: str | None = None
    actor: str | None = None

    @property
    def name(self) -> InstanceVerb:
        """Return the name of the command."""
        raise NotImplementedError

    @property
    def options(self) -> Mapping[str, Any]:
        """Return the options of a batch, as JSON values."""
        return {}

    @property
    def is_idempotent(self) -> bool:
        """Return whether an instance with nothing to do counts as success."""
        return True

    @property
    def is_newest_first(self) -> bool:
        """Return whether children are changed before their parents.

        A retried parent waits again for children that were retried before. A cancelled child would release its parent.
        """
        return False

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Return filters that apply unless the user gives others."""
        return {}

    def predict(self, status: str, *, is_deleted: bool, leads_to: str | None = None) -> BatchOutcome:
        """Predict the result for an instance. `leads_to`: where a cancel leads it, see `control.leads_to`."""
        raise NotImplementedError

    def check(self, fsm: str, version: int) -> Plan[None]:
        """Raise an error if the change does not fit a machine."""
        yield from ()

    def plan(self, ids: Sequence[int]) -> Plan[list[Change]]:
        """Change these instances in one statement."""
        raise NotImplementedError


class Cancel(Verb, frozen=True, kw_only=True):
    """Cancel live instances."""

    force: bool = False
    undo: bool = True
    cascade: bool = False

    @property
    def name(self) -> InstanceVerb:
        return "cancel"

    @property
    def options(self) -> Mapping[str, Any]:
        return {"force": self.force, "undo": self.undo, "cascade": self.cascade}

    @property
    def defaults(self) -> Mapping[str, Any]:
        return {"statuses": [status.value for status in Status if not status.is_terminal]}

    @property
    def runs_steps(self) -> bool:
        """Return whether on_cancel and undo steps run."""
        return self.undo and not self.force

    def predict(self, status: str, *, is_deleted: bool, leads_to: str | None = None) -> BatchOutcome:
        if Status(status).is_terminal:
            return "finished"
        if leads_to == "compensating" and self.runs_steps:
            return "compensating"
        is_requested = leads_to is not None and self.runs_steps
        return "requested" if is_requested or (status == Status.EXECUTING and not self.force) else "cancelled"

    def plan(self, ids: Sequence[int]) -> Plan[list[Change]]:
        results, _ = yield from cancel_batch(
            ids, self.reason, self.actor, force=self.force, undo=self.undo, autocommit=True
        )
        return _changes(results)


class Retry(Verb, frozen=True, kw_only=True):
    """Retry failed or cancelled instances."""

    state: str | None = None
    step: str | None = None
    validate: bool = True

    @property
    def name(self) -> InstanceVerb:
        return "retry"

    @property
    def options(self) -> Mapping[str, Any]:
        state = {} if self.state is None else {"state": msgspec.Raw(self.state.encode())}
        return {**state, **({} if self.step is None else {"step": self.step})}

    @property
    def is_idempotent(self) -> bool:
        return False

    @property
    def is_newest_first(self) -> bool:
        return True

    @property
    def defaults(self) -> Mapping[str, Any]:
        return {"statuses": [Status.FAILED.value, Status.CANCELLED.value]}

    def predict(self, status: str, *, is_deleted: bool, leads_to: str | None = None) -> BatchOutcome:
        return "retried" if status in (Status.FAILED, Status.CANCELLED) and not is_deleted else "left"

    def check(self, fsm: str, version: int) -> Plan[None]:
        if self.validate and (self.state is not None or self.step is not None):
            yield from check_by_name(fsm, version, self.state, self.step)

    def plan(self, ids: Sequence[int]) -> Plan[list[Change]]:
        results, _ = yield from retry_batch(
            ids, self.state, self.step, self.reason, self.actor, autocommit=True
        )
        return _changes(results)


class Delete(Verb, frozen=True, kw_only=True):
    """Soft-delete instances."""

    @property
    def name(self) -> InstanceVerb:
        return "delete"

    def predict(self, status: str, *, is_deleted: bool, leads_to: str | None = None) -> BatchOutcome:
        return "left" if is_deleted else "deleted"

    def plan(self, ids: Sequence[int]) -> Plan[list[Change]]:
        results, _ = yield from delete_batch(ids, self.reason, self.actor, autocommit=True)
        return _changes(results)


class Restore(Verb, frozen=True, kw_only=True):
    """Restore deleted instances."""

    @property
    def name(self) -> InstanceVerb:
        return "restore"

    @property
    def defaults(self) -> Mapping[str, Any]:
        return {"with_deleted": True, "only_deleted": True}

    def predict(self, status: str, *, is_deleted: bool, leads_to: str | None = None) -> BatchOutcome:
        return "restored" if is_deleted else "left"

    def plan(self, ids: Sequence[int]) -> Plan[list[Change]]:
        results, _ = yield from restore_batch(ids, self.reason, self.actor, autocommit=True)
        return _changes(results)


def _changes(results: Iterable[CancelResult | RetryResult | Deleted | Restored]) -> list[Change]:
    return [Change(result.id, _OUTCOMES[type(result)]) for result in results]
