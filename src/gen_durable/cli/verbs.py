"""Changes of instances: cancel, retry, delete and restore, with a prediction of their effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from .. import _verbs
from .._db.plan import Plan
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

__all__ = [
    "IDLE",
    "Cancel",
    "Change",
    "Delete",
    "Group",
    "Restore",
    "Retry",
    "Verb",
]

# Outcomes that changed nothing.
IDLE: Final = frozenset({"finished", "compensating", "left", "refused"})

Outcome: TypeAlias = Literal[
    "cancelled", "requested", "compensating", "finished", "retried", "deleted", "restored", "left", "refused"
]
"""finished, compensating, left: nothing to do; refused: another instance has its key."""

_OUTCOMES: Final[Mapping[type, Outcome]] = {
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
    outcome: Outcome
    problem: str = ""
    """Why it was refused, and what to do."""


class Group(msgspec.Struct, frozen=True):
    """Instances of one machine and status, and the predicted result."""

    machine: str
    status: str
    outcome: Outcome
    count: int


class Verb(msgspec.Struct, frozen=True, kw_only=True):
    """A change of instances."""

    reason: str | None = None
    actor: str | None = None

    @property
    def name(self) -> str:
        """Return the name of the command."""
        return type(self).__name__.lower()

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

    def predict(self, status: str, *, is_deleted: bool) -> Outcome:
        """Predict the result for an instance."""
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

    @property
    def defaults(self) -> Mapping[str, Any]:
        return {"statuses": [status.value for status in Status if not status.is_terminal]}

    def predict(self, status: str, *, is_deleted: bool) -> Outcome:
        if Status(status).is_terminal:
            return "finished"
        return "requested" if status == Status.EXECUTING and not self.force else "cancelled"

    def plan(self, ids: Sequence[int]) -> Plan[list[Change]]:
        results, _ = yield from _verbs.cancel_batch(
            ids, self.reason, self.actor, force=self.force, undo=self.undo, autocommit=True
        )
        return _changes(results)


class Retry(Verb, frozen=True, kw_only=True):
    """Retry failed or cancelled instances."""

    state: str | None = None
    step: str | None = None
    validate: bool = True

    @property
    def is_idempotent(self) -> bool:
        return False

    @property
    def is_newest_first(self) -> bool:
        return True

    @property
    def defaults(self) -> Mapping[str, Any]:
        return {"statuses": [Status.FAILED.value, Status.CANCELLED.value]}

    def predict(self, status: str, *, is_deleted: bool) -> Outcome:
        return "retried" if status in (Status.FAILED, Status.CANCELLED) and not is_deleted else "left"

    def check(self, fsm: str, version: int) -> Plan[None]:
        if self.validate and (self.state is not None or self.step is not None):
            yield from _verbs.check_by_name(fsm, version, self.state, self.step)

    def plan(self, ids: Sequence[int]) -> Plan[list[Change]]:
        results, _ = yield from _verbs.retry_batch(
            ids, self.state, self.step, self.reason, self.actor, autocommit=True
        )
        return _changes(results)


class Delete(Verb, frozen=True, kw_only=True):
    """Soft-delete instances."""

    def predict(self, status: str, *, is_deleted: bool) -> Outcome:
        return "left" if is_deleted else "deleted"

    def plan(self, ids: Sequence[int]) -> Plan[list[Change]]:
        results, _ = yield from _verbs.delete_batch(ids, self.reason, self.actor, autocommit=True)
        return _changes(results)


class Restore(Verb, frozen=True, kw_only=True):
    """Restore deleted instances."""

    @property
    def defaults(self) -> Mapping[str, Any]:
        return {"with_deleted": True, "only_deleted": True}

    def predict(self, status: str, *, is_deleted: bool) -> Outcome:
        return "restored" if is_deleted else "left"

    def plan(self, ids: Sequence[int]) -> Plan[list[Change]]:
        results, _ = yield from _verbs.restore_batch(ids, self.reason, self.actor, autocommit=True)
        return _changes(results)


def _changes(results: Iterable[CancelResult | RetryResult | Deleted | Restored]) -> list[Change]:
    return [Change(result.id, _OUTCOMES[type(result)]) for result in results]
