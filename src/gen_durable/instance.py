"""`Instance`, `Child`, `ExecutionRecord`, and the answers of `signal`, `cancel`, `retry`, `edit` and `soft_delete`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias

import msgspec

from ._dictionary import attribute_hint
from ._loading import NOT_LOADED
from ._typing import ResultT, ResultT_co, StateT
from .errors import (
    InstanceCancelledError,
    InstanceCollectedError,
    InstanceFailedError,
    InstanceUnfinishedError,
    NotDoneError,
    NotLoadedError,
)
from .progress import Progress

__all__ = [
    "LIVE_STATUSES",
    "STATUS_WORDS",
    "TERMINAL_STATUSES",
    "AlreadyFinished",
    "CancelRequested",
    "CancelResult",
    "Cancelled",
    "Change",
    "Child",
    "Compensating",
    "Compensation",
    "Deleted",
    "Delivered",
    "Delivery",
    "DuplicateSignal",
    "EditRefusal",
    "EditResult",
    "Edited",
    "ExecutionRecord",
    "ExecutionStatus",
    "Failure",
    "Forked",
    "Instance",
    "JobState",
    "JobWord",
    "NotEdited",
    "NotRetried",
    "Restored",
    "Retried",
    "RetryResult",
    "StateChange",
    "Status",
    "Transition",
    "statuses_of",
]


class Status(enum.StrEnum):
    """The status of an instance, as stored in the database."""

    RUNNABLE = "runnable"
    EXECUTING = "executing"
    AWAITING_SIGNAL = "awaiting_signal"
    AWAITING_CHILDREN = "awaiting_children"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether the instance has ended: done, failed or cancelled."""
        return self in TERMINAL_STATUSES


LIVE_STATUSES: Final = (
    Status.RUNNABLE,
    Status.EXECUTING,
    Status.AWAITING_SIGNAL,
    Status.AWAITING_CHILDREN,
)
TERMINAL_STATUSES: Final = (Status.DONE, Status.FAILED, Status.CANCELLED)

JobWord: TypeAlias = Literal["pending", "leased", "succeeded", "failed", "cancelled"]
"""A status in the words of simple workflows, as the SQL function `job_status` returns it. Filters accept it."""
_STATUSES_OF_WORDS: Final[Mapping[str, tuple[Status, ...]]] = {
    **{status.value: (status,) for status in Status},
    "pending": (Status.RUNNABLE,),
    "leased": (Status.EXECUTING, Status.AWAITING_SIGNAL, Status.AWAITING_CHILDREN),
    "succeeded": (Status.DONE,),
}
STATUS_WORDS: Final = tuple(_STATUSES_OF_WORDS)
"""The names of all statuses, and the words of simple workflows."""


def statuses_of(word: object) -> tuple[Status, ...] | None:
    """Return the statuses that a word means; `None` if it is not a status."""
    return _STATUSES_OF_WORDS.get(word) if isinstance(word, str) else None


_NO_RESULT: Final[Mapping[Status, type[NotDoneError]]] = {
    Status.FAILED: InstanceFailedError,
    Status.CANCELLED: InstanceCancelledError,
}


class Delivered(msgspec.Struct, frozen=True):
    """The answer of `signal`: the signal is in the inbox of the instance."""

    id: int
    is_awaited: bool
    """Whether the instance was waiting for this signal and is runnable now."""


class DuplicateSignal(msgspec.Struct, frozen=True):
    """The answer of `signal`: the instance already got a signal with this `dedup_key`; nothing was added."""

    id: int


Delivery: TypeAlias = Delivered | DuplicateSignal
"""The answer of `signal`. Either way the instance has the signal."""


class Cancelled(msgspec.Struct, frozen=True):
    """The answer of `cancel`: the instance is cancelled. It was not executing, or `force=True` was given."""

    id: int


class CancelRequested(msgspec.Struct, frozen=True):
    """The answer of `cancel`: a step is executing. The instance ends as cancelled when the step ends.

    The step can check `ctx.cancelled`; its outcome is discarded. An instance with undo steps runs them before it ends;
    an instance whose step has `on_cancel=` goes to that step.
    """

    id: int


class Compensating(msgspec.Struct, frozen=True):
    """The answer of `cancel`: the instance already runs its undo steps and ends after them; nothing was changed.

    `undo=False` stops that after the running step, `force=True` at once.
    """

    id: int


class AlreadyFinished(msgspec.Struct, frozen=True):
    """The answer of `cancel`: the instance has already ended."""

    id: int
    status: Status


CancelResult: TypeAlias = Cancelled | CancelRequested | Compensating | AlreadyFinished
"""The answer of `cancel`. Either way the instance ends, or has ended."""


class Deleted(msgspec.Struct, frozen=True):
    """The answer of `soft_delete`: the instance is hidden, never runs, and is removed after `retention_deleted`."""

    id: int
    deleted_at: datetime
    is_executing: bool
    """Whether a step is executing. The keys of the instance stay occupied until that step ends."""


class Restored(msgspec.Struct, frozen=True):
    """The answer of `restore`: the instance is not deleted. Its status is unchanged."""

    id: int
    status: Status


class Retried(msgspec.Struct, frozen=True):
    """The answer of `retry`: the instance is live again, at the step where it ended or at `step=`.

    If its undo steps have run, it is at the first step that was undone.
    """

    id: int


class NotRetried(msgspec.Struct, frozen=True):
    """The answer of `retry`: the instance is live, done or deleted, so it was not retried.

    Also if its state has been removed by retention and no `state=` was given.
    """

    id: int
    status: Status


RetryResult: TypeAlias = Retried | NotRetried


class Edited(msgspec.Struct, frozen=True):
    """The answer of `edit`: the instance has the new state or step."""

    id: int
    step_seq: int
    """The number of the edit among the transitions of the instance."""
    status: Status


EditRefusal: TypeAlias = Literal["executing", "moved", "ended", "deleted", "collected", "compensating"]
"""Why an instance was not edited.

`executing`: a step runs; `moved`: its `step_seq` is not the expected one, or another transition came during the call;
`ended`: it is done or cancelled; `deleted`: it is soft-deleted; `collected`: retention has removed its state;
`compensating`: it runs undo steps, or has run them, so it takes no other step.
"""


class NotEdited(msgspec.Struct, frozen=True):
    """The answer of `edit`: nothing was changed; `why` has the reason."""

    id: int
    why: EditRefusal
    status: Status
    step_seq: int
    """Its transitions so far."""


EditResult: TypeAlias = Edited | NotEdited


class Forked(msgspec.Struct, frozen=True):
    """The answer of `fork`: a new instance starts after a transition of the origin."""

    id: int
    """The new instance."""
    origin_id: int
    step_seq: int
    """The transition of the origin after which it starts."""
    status: Status


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The error of an instance, structured."""

    type: str
    """The class name of the exception; `Poison` if worker processes died repeatedly in this step.

    For undo steps also `Stop` or `Cancel`: the instance was stopped or cancelled without an exception.
    """
    message: str = ""
    traceback: tuple[str, ...] = ()
    """File, line and function of the frames, the innermost last; no values of variables."""
    attempt: int = 0
    """The attempt that failed, counted from 0."""
    step: str = ""
    """The step that failed."""


class Compensation(msgspec.Struct, frozen=True, kw_only=True):
    """The undo steps that an instance runs, or has run, before it ends."""

    status: Status
    """How the instance ends after its undo steps: failed or cancelled."""
    reason: str | None = None
    """Why: the error, or the reason of the cancel."""
    step: str
    """The step at which it failed or was cancelled."""
    since: datetime
    undone: tuple[str, ...] = ()
    """The steps that are undone, the last committed step first."""
    pending: tuple[str, ...] = ()
    """The undo steps that are left, the next or running one first."""


class Instance(msgspec.Struct, Generic[StateT, ResultT], frozen=True, kw_only=True):
    """A snapshot of one instance, as `get`, `list` and `wait` return it.

    `state` and `stored_result` are decoded to the types of the machine if the call got a machine or a reference;
    otherwise they are plain JSON values.
    """

    if not TYPE_CHECKING:
        __getattr__ = attribute_hint("instance")

    id: int
    machine: str
    version: int
    step: str
    status: Status
    state: StateT
    stored_result: ResultT | None = None
    """The stored result, or `None`. Prefer `result`, which raises if there is none."""
    attempt: int = 0
    """How many executions of the current step were retried or lost; for an ended instance, of its last step."""
    step_seq: int = 0
    """How many transitions are committed."""
    crash_count: int = 0
    """How many worker processes died in the current step."""
    queue: str = "default"
    priority: int = 0
    awaits: tuple[str, ...] = ()
    """The names of the signals that it waits for."""
    await_deadline: datetime | None = None
    children_pending: int = 0
    """How many of its children have not ended."""
    parent_id: int | None = None
    correlation_key: str | None = None
    unique_key: bytes | None = None
    concurrency_key: str | None = None
    last_error: str | None = None
    """Why it failed, or the last error of a retried step, as text."""
    error: Failure | None = None
    """The same, structured; `None` if there was no exception, for example after `Stop("a reason")`."""
    locked_by: str | None = None
    """The worker that executes it, by `Worker.name`."""
    inserted_at: datetime
    updated_at: datetime
    eligible_at: datetime
    finished_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    """When a cancel was requested. A step that executed at that time is the last one."""
    cancel_reason: str | None = None
    cancelled_by: str | None = None
    deleted_at: datetime | None = None
    delete_reason: str | None = None
    compensation: Compensation | None = None
    """Its undo steps, if it runs them or has run them; otherwise `None`."""
    schedule: str | None = None
    """The name of the schedule that inserted it."""
    fire_time: datetime | None = None
    """The time that this schedule was due."""
    collected_at: datetime | None = None
    """When retention removed its state and result. The row stays because it still occupies a key."""
    forked_from: int | None = None
    """The instance that it was forked from."""
    forked_seq: int | None = None
    """The transition of that instance after which it started."""
    progress: Progress | None = None
    """What its current step has reported by `ctx.progress`; `None` if it has reported nothing."""
    checkpoint: Any = None
    """The last value that its current step gave to `ctx.checkpoint`; `None` if there is none."""

    @property
    def result(self) -> ResultT:
        """The result of a done instance.

        Raises:
            NotDoneError: the instance has no result; the subclass says why.
        """
        if self.status is Status.DONE and self.collected_at is not None:
            raise InstanceCollectedError(self.id, self.machine, self.step, self.status.value, None)
        if self.status is Status.DONE:
            return self.stored_result  # type: ignore[return-value]  # `None` is a result like any other
        error = _NO_RESULT.get(self.status, InstanceUnfinishedError)
        reason = self.cancel_reason if self.status is Status.CANCELLED else self.last_error
        raise error(self.id, self.machine, self.step, self.status.value, reason)

    @property
    def is_finished(self) -> bool:
        """Whether it is done, failed or cancelled."""
        return self.status.is_terminal

    @property
    def is_compensating(self) -> bool:
        """Whether it runs undo steps, and ends as failed or cancelled after them."""
        return self.compensation is not None and not self.status.is_terminal

    @property
    def is_parked(self) -> bool:
        """Whether it waits for signals, a deadline or children."""
        return self.status in (Status.AWAITING_SIGNAL, Status.AWAITING_CHILDREN)


class ExecutionStatus(enum.StrEnum):
    """The status of an execution. `COMMITTED`: its outcome and effect are committed, and never repeated.

    `DONE` follows when all events of the outcome are published.
    """

    LEASED = "LEASED"
    IN_PROGRESS = "IN_PROGRESS"
    COMMITTED = "COMMITTED"
    DONE = "DONE"
    ABORTED = "ABORTED"


class JobState(enum.StrEnum):
    """The state of a job, derived from its executions: `SUCCEEDED` when its last execution is `DONE`."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class ExecutionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One execution: a leased attempt at one step, running or ended. `client.executions` returns them."""

    exec_id: str
    """`<instance id>:<attempt>`."""
    job_id: int
    """The id of the instance."""
    attempt: int
    """The number of the execution within the instance: 1, 2, 3 …"""
    status: ExecutionStatus
    step: str
    step_seq: int
    """The transition that it committed, or was to commit."""
    step_attempt: int
    """How many executions of that step came before, for the same transition."""
    outcome: str | None = None
    """The kind of its outcome; `edit` for a change by `client.edit`, which has no lease.

    For an aborted execution the reason: retry, shutdown, rejoin, unknown_step, lease, poison, cancelled.

    `undo`: the instance would have ended, and runs its undo steps instead; `undone`: an undo step has ended;
    `on_cancel`: the instance was cancelled and goes to the `on_cancel` step.

    `rejoin`: a child was retried before the joining step started, so the instance waits for its children again.
    `unknown_step`: the worker does not have the step, so it left the instance to other workers. Only the first such
    execution at a transition is recorded.
    """
    lease_owner: str | None = None
    lease_expires_at: datetime | None = None
    """When its lease expires unless it is renewed; for an ended execution, the last value."""
    leased_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: str | None = None
    retried_at: datetime | None = None
    """When `retry` continued an instance that this execution had ended."""
    to_step: str | None = None
    """The step that its transition led to; `None` if it ended the instance or was aborted."""
    cause: str | None = None
    """Why the step failed: stop, error, timeout, exhausted, no_handler, refused, crash or poison.

    `None` if it did not fail. The instance may have gone on all the same, by a retry, `on_failure` or `handle`.
    """


class Change(msgspec.Struct, Generic[StateT, ResultT], frozen=True, kw_only=True):
    """A change of an instance, as `watch` yields it: how the instance is now, and what it has executed since."""

    instance: Instance[StateT, ResultT]
    """The latest state. Changes that follow each other fast are one change."""
    executions: tuple[ExecutionRecord, ...] = ()
    """The executions that have ended since the last change, oldest first; at most 100, the next change has more."""
    position: str
    """The place of the change, for `after=`."""


class StateChange(msgspec.Struct, frozen=True):
    """A part of a state that differs between two transitions."""

    path: str
    """Where it is: `$.items[0].price`; `$` is the state itself."""
    kind: Literal["added", "removed", "changed"]
    before: Any = None
    after: Any = None


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """One committed transition of an instance. `client.history` returns them."""

    step_seq: int
    """Its number; 0 is the insert."""
    step: str | None
    """The step that made it; `None` for the insert."""
    to: str | None
    """The step that it led to; `None` if it ended the instance."""
    outcome: str
    """The kind of the outcome; also `insert`, and `edit` for a change by `edit` or by `retry` with a step."""
    state: Any = None
    """The state that it wrote, as plain JSON, if `has_state`."""
    has_state: bool = False
    """Whether the state was kept: the machine had `history="all"`, or it was an edit."""
    version: int | None = None
    """The version of that state: of the machine that wrote it, or upgraded it."""
    changes: tuple[StateChange, ...] | None = None
    """How the state differs from the one before; `None` if one of the two was not kept."""
    signals: tuple[str, ...] = ()
    """Names of the signals that it consumed."""
    children: tuple[int, ...] = ()
    """Ids of the children that it scheduled and that still exist."""
    started_at: datetime | None = None
    finished_at: datetime
    waited: timedelta | None = None
    """Time from the previous transition to the first execution: waiting for a signal, a delay, or a worker."""
    executions: int = 0
    """How many executions it took, with retried and lost ones; 0 for an insert or an edit."""
    worker: str | None = None
    error: str | None = None
    cause: str | None = None
    """Why the step failed, as in `ExecutionRecord.cause`; `None` if it did not."""

    @property
    def duration(self) -> timedelta | None:
        """How long the execution that committed it took."""
        return None if self.started_at is None else max(self.finished_at - self.started_at, timedelta(0))


class Child(Generic[ResultT_co]):
    """A child that has ended, as its parent sees it in `ctx.children`."""

    __slots__ = ("_result", "_state", "id", "last_error", "machine", "size", "status")
    id: int
    machine: str
    status: Status
    last_error: str | None
    size: int
    """Size of state and result in the database in bytes, compressed."""

    if not TYPE_CHECKING:
        __getattr__ = attribute_hint("instance")

    def __init__(
        self,
        *,
        id: int,
        machine: str,
        status: Status,
        state: Any,
        result: ResultT_co | None,
        last_error: str | None,
        size: int = 0,
    ) -> None:
        self.id = id
        self.machine = machine
        self.status = status
        self.last_error = last_error
        self.size = size
        self._state = state
        self._result: Any = result

    @property
    def is_loaded(self) -> bool:
        """Whether state and result are loaded."""
        return self._state is not NOT_LOADED

    @property
    def state(self) -> Any:
        """Its last state.

        Raises:
            NotLoadedError: it was too large to be fetched with the execution; call `ctx.children.load` first.
        """
        return self._loaded(self._state, "state")

    @property
    def result(self) -> ResultT_co | None:
        """Its result; `None` unless it is done.

        Raises:
            NotLoadedError: it was too large to be fetched with the execution; call `ctx.children.load` first.
        """
        result: ResultT_co | None = self._loaded(self._result, "result") if self.is_done else None
        return result

    def _loaded(self, value: Any, what: str) -> Any:
        if value is NOT_LOADED:
            raise NotLoadedError(
                f"the {what} of {self.machine} {self.id} is not loaded",
                "call `await ctx.children.load()` first, or iterate over ctx.children.stream() for large results; "
                "in a plain def, load_sync and stream_sync",
            )
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Child) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash((self.id, self.machine, self.status))

    def __repr__(self) -> str:
        return (
            f"Child(id={self.id}, machine={self.machine!r}, status={self.status!r}, state={self._state!r}, "
            f"result={self._result!r}, last_error={self.last_error!r})"
        )

    def _facts(self) -> tuple[Any, ...]:
        return (self.id, self.machine, self.status, self._state, self._result, self.last_error)

    @property
    def is_done(self) -> bool:
        """Whether its status is `done`."""
        return self.status is Status.DONE
