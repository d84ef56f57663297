"""Instances as producers and parents see them, and the answers to a signal."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import datetime
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

__all__ = [
    "LIVE_STATUSES",
    "STATUS_WORDS",
    "TERMINAL_STATUSES",
    "AlreadyFinished",
    "CancelRequested",
    "CancelResult",
    "Cancelled",
    "Child",
    "Deleted",
    "Delivered",
    "Delivery",
    "DuplicateSignal",
    "ExecutionRecord",
    "ExecutionStatus",
    "Failure",
    "Instance",
    "JobState",
    "JobWord",
    "NotRetried",
    "Restored",
    "Retried",
    "RetryResult",
    "Status",
    "Until",
    "statuses_of",
]


class Status(enum.StrEnum):
    """Where an instance is in its life. The values are those of the database."""

    RUNNABLE = "runnable"
    EXECUTING = "executing"
    AWAITING_SIGNAL = "awaiting_signal"
    AWAITING_CHILDREN = "awaiting_children"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether its life is over."""
        return self in TERMINAL_STATUSES


LIVE_STATUSES: Final = (
    Status.RUNNABLE,
    Status.EXECUTING,
    Status.AWAITING_SIGNAL,
    Status.AWAITING_CHILDREN,
)
TERMINAL_STATUSES: Final = (Status.DONE, Status.FAILED, Status.CANCELLED)

JobWord: TypeAlias = Literal["pending", "leased", "succeeded", "failed", "cancelled"]
"""A status in the words of simple workflows, as `job_status` in SQL says it. Filters take it like a `Status`."""
_STATUSES_OF_WORDS: Final[Mapping[str, tuple[Status, ...]]] = {
    **{status.value: (status,) for status in Status},
    "pending": (Status.RUNNABLE,),
    "leased": (Status.EXECUTING, Status.AWAITING_SIGNAL, Status.AWAITING_CHILDREN),
    "succeeded": (Status.DONE,),
}
STATUS_WORDS: Final = tuple(_STATUSES_OF_WORDS)
"""The names of all statuses, and the words that stand for some of them."""


def statuses_of(word: object) -> tuple[Status, ...] | None:
    """The statuses that a status or a word of jobs stands for; `None` if it is neither."""
    return _STATUSES_OF_WORDS.get(word) if isinstance(word, str) else None


Until: TypeAlias = Literal["finished", "parked"]
"""What to wait for: the end, or a point from which nothing happens by itself."""

_NO_RESULT: Final[Mapping[Status, type[NotDoneError]]] = {
    Status.FAILED: InstanceFailedError,
    Status.CANCELLED: InstanceCancelledError,
}


class Delivered(msgspec.Struct, frozen=True):
    """The signal lies in the inbox of this instance."""

    id: int
    is_awaited: bool
    """Whether the instance was waiting for it, and is awake now."""


class DuplicateSignal(msgspec.Struct, frozen=True):
    """This instance has had a signal with that dedup key before; nothing was added."""

    id: int


Delivery: TypeAlias = Delivered | DuplicateSignal
"""Either way the instance has the signal."""


class Cancelled(msgspec.Struct, frozen=True):
    """It was parked or runnable (or the cancel was forced), and is cancelled now."""

    id: int


class CancelRequested(msgspec.Struct, frozen=True):
    """A step of it executes. The step sees `ctx.cancelled`, and whatever it returns, the instance ends as cancelled."""

    id: int


class AlreadyFinished(msgspec.Struct, frozen=True):
    """It had ended before."""

    id: int
    status: Status


CancelResult: TypeAlias = Cancelled | CancelRequested | AlreadyFinished
"""Either way it comes to an end, or has."""


class Deleted(msgspec.Struct, frozen=True):
    """It is deleted softly: never leased or signalled again, hidden, and kept for a while."""

    id: int
    deleted_at: datetime
    is_executing: bool
    """Whether a step was running. Its keys stay taken until that step has ended."""


class Restored(msgspec.Struct, frozen=True):
    """It is not deleted (any more); it stays what it had become."""

    id: int
    status: Status


class Retried(msgspec.Struct, frozen=True):
    """It goes on, at the step where it had ended."""

    id: int


class NotRetried(msgspec.Struct, frozen=True):
    """There was nothing to retry: it is live or done, or deleted; or its state is collected, and none was given."""

    id: int
    status: Status


RetryResult: TypeAlias = Retried | NotRetried


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, for programs."""

    type: str
    """The name of the exception's class; `Poison` if the process died again and again."""
    message: str = ""
    traceback: tuple[str, ...] = ()
    """Places in the user's code, the innermost last; never the values of variables."""
    attempt: int = 0
    """How often the step had been tried before."""


class Instance(msgspec.Struct, Generic[StateT, ResultT], frozen=True, kw_only=True):
    """One instance as it was when it was read."""

    if not TYPE_CHECKING:
        __getattr__ = attribute_hint("instance")

    id: int
    machine: str
    version: int
    step: str
    status: Status
    state: StateT
    stored_result: ResultT | None = None
    """What the database holds; `result` is the one to use."""
    attempt: int = 0
    """How often its step was tried before; of what has ended, before the try that ended it."""
    step_seq: int = 0
    """How many transitions are committed."""
    crash_count: int = 0
    queue: str = "default"
    priority: int = 0
    awaits: tuple[str, ...] = ()
    """The names of the signals that it waits for."""
    await_deadline: datetime | None = None
    children_pending: int = 0
    """How many children have not ended yet."""
    parent_id: int | None = None
    correlation_key: str | None = None
    unique_key: bytes | None = None
    concurrency_key: str | None = None
    last_error: str | None = None
    """Why it has failed, or what went wrong last, in a sentence."""
    error: Failure | None = None
    """The facts of it. `None` if there was no exception behind it: a step returned `Stop("a reason")`."""
    locked_by: str | None = None
    """The worker that executes it."""
    inserted_at: datetime
    updated_at: datetime
    eligible_at: datetime
    finished_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    """When somebody asked to cancel it. A step that executes then is the last one."""
    cancel_reason: str | None = None
    cancelled_by: str | None = None
    deleted_at: datetime | None = None
    delete_reason: str | None = None
    schedule: str | None = None
    """The schedule that inserted it."""
    fire_time: datetime | None = None
    """When that meant it to start."""
    collected_at: datetime | None = None
    """When the engine took its state and result. What is left stays for a key that it still occupies."""

    @property
    def result(self) -> ResultT:
        """The result of an instance that is done; of any other, a `NotDoneError` that tells what it is."""
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
    def is_parked(self) -> bool:
        """Whether only a signal, a deadline or its children can make it go on."""
        return self.status in (Status.AWAITING_SIGNAL, Status.AWAITING_CHILDREN)


class ExecutionStatus(enum.StrEnum):
    """Where an execution is. `COMMITTED` is the boundary: effects happen there, once, and are never repeated."""

    LEASED = "LEASED"
    IN_PROGRESS = "IN_PROGRESS"
    COMMITTED = "COMMITTED"
    DONE = "DONE"
    ABORTED = "ABORTED"


class JobState(enum.StrEnum):
    """The state of a job, derived from its executions. A job has SUCCEEDED when its last execution is DONE."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class ExecutionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One leased attempt at one step: live, or as it ended."""

    exec_id: str
    """`<instance>:<attempt>`."""
    job_id: int
    """The instance."""
    attempt: int
    """Its number in the life of the instance: 1, 2, 3 …"""
    status: ExecutionStatus
    step: str
    step_seq: int
    """The transition that it made, or tried to make."""
    step_attempt: int
    """How often that step had been tried before."""
    outcome: str | None = None
    """The kind of its outcome; of an aborted one the reason: retry, shutdown, rejoin, lease, poison or cancelled.

    `rejoin`: a child was retried before the step that joins began, so the instance waits for its children again.
    """
    lease_owner: str | None = None
    lease_expires_at: datetime | None = None
    """When its lease runs out unless it is renewed; of an ended one, as it was at the end."""
    leased_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: str | None = None
    retried_at: datetime | None = None
    """It had ended the instance, and then somebody let that go on."""


class Child(Generic[ResultT_co]):
    """A child that has ended, as its parent sees it."""

    __slots__ = ("_result", "_state", "id", "last_error", "machine", "size", "status")
    id: int
    machine: str
    status: Status
    last_error: str | None
    size: int
    """Bytes that state and result take in the database, compressed."""

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
        """Whether state and result are here."""
        return self._state is not NOT_LOADED

    @property
    def state(self) -> Any:
        """Its last state.

        Raises:
            NotLoadedError: it did not come with the execution, and `ctx.children.load` has not fetched it.
        """
        return self._loaded(self._state, "state")

    @property
    def result(self) -> ResultT_co | None:
        """Its result; `None` unless it is done.

        Raises:
            NotLoadedError: it did not come with the execution, and `ctx.children.load` has not fetched it.
        """
        result: ResultT_co | None = self._loaded(self._result, "result") if self.is_done else None
        return result

    def _loaded(self, value: Any, what: str) -> Any:
        if value is NOT_LOADED:
            raise NotLoadedError(
                f"the {what} of {self.machine} {self.id} is not loaded",
                "call `await ctx.children.load()` first, or iterate over ctx.children.stream() if there is much; "
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
        """Whether it ended well."""
        return self.status is Status.DONE
