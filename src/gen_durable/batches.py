"""`Batch`: a change of many instances that runs page by page, can be stopped, and survives the process that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec

__all__ = [
    "CHANGED",
    "Batch",
    "BatchGroup",
    "BatchOutcome",
    "BatchPreview",
    "BatchStatus",
    "BatchVerb",
    "InstanceVerb",
]

InstanceVerb: TypeAlias = Literal["cancel", "retry", "delete", "restore"]
BatchVerb: TypeAlias = InstanceVerb | Literal["replay"]
"""`replay` publishes dead letters of the outbox again; the others change instances."""
BatchStatus: TypeAlias = Literal["pending", "running", "stopped", "finished"]
"""`pending`: not ended, and no process runs it: it has not begun, or its process crashed."""
BatchOutcome: TypeAlias = Literal[
    "cancelled",
    "requested",
    "retried",
    "deleted",
    "restored",
    "replayed",
    "finished",
    "compensating",
    "left",
    "refused",
    "locked",
    "missing",
]
"""What happened to an instance, or to an event of a replay.

`requested`: cancelled when its step ends. The others after `replayed` changed nothing. `finished`: a cancel found it
ended. `compensating`: it runs undo steps already. `left`: its status does not allow the change, or there is nothing to
change; of an event: it is not dead any more.
`refused`: another instance has its key. `locked`: a transaction locked its row for long. `missing`: no such instance.
"""

CHANGED: Final[frozenset[BatchOutcome]] = frozenset(
    {"cancelled", "requested", "retried", "deleted", "restored", "replayed"}
)


class BatchGroup(msgspec.Struct, frozen=True):
    """Instances of one machine and status, and what the change would do to them."""

    machine: str
    status: str
    outcome: BatchOutcome
    count: int


class BatchPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch would change, as far as it can be predicted."""

    verb: InstanceVerb
    groups: tuple[BatchGroup, ...]
    newest: int
    """The largest matching id, 0 if nothing matches. Instances that are inserted later do not belong to the batch."""

    @property
    def count(self) -> int:
        """Return how many instances would change; pass it to `start_batch(expected=…)`."""
        return sum(group.count for group in self.groups if group.outcome in CHANGED)

    @property
    def total(self) -> int:
        """Return how many instances match."""
        return sum(group.count for group in self.groups)

    @property
    def skipped(self) -> Mapping[BatchOutcome, int]:
        """Return how many instances would not change, by reason."""
        counts: dict[BatchOutcome, int] = {}
        for group in self.groups:
            if group.outcome not in CHANGED:
                counts[group.outcome] = counts.get(group.outcome, 0) + group.count
        return counts


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A change of many instances, and how far it is."""

    id: int
    verb: BatchVerb
    status: BatchStatus
    filter: Mapping[str, Any] | None
    """Which instances, as JSON; `None` if they were given by id, and of a replay. Empty: all."""
    where: str | None = None
    """The search that selects them, if it was started with one."""
    options: Mapping[str, Any]
    """Of a cancel: `force`, `undo`, `cascade`; of a retry: `state`, `step`; of a replay: `sink`."""
    actor: str | None = None
    reason: str | None = None
    expected: int | None = None
    """What the preview counted, if that was given."""
    total: int
    """How many instances matched at the start. Descendants of a cascade are not counted."""
    outcomes: Mapping[BatchOutcome, int]
    """How many instances had which outcome so far."""
    runner: str | None = None
    """The process that runs it."""
    created_at: datetime
    started_at: datetime | None = None
    """When a process ran it for the first time."""
    updated_at: datetime
    finished_at: datetime | None = None
    """When it ended, or was stopped."""
    stopped_at: datetime | None = None
    stopped_by: str | None = None
    last_error: str | None = None
    """The last problem: an instance that was refused, or the error that ended a run."""

    @property
    def is_over(self) -> bool:
        """Return whether it has ended or was stopped."""
        return self.finished_at is not None

    @property
    def done(self) -> int:
        """Return how many instances were changed."""
        return sum(count for outcome, count in self.outcomes.items() if outcome in CHANGED)

    @property
    def skipped(self) -> Mapping[BatchOutcome, int]:
        """Return how many instances were visited and not changed, by reason."""
        return {outcome: count for outcome, count in self.outcomes.items() if outcome not in CHANGED}

    @property
    def visited(self) -> int:
        """Return how many instances are behind it, changed or not: its progress towards `total`."""
        return sum(self.outcomes.values())
