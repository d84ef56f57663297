"""The reasons why an instance does not run, as `client.explain` returns them. `str()` of a reason is one line."""

from __future__ import annotations

from datetime import datetime
from shlex import quote
from typing import Final, TypeAlias

import msgspec

from .instance import Status

__all__ = [
    "AwaitingChildren",
    "AwaitingSignals",
    "BucketEmpty",
    "CancelPending",
    "CompensationRuns",
    "Deletion",
    "Executing",
    "Explanation",
    "Finished",
    "Holder",
    "KeyBusy",
    "NoWorkerForMachine",
    "NoWorkerForQueue",
    "NoWorkerForStep",
    "NotDue",
    "NotFirstInLine",
    "QueuePaused",
    "Reason",
    "UnknownLimit",
    "Waiting",
]


# How many items of a long list the text shows.
_SHOWN: Final = 10
_MANY: Final = 1000


class _Reason(msgspec.Struct, frozen=True, kw_only=True, tag_field="reason"):
    """One reason. In JSON, its kind is under `reason`."""


class Finished(_Reason, frozen=True, kw_only=True, tag="finished"):
    """It has ended."""

    status: Status
    at: datetime
    why: str | None = None
    """The error that it failed with, or the reason that was given for its cancel."""
    collected_at: datetime | None = None
    """When `keep=False` or retention removed its state and result; the row stays because it still occupies a key."""

    def __str__(self) -> str:
        removed = (
            f"; state and result were removed at {_moment(self.collected_at)}" if self.collected_at else ""
        )
        return f"{self.status} at {_moment(self.at)}{_because(self.why)}{removed}"


class Deletion(_Reason, frozen=True, kw_only=True, tag="deleted"):
    """It is soft-deleted: it never runs, until `restore` undoes that."""

    at: datetime
    why: str | None = None

    def __str__(self) -> str:
        return f"deleted at {_moment(self.at)}{_because(self.why)}; undo: gen-durable restore"


class CancelPending(_Reason, frozen=True, kw_only=True, tag="cancel_requested"):
    """A cancel was requested; it ends with the step that runs."""

    at: datetime
    by: str | None = None
    why: str | None = None

    def __str__(self) -> str:
        requested = f"cancel requested at {_moment(self.at)}{_by(self.by)}{_because(self.why)}"
        return f"{requested}; it ends with the running step"


class CompensationRuns(_Reason, frozen=True, kw_only=True, tag="compensating"):
    """It has failed or was cancelled, and runs its undo steps before it ends."""

    ends_as: Status
    step: str
    """The step at which it failed or was cancelled."""
    at: datetime
    why: str | None = None
    pending: tuple[str, ...] = ()
    """The undo steps that are left, the next one first."""

    def __str__(self) -> str:
        ended = f"{self.ends_as} in step {self.step} at {_moment(self.at)}{_because(self.why)}"
        return f"{ended}; compensating, undo steps left: {', '.join(self.pending)}"


class Executing(_Reason, frozen=True, kw_only=True, tag="executing"):
    """It is executing."""

    worker: str | None
    since: datetime | None
    until: datetime
    """When its lease ends, unless it is renewed."""
    is_worker_live: bool
    is_lease_over: bool
    """The lease was not renewed: a reaper returns the instance to its queue."""

    def __str__(self) -> str:
        since = f" since {_moment(self.since)}" if self.since else ""
        gone = "" if self.is_worker_live else "; no recent heartbeat of this worker"
        until = _moment(self.until)
        lease = (
            f"; lease expired at {until}, a reaper returns it"
            if self.is_lease_over
            else f", lease until {until}"
        )
        return f"executing on worker {self.worker}{since}{lease}{gone}"


class AwaitingSignals(_Reason, frozen=True, kw_only=True, tag="awaiting_signals"):
    """It waits for one of these signals, or for its deadline."""

    names: tuple[str, ...]
    since: datetime
    until: datetime | None = None
    others: tuple[str, ...] = ()
    """The first names of signals in its inbox that it does not await. One of them may be misspelled."""

    def __str__(self) -> str:
        names = " or ".join(f'"{name}"' for name in self.names)
        what = f"waiting for signal {names}" if names else "sleeping"
        end = f"deadline {_moment(self.until)}" if self.until else "no deadline"
        others = ", ".join(f'"{name}"' for name in self.others)
        inbox = f"; not awaited, in its inbox: {others}" if others else ""
        return f"{what} since {_moment(self.since)}, {end}{inbox}"


class AwaitingChildren(_Reason, frozen=True, kw_only=True, tag="awaiting_children"):
    """It waits until its children have ended."""

    pending: int
    total: int
    live: tuple[int, ...]
    """The first children that have not ended."""

    def __str__(self) -> str:
        ids = f": {', '.join(map(str, self.live))}{' …' if self.pending > len(self.live) else ''}"
        return f"waiting for {self.pending} of {self.total} children{ids if self.live else ''}"


class NotDue(_Reason, frozen=True, kw_only=True, tag="not_due"):
    """It is scheduled for later, or waits for the delay of a retry."""

    until: datetime
    failed_attempts: int = 0
    """Attempts of the current step that have not succeeded; 0 if it is not a retry."""
    last_error: str | None = None

    def __str__(self) -> str:
        retry = (
            f"; retry after attempt {self.failed_attempts}{_because(self.last_error)}"
            if self.failed_attempts
            else ""
        )
        return f"not due until {_moment(self.until)}{retry}"


class QueuePaused(_Reason, frozen=True, kw_only=True, tag="queue_paused"):
    """Its queue is paused."""

    queue: str
    since: datetime
    by: str | None = None

    def __str__(self) -> str:
        paused = f'queue "{self.queue}" paused at {_moment(self.since)}{_by(self.by)}'
        return f"{paused}; resume: gen-durable queues resume {quote(self.queue)}"


class Holder(msgspec.Struct, frozen=True):
    """An instance that executes under a concurrency key."""

    id: int
    worker: str | None
    since: datetime | None


class KeyBusy(_Reason, frozen=True, kw_only=True, tag="key_busy"):
    """All slots of its concurrency key are in use."""

    key: str
    slots: int
    """The number of slots; smaller than the number of holders if the limit was lowered recently."""
    holders: tuple[Holder, ...]
    """The instances that hold the slots."""

    def __str__(self) -> str:
        shown = self.holders[:_SHOWN]
        held = ", ".join(f"{each.id} (worker {each.worker})" for each in shown)
        more = f" and {len(self.holders) - _SHOWN} more" if len(self.holders) > _SHOWN else ""
        what = "" if self.slots == 1 else f"all {self.slots} slots of "
        return f'{what}concurrency key "{self.key}" in use by {held}{more}'


class NotFirstInLine(_Reason, frozen=True, kw_only=True, tag="not_first_in_line"):
    """Other instances with its concurrency key are due before it: as many as the key has free slots, or more."""

    key: str
    first: int
    """The one that starts first."""
    ahead: int
    """How many there are; 1000 means 1000 or more."""

    def __str__(self) -> str:
        return f'{_counted(self.ahead)} due before it with concurrency key "{self.key}", first: {self.first}'


class BucketEmpty(_Reason, frozen=True, kw_only=True, tag="bucket_empty"):
    """Its rate limit has no tokens for it yet."""

    key: str
    weight: int
    """How many tokens it needs."""
    until: datetime
    """When it gets its tokens by the current timetable, which counts the instances before it in its queue."""

    def __str__(self) -> str:
        weight = "" if self.weight == 1 else f" for weight {self.weight}"
        return f'rate limit "{self.key}" is exhausted{weight}; next start at {_moment(self.until)}'


class UnknownLimit(_Reason, frozen=True, kw_only=True, tag="unknown_limit"):
    """Its rate limit does not exist: it was removed, or has not been set yet. It starts when the limit is set."""

    key: str
    limit: str

    def __str__(self) -> str:
        return f'rate limit "{self.limit}" does not exist; set it: gen-durable limits set {quote(self.limit)}=100/1m'


class NoWorkerForQueue(_Reason, frozen=True, kw_only=True, tag="no_worker_for_queue"):
    """No live worker serves its queue, or a prefix of its machine's name."""

    queue: str
    machine: str

    def __str__(self) -> str:
        queue, machine = self.queue, self.machine
        start = f"start one: gen-durable worker app.py --queue {quote(queue)}=10"
        return f'no live worker serves queue "{queue}" or a prefix of machine "{machine}"; {start}'


class NoWorkerForMachine(_Reason, frozen=True, kw_only=True, tag="no_worker_for_machine"):
    """Live workers serve its queue, but none of them has its machine in this version."""

    machine: str
    version: int
    known_elsewhere: int
    """How many live workers have the machine, but serve other queues."""

    def __str__(self) -> str:
        other = f" ({self.known_elsewhere} of other queues do)" if self.known_elsewhere else ""
        none = f'no live worker of its queue runs machine "{self.machine}" version {self.version}{other}'
        return f"{none}; deploy this version to one"


class NoWorkerForStep(_Reason, frozen=True, kw_only=True, tag="no_worker_for_step"):
    """Live workers run its machine in this version, but none of them has its step. It waits until one has it."""

    machine: str
    version: int
    step: str
    known: tuple[str, ...]
    """The steps that live workers have."""

    def __str__(self) -> str:
        none = f'no live worker has step "{self.step}" of machine "{self.machine}" version {self.version}'
        return (
            f"{none}; live workers have: {', '.join(self.known)}; "
            f'deploy the step, or name it in was="{self.step}" of the step that replaces it'
        )


class Waiting(_Reason, frozen=True, kw_only=True, tag="waiting"):
    """Nothing blocks it: it waits for a free worker, or for the next poll."""

    since: datetime
    ahead: int
    """Instances of its queue that are due before it; 1000 means 1000 or more."""
    workers: int

    def __str__(self) -> str:
        workers = "1 worker serves" if self.workers == 1 else f"{self.workers} workers serve"
        return f"ready since {_moment(self.since)}; {_counted(self.ahead)} due before it, {workers} its queue"


Reason: TypeAlias = (
    Finished
    | Deletion
    | CancelPending
    | CompensationRuns
    | Executing
    | AwaitingSignals
    | AwaitingChildren
    | NotDue
    | QueuePaused
    | KeyBusy
    | NotFirstInLine
    | BucketEmpty
    | UnknownLimit
    | NoWorkerForQueue
    | NoWorkerForMachine
    | NoWorkerForStep
    | Waiting
)


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why an instance does not run, or that it does, at one moment."""

    id: int
    machine: str
    version: int
    step: str
    status: Status
    queue: str
    at: datetime
    """When it was read, by the clock of the database."""
    reasons: tuple[Reason, ...]
    """All reasons. The instance runs when none of them holds."""

    def __str__(self) -> str:
        lines = "".join(f"\n  {reason}" for reason in self.reasons)
        return f"{self.machine} {self.id} has status {self.status} at step {self.step}{lines}{self._fix()}"

    def _fix(self) -> str:
        """The command that lets it run, if the reasons do not name one."""
        if any(isinstance(reason, Deletion) for reason in self.reasons):
            return ""
        for reason in self.reasons:
            if isinstance(reason, Finished) and reason.status is not Status.DONE:
                state = " --state JSON" if reason.collected_at else ""
                return f"\n  retry: gen-durable retry {self.id}{state}"
            if isinstance(reason, AwaitingSignals) and reason.names:
                return f"\n  send it: gen-durable signal {self.id} {quote(reason.names[0])}"
        return ""


def _moment(at: datetime) -> str:
    return at.isoformat(sep=" ", timespec="seconds")


def _by(actor: str | None) -> str:
    return f" by {actor}" if actor else ""


def _counted(count: int) -> str:
    return f"{count}{'+' if count >= _MANY else ''} instance{'s' if count != 1 else ''}"


def _because(why: str | None) -> str:
    return f": {why}" if why else ""
