"""The reasons why an instance does not run, as `client.explain` returns them. `str()` of a reason is one line."""

from __future__ import annotations

from datetime import datetime
from shlex import quote
from typing import Final, TypeAlias

import msgspec

from .instance import Status
from .operations import BlockedLoop
from .progress import Progress

__all__ = [
    "AwaitingChildren",
    "AwaitingSignals",
    "BucketEmpty",
    "CancelHandled",
    "CancelPending",
    "CompensationRuns",
    "Deletion",
    "Executing",
    "Explanation",
    "Finished",
    "Holder",
    "Incompatible",
    "KeyBusy",
    "LoopBlocked",
    "NoWorkerForMachine",
    "NoWorkerForQueue",
    "NoWorkerForStep",
    "NotDue",
    "NotFirstInLine",
    "QueuePaused",
    "Reason",
    "Retrying",
    "UnknownLimit",
    "UnreadSignals",
    "Waiting",
    "WorkersBusy",
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
    attempts: int = 1
    """Of a failed instance: the executions of the step at which it failed."""
    collected_at: datetime | None = None
    """When `keep=False` or retention removed its state and result; the row stays because it still occupies a key."""
    pending: tuple[str, ...] = ()
    """The undo steps that have not run, because one failed, or because undo was skipped or stopped."""
    retry_step: str | None = None
    """The step at which a retry starts: the first one, if all steps were undone. `None`: the step where it ended."""

    def __str__(self) -> str:
        removed = (
            f"; state and result were removed at {_moment(self.collected_at)}" if self.collected_at else ""
        )
        attempts = f" after {self.attempts} attempts" if self.attempts > 1 else ""
        left = f"; undo steps that have not run: {', '.join(self.pending)}" if self.pending else ""
        again = (
            f"; a retry starts at {self.retry_step}, the first step that was undone"
            if self.retry_step
            else ""
        )
        return f"{self.status} at {_moment(self.at)}{attempts}{_because(self.why)}{left}{again}{removed}"


class Deletion(_Reason, frozen=True, kw_only=True, tag="deleted"):
    """It is soft-deleted: it never runs, until `restore` undoes that."""

    at: datetime
    why: str | None = None

    def __str__(self) -> str:
        return f"deleted at {_moment(self.at)}{_because(self.why)}; undo: gen-durable restore"


class CancelPending(_Reason, frozen=True, kw_only=True, tag="cancel_requested"):
    """A cancel was requested. It takes effect when the running step ends."""

    at: datetime
    by: str | None = None
    why: str | None = None
    then: str | None = None
    """The `on_cancel` or undo step that runs after the running step."""

    def __str__(self) -> str:
        requested = f"cancel requested at {_moment(self.at)}{_by(self.by)}{_because(self.why)}"
        if self.then is not None:
            return f"{requested}; when the running step ends, step {self.then} runs"
        return f"{requested}; it takes effect when the running step ends"


class CancelHandled(_Reason, frozen=True, kw_only=True, tag="cancel_handled"):
    """A cancel led it to an `on_cancel` step, which decides how it continues."""

    by: str | None = None
    why: str | None = None

    def __str__(self) -> str:
        return f"cancelled{_by(self.by)}{_because(self.why)}; it went to an on_cancel step"


class CompensationRuns(_Reason, frozen=True, kw_only=True, tag="compensating"):
    """It has failed or was cancelled, and runs its undo steps before it ends."""

    ends_as: Status
    step: str
    """The step at which it failed or was cancelled."""
    at: datetime
    why: str | None = None
    pending: tuple[str, ...] = ()
    """The undo steps that are left, the next one first."""
    continues_at: str | None = None
    """The step that continues the first of them; `None`: that one has not run, or runs."""

    def __str__(self) -> str:
        ended = f"{self.ends_as} in step {self.step} at {_moment(self.at)}{_because(self.why)}; compensating"
        if self.continues_at is None:
            return f"{ended}, undo steps left: {', '.join(self.pending)}"
        first, *rest = self.pending
        left = f", undo steps left after it: {', '.join(rest)}" if rest else ""
        return f"{ended}, undo step {first} has run and continues at step {self.continues_at}{left}"


class Executing(_Reason, frozen=True, kw_only=True, tag="executing"):
    """It is executing."""

    worker: str | None
    since: datetime | None
    until: datetime
    """When its lease ends, unless it is renewed."""
    is_worker_live: bool
    is_lease_over: bool
    """The lease was not renewed: the reaper of a live worker returns the instance to its queue."""
    is_any_worker_live: bool = True
    """Whether a live worker can take it back."""
    progress: Progress | None = None
    """How far the step is, if it reports progress."""

    def __str__(self) -> str:
        since = f" since {_moment(self.since)}" if self.since else ""
        gone = "" if self.is_worker_live else "; no recent heartbeat of this worker"
        until = _moment(self.until)
        lease = f", lease until {until}"
        if self.is_lease_over:
            lease = f"; lease expired at {until}, a reaper returns it"
            if not self.is_any_worker_live:
                gone = ""
                start = "start one: gen-durable worker app.py"
                lease = f"; lease expired at {until}, no live worker takes it back; {start}"
        progress = f"; progress: {self.progress}" if self.progress else ""
        return f"executing on worker {self.worker}{since}{lease}{gone}{progress}"


class LoopBlocked(_Reason, frozen=True, kw_only=True, tag="loop_blocked"):
    """The event loop of its worker, or of a worker that could run it, is blocked: by its own step or by another one."""

    worker: str
    blocked: BlockedLoop
    """What blocks it."""

    def __str__(self) -> str:
        blocked = f"event loop of worker {self.worker} {self.blocked}"
        return f"{blocked}; use a plain `def` step or asyncio.to_thread for blocking code"


class AwaitingSignals(_Reason, frozen=True, kw_only=True, tag="awaiting_signals"):
    """It waits for one of these signals, or for its deadline."""

    names: tuple[str, ...]
    since: datetime
    until: datetime | None = None
    with_payload: tuple[str, ...] = ()
    """Those of the names that are declared with a payload."""

    def __str__(self) -> str:
        names = " or ".join(f'"{name}"' for name in self.names)
        what = f"waiting for signal {names}" if names else "sleeping"
        end = f"deadline {_moment(self.until)}" if self.until else "no deadline"
        return f"{what} since {_moment(self.since)}, {end}"


class UnreadSignals(_Reason, frozen=True, kw_only=True, tag="unread_signals"):
    """Its inbox has signals that it does not await. One of them may be misspelled."""

    names: tuple[str, ...]
    """The first names. If it awaits no signal now: names that its machine does not declare."""
    meant: dict[str, str] = {}
    """By name: an awaited or declared name that is similar."""

    def __str__(self) -> str:
        names = ", ".join(
            f'"{name}"' + (f' (did you mean "{self.meant[name]}"?)' if name in self.meant else "")
            for name in self.names
        )
        return f"unread signal{'s' if len(self.names) > 1 else ''} that nothing awaits: {names}"


class AwaitingChildren(_Reason, frozen=True, kw_only=True, tag="awaiting_children"):
    """It waits until its children have ended."""

    pending: int
    total: int
    live: tuple[int, ...]
    """The first children that have not ended."""
    then: str | None = None
    """The undo step that runs when they have ended."""

    def __str__(self) -> str:
        ids = f": {', '.join(map(str, self.live))}{' …' if self.pending > len(self.live) else ''}"
        then = f"; then step {self.then} continues the undo" if self.then else ""
        return f"waiting for {self.pending} of {self.total} children{ids if self.live else ''}{then}"


class Retrying(_Reason, frozen=True, kw_only=True, tag="retrying"):
    """Earlier attempts at its step have not succeeded."""

    step: str
    attempts: int
    """How many attempts have not succeeded."""
    max_attempts: int | None = None
    """After how many attempts the step has failed for good; `None`: no limit is registered."""
    last_error: str | None = None
    """What the last one that raised has raised; `None`: they returned `Retry`, or their process died."""
    crashes: int = 0
    """How many of the last attempts ended with their process."""
    until: datetime | None = None
    """When the next attempt is due; `None`: it is due, or runs."""

    def __str__(self) -> str:
        times = "once" if self.attempts == 1 else f"{self.attempts} times"
        if self.max_attempts is not None:
            times = f"in attempt {self.attempts} of {self.max_attempts}"
        what = "failed" if self.last_error is not None or self.crashes else "returned Retry"
        died = (
            f"; its process died in the last {'attempt' if self.crashes == 1 else f'{self.crashes} attempts'}"
            if self.crashes
            else ""
        )
        following = f"; next attempt at {_moment(self.until)}" if self.until else ""
        return f"step {self.step} {what} {times}{_because(self.last_error)}{died}{following}"


class NotDue(_Reason, frozen=True, kw_only=True, tag="not_due"):
    """It is scheduled for later."""

    until: datetime

    def __str__(self) -> str:
        return f"not due until {_moment(self.until)}"


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


class Incompatible(_Reason, frozen=True, kw_only=True, tag="incompatible"):
    """Live workers found at their start that their code cannot read this instance, or states of its version."""

    workers: tuple[str, ...]
    since: datetime
    """When the first of them started."""
    code: str
    """As in `check`: `state.undecodable`, `checkpoint.undecodable`, `signal.undecodable`, …"""
    problem: str
    fix: str

    def __str__(self) -> str:
        noun = "worker" if len(self.workers) == 1 else "workers"
        return f"{noun} {', '.join(self.workers)} found at {_moment(self.since)}: {self.problem}; {self.fix}"


class WorkersBusy(_Reason, frozen=True, kw_only=True, tag="workers_busy"):
    """All workers that could run it execute as many steps as they can."""

    queue: str
    running: int
    """The executions of its queue on these workers; less than `capacity` if another queue uses what they share."""
    capacity: int
    workers: int
    oldest: Holder | None = None
    """The execution that began first."""

    def __str__(self) -> str:
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        busy = f'queue "{self.queue}" is at capacity: {workers}, {self.running} of {self.capacity} executions in use'
        oldest = ""
        if self.oldest is not None and self.oldest.since is not None:
            who = f"{self.oldest.id} on worker {self.oldest.worker}"
            oldest = f", the oldest ({who}) since {_moment(self.oldest.since)}"
        more = f"gen-durable queues set {quote(self.queue)} --concurrency N"
        return f"{busy}{oldest}; start workers, or raise it: {more}"


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
    | CancelHandled
    | CompensationRuns
    | Executing
    | LoopBlocked
    | AwaitingSignals
    | UnreadSignals
    | AwaitingChildren
    | Retrying
    | NotDue
    | QueuePaused
    | KeyBusy
    | NotFirstInLine
    | BucketEmpty
    | UnknownLimit
    | NoWorkerForQueue
    | NoWorkerForMachine
    | NoWorkerForStep
    | Incompatible
    | WorkersBusy
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
    """All reasons, the cause first. The instance runs when none of them holds."""

    def __str__(self) -> str:
        lines = "".join(f"\n  {reason}" for reason in self.reasons)
        return f"{self.machine} {self.id} has status {self.status} at step {self.step}{lines}{self._fix()}"

    def _fix(self) -> str:
        """The command that lets it run, if the reasons do not name one. Not if it would fail then."""
        if any(isinstance(reason, Deletion | Incompatible) for reason in self.reasons):
            return ""
        for reason in self.reasons:
            if isinstance(reason, Finished) and reason.status is not Status.DONE:
                state = " --state JSON" if reason.collected_at else ""
                return f"\n  retry: gen-durable retry {self.id}{state}"
            if isinstance(reason, Retrying) and reason.until is not None:
                return f"\n  run it now: gen-durable edit {self.id} --wake"
            if isinstance(reason, AwaitingSignals) and reason.names:
                payload = " PAYLOAD" if reason.names[0] in reason.with_payload else ""
                return f"\n  send it: gen-durable signal {self.id} {quote(reason.names[0])}{payload}"
        return ""


def _moment(at: datetime) -> str:
    return at.isoformat(sep=" ", timespec="seconds")


def _by(actor: str | None) -> str:
    return f" by {actor}" if actor else ""


def _counted(count: int) -> str:
    return f"{count}{'+' if count >= _MANY else ''} instance{'s' if count != 1 else ''}"


def _because(why: str | None) -> str:
    return f": {why}" if why else ""
