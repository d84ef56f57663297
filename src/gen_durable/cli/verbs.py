"""What can be done to instances: what it would do, and how it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from .._db import control
from .._db.plan import Plan, Row
from ..instance import Status

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
IDLE: Final = frozenset({"finished", "left", "refused"})

Outcome: TypeAlias = Literal[
    "cancelled", "requested", "finished", "retried", "deleted", "restored", "left", "refused"
]
"""finished, left: there was nothing to do; refused: another instance has its key."""


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one instance."""

    id: int
    outcome: Outcome
    problem: str = ""
    """Of a refused one: why, and what would help."""


class Group(msgspec.Struct, frozen=True):
    """Instances that are alike, and what would become of them."""

    machine: str
    status: str
    outcome: Outcome
    count: int


class Verb(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be done to instances."""

    reason: str | None = None
    actor: str | None = None

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        return type(self).__name__.lower()

    @property
    def is_idempotent(self) -> bool:
        """Whether an instance on which there is nothing to do is as it was wished."""
        return True

    @property
    def is_newest_first(self) -> bool:
        """Whether children go before their parents. Else parents would be released before it is their turn."""
        return False

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Which instances a filter means that does not say it."""
        return {}

    def predict(self, status: str, *, is_deleted: bool) -> Outcome:
        """What it would do to an instance."""
        raise NotImplementedError

    def plan(self, ids: Sequence[int]) -> Plan[list[Change]]:
        """Do it, in one statement."""
        raise NotImplementedError


class Cancel(Verb, frozen=True, kw_only=True):
    """End what is live."""

    force: bool = False

    @property
    def defaults(self) -> Mapping[str, Any]:
        return {"statuses": [status.value for status in Status if not status.is_terminal]}

    def predict(self, status: str, *, is_deleted: bool) -> Outcome:
        if Status(status).is_terminal:
            return "finished"
        return "requested" if status == Status.EXECUTING and not self.force else "cancelled"

    def plan(self, ids: Sequence[int]) -> Plan[list[Change]]:
        rows = yield from control.cancel(ids, self.reason, self.actor, force=self.force)
        return [Change(row["id"], self._outcome(row)) for row in rows]

    def _outcome(self, row: Row) -> Outcome:
        if Status(row["was"]).is_terminal:
            return "finished"
        return "cancelled" if row["status"] == Status.CANCELLED else "requested"


class Retry(Verb, frozen=True, kw_only=True):
    """Let go on what failed or was cancelled."""

    state: str | None = None

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

    def plan(self, ids: Sequence[int]) -> Plan[list[Change]]:
        rows = yield from control.retry(ids, self.state, self.reason, self.actor)
        return [Change(row["id"], "retried" if row["is_retried"] else "left") for row in rows]


class Delete(Verb, frozen=True, kw_only=True):
    """Take out of sight and out of work."""

    def predict(self, status: str, *, is_deleted: bool) -> Outcome:
        return "left" if is_deleted else "deleted"

    def plan(self, ids: Sequence[int]) -> Plan[list[Change]]:
        rows = yield from control.delete(ids, self.reason, self.actor)
        return [Change(row["id"], "deleted") for row in rows]


class Restore(Verb, frozen=True, kw_only=True):
    """Undo a deletion."""

    @property
    def defaults(self) -> Mapping[str, Any]:
        return {"with_deleted": True, "only_deleted": True}

    def predict(self, status: str, *, is_deleted: bool) -> Outcome:
        return "restored" if is_deleted else "left"

    def plan(self, ids: Sequence[int]) -> Plan[list[Change]]:
        rows = yield from control.restore(ids, self.reason, self.actor)
        return [Change(row["id"], "restored") for row in rows]
