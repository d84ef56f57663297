"""The data that passes between the layers.

insert  NewInstance → row          pick  row → Execution          settle  Execution + Outcome → CommitEntry
commit  CommitEntry → Committed | Stale | EffectFailed
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

import msgspec

from ..context import Cancellation
from ..outcome import Effect

__all__ = [
    "ENDED",
    "PLAIN_KINDS",
    "Cause",
    "ChildContent",
    "ChildRow",
    "CommitEntry",
    "CommitResult",
    "Committed",
    "DeadLetter",
    "EffectFailed",
    "EventRow",
    "Execution",
    "Kind",
    "Lease",
    "NewInstance",
    "RecordedSignal",
    "Redirect",
    "SignalRow",
    "Stale",
]

Kind: TypeAlias = Literal[
    "continue",
    "next",
    "retry",
    "await",
    "schedule_children",
    "done",
    "stop",
    "release",
    "rejoin",
    "cancel",
    "defer",
    "undone_failed",
    "undone_cancelled",
]
"""What a commit does to a row, as commit.sql spells it.

`continue` is `next` under the same lease: the worker runs the next step at once. `release` returns an unfinished
execution to the queue at no cost. `rejoin` returns a leased parent to its barrier, because a child is live again.
`cancel` is a step that raised `Cancel`. `defer` returns an execution to the queue, due later, because the worker does
not have its step. `undone_failed` and `undone_cancelled` end an instance after its last undo step.
"""

Cause: TypeAlias = Literal["stop", "error", "timeout", "exhausted", "no_handler", "refused"]
"""Why an execution failed: `Stop`, an exception, the timeout of the step, the last attempt, no registered machine, or
an outcome that the database refused. The reaper adds `crash` and `poison`.
"""

Redirect: TypeAlias = Literal["undo", "on_cancel", "undone"]
"""Where an instance went instead of ending: to its first undo step, to an `on_cancel` step, to the next undo step."""

Lease: TypeAlias = tuple[int, int]
"""Instance id and lease token. The id alone is not enough: a worker can lease again the row whose lease it has lost."""

PLAIN_KINDS: Final = frozenset({"continue", "next", "retry", "done", "stop", "release", "cancel"})
_ENDING_KINDS: Final = frozenset({"done", "stop", "cancel"})

ENDED: Final = frozenset({"done", "failed", "cancelled"})
# Characters that the size of a row counts for its names, keys and numbers.
_ROW_OVERHEAD: Final = 512


class NewInstance(msgspec.Struct, frozen=True, gc=False):
    """A row to insert. Every value is checked and encoded."""

    fsm: str
    version: int
    step: str
    state: str
    queue: str
    priority: int
    eligible_at: datetime | None
    delay: timedelta | None
    concurrency_key: str | None
    correlation_key: str | None
    correlation_scope: str | None
    unique_key: bytes | None
    unique_scope: str | None
    max_attempts: int | None
    traceparent: str | None = None
    rate_limit: str | None = None
    weight: int | None = None

    @property
    def size(self) -> int:
        """Its share of a statement, in characters."""
        return len(self.state) + _ROW_OVERHEAD


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """The dead letter of a failed instance: a new instance of the receiving machine."""

    fsm: str
    state: str
    traceparent: str | None = None


class EventRow(msgspec.Struct, frozen=True, gc=False):
    """An event for the outbox."""

    sink: str
    type: str
    subject: str
    data: str

    @property
    def size(self) -> int:
        """Its share of a statement, in characters."""
        return len(self.data) + _ROW_OVERHEAD


class SignalRow(msgspec.Struct, frozen=True, gc=False):
    """An unread signal as stored."""

    id: int
    name: str
    payload: str | None
    """`None`: not loaded."""
    inserted_at: datetime
    traceparent: str | None = None
    size: int = 0
    """Bytes of JSON."""


class RecordedSignal(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A signal in the record of the execution that consumed it, or that deleted it with the inbox."""

    id: int
    name: str
    at: datetime
    """When it arrived."""
    unread: bool = False
    """The end of the instance deleted it; the step had not awaited it."""


class ChildRow(msgspec.Struct, frozen=True, gc=False):
    """A child as stored."""

    id: int
    fsm: str
    version: int
    status: str
    state: str | None
    """`None`: neither state nor result is loaded."""
    result: str | None
    last_error: str | None
    size: int = 0
    """Bytes of state and result as stored."""


class ChildContent(msgspec.Struct, frozen=True, gc=False):
    """State and result of a child, loaded on demand, with its status at that time."""

    status: str
    state: str
    result: str | None


# gc=False: nothing that it refers to refers back to it.
class Execution(msgspec.Struct, frozen=True, gc=False):
    """One leased attempt at one step."""

    id: int
    lease_token: int
    fsm: str
    version: int
    """The version that the state is stored with; the machine that runs it may have a higher one."""
    step: str
    step_seq: int
    """Transitions committed before this one. With the lease token it guards every write of this execution."""
    attempt: int
    state: str
    queue: str
    awaits: tuple[str, ...] | None = None
    timed_out: bool = False
    inbox: tuple[SignalRow, ...] = ()
    children: tuple[ChildRow, ...] = ()
    parent_id: int | None = None
    concurrency_key: str | None = None
    correlation_key: str | None = None
    leased_at: datetime | None = None
    due_at: float | None = None
    """Since when it was due when it was picked, in seconds since 1970."""
    has_signals: bool = False
    """Whether the instance has signals, unread or consumed."""
    max_attempts: int | None = None
    """Overrides the retry policy of the machine for this instance, but not that of undo steps."""
    fire_time: datetime | None = None
    number: int = 0
    """Counts the executions of the instance, from 1."""
    traceparent: str | None = None
    inserted_at: datetime | None = None
    rate_limit: str | None = None
    """The bucket that its start took tokens from."""
    has_children: bool = False
    """Whether its children have ended, so that the step joins them."""
    failure: str | None = None
    """The failure that led to this step, as JSON."""
    is_compensating: bool = False
    """Whether the instance runs undo steps."""
    checkpoint: str | None = None
    """The last checkpoint of an earlier attempt at this step, as JSON."""
    cancellation: Cancellation = msgspec.field(default_factory=Cancellation)

    @property
    def lease(self) -> Lease:
        """What guards every write of this execution, together with `step_seq`."""
        return self.id, self.lease_token

    @property
    def subject(self) -> str:
        """The subject of events that do not name one: the correlation key of the instance, or its id."""
        return self.correlation_key or str(self.id)

    @property
    def needs_load(self) -> bool:
        """Whether it may have signals or children to load."""
        return self.has_signals or self.has_children

    @property
    def live_children(self) -> int:
        """Loaded children that are live: they were retried after they had released the barrier."""
        return sum(child.status not in ENDED for child in self.children)

    @property
    def awaited(self) -> tuple[SignalRow, ...]:
        """The unread signals with an awaited name."""
        if not self.awaits or not self.inbox:
            return ()
        return tuple(row for row in self.inbox if row.name in self.awaits)


# gc=False: nothing that it refers to refers back to it.
class CommitEntry(msgspec.Struct, kw_only=True, gc=False):
    """The outcome of one execution, encoded for the group commit."""

    execution: Execution
    kind: Kind
    step: str = ""
    """The next step; empty if the step does not change."""
    payload: str | None = None
    """The new state; of `done`, the result. `None` leaves the stored state unchanged."""
    version: int | None = None
    """The version of the new state, if it is not that of the stored one."""
    state: str | None = None
    """Of `done`: the new state, if the step has changed it."""
    error: str | None = None
    failure: str | None = None
    """The exception that led to this outcome, as JSON."""
    delay: timedelta | None = None
    awaits: tuple[str, ...] | None = None
    presented: tuple[int, ...] = ()
    """Of `await`: ids of the signals that the step has received. They do not end the new wait."""
    timeout: timedelta | None = None
    deadline: datetime | None = None
    children: tuple[NewInstance, ...] = ()
    letter: DeadLetter | None = None
    """Inserted in the same transaction if the instance fails by this outcome."""
    cause: Cause | None = None
    """Why the step failed, if it did: the outcome is then what follows."""
    leaves_letter: bool = False
    """Whether the database looks up the receiver of the dead letter: no worker could decide about this failure."""
    switches_key: bool = False
    concurrency_key: str | None = None
    """The new concurrency key, if `switches_key`."""
    rate_limit: str | None = None
    """The rate limit of the next step. A retried step keeps its own."""
    weight: int | None = None
    consumed: tuple[int, ...] = ()
    """Ids of the signals that this outcome consumes."""
    attempt: int | None = None
    """Of the end after undo steps: the attempt at which the instance failed or was cancelled."""
    undo: str | None = None
    """The step and its undo step, as JSON, if the outcome commits a step that has one."""
    skips_undo: bool = False
    """Of `stop`: whether the instance ends without running its undo steps."""
    keep: bool = True
    """Of `done`: whether the row stays. `False`: the commit deletes it."""
    expires: bool = False
    """Of `done`: whether the machine declares how long the row stays."""
    effect: Effect | None = None
    """Runs in the transaction that commits this outcome."""
    events: tuple[EventRow, ...] = ()
    """Written to the outbox in the same transaction."""
    started: float | None = None
    """When the step began, by the monotonic clock of this process. Set by the caller of the executor."""
    started_at: float | None = None
    """When the step began, by the database's clock, in seconds since 1970."""
    is_refused: bool = False
    """Whether this replaces an outcome that the database refused."""
    log_line: tuple[int, str] | None = None
    """Level and text of a log line about the exception. Logged after the commit: only then it is known that the lease
    was still held."""

    @property
    def id(self) -> int:
        return self.execution.id

    @property
    def lease(self) -> Lease:
        return self.execution.lease

    @property
    def attempts(self) -> int:
        """How many attempts the step that ends the instance has had."""
        return (self.execution.attempt if self.attempt is None else self.attempt) + 1

    @property
    def size(self) -> int:
        """Its share of a transaction, in characters."""
        size = _ROW_OVERHEAD + len(self.payload or "")
        if self.state is not None:
            size += len(self.state)
        if self.letter is not None:
            size += len(self.letter.state)
        if self.events or self.children:
            size += sum(row.size for rows in (self.events, self.children) for row in rows)
        return size

    @property
    def returns_tokens(self) -> bool:
        """Whether its step does not start, although the pick has taken tokens of a rate limit for it."""
        return self.kind == "defer" and self.execution.rate_limit is not None

    @property
    def is_plain(self) -> bool:
        """Whether `commit_plain` can commit it: the outcome writes its own row and nothing else."""
        execution = self.execution
        return (
            self.kind in PLAIN_KINDS
            and execution.parent_id is None
            and execution.concurrency_key is None
            and not self.switches_key
            and self.rate_limit is None
            and not self.consumed
            and not (execution.has_signals and self.kind in _ENDING_KINDS)
            and self.letter is None
            and not self.leaves_letter
            and self.version is None
            and self.effect is None
        )


class Committed(msgspec.Struct, frozen=True, gc=False):
    """The outcome is durable."""

    status: str
    """The new status of the row; `gone` if the row does not exist any more."""
    inbox: tuple[SignalRow, ...] = ()
    """Of `continue`: the unread signals at the commit."""
    leased_at: datetime | None = None
    """Of `continue`: when the next execution was leased."""
    redirect: Redirect | None = None
    """Where the instance went instead of ending."""
    refused: int = 0
    """Children that were not inserted, because their keys are taken."""


class EffectFailed(msgspec.Struct, frozen=True, gc=False):
    """The effect of the outcome failed. Nothing was written; the lease is still held."""

    error: Exception


class Stale(msgspec.Struct, frozen=True, gc=False):
    """The lease was lost before the commit. Nothing was written; another execution runs the step again."""

    is_given_up: bool = False
    """Whether the lease is still held, but the database refuses every outcome of this execution."""


CommitResult: TypeAlias = Committed | Stale | EffectFailed
