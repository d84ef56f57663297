"""Why an instance does not run: the possible reasons, each with its facts. `str()` of one is a sentence."""

from __future__ import annotations

from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from .instance import Status

__all__ = [
    "AwaitingChildren",
    "AwaitingSignals",
    "BucketEmpty",
    "CancelPending",
    "Deletion",
    "Executing",
    "Explanation",
    "Finished",
    "Holder",
    "KeyBusy",
    "NoWorkerForMachine",
    "NoWorkerForQueue",
    "NotDue",
    "NotFirstInLine",
    "QueuePaused",
    "Reason",
    "UnknownLimit",
    "Waiting",
]


# Of a long list, so many stand in a sentence.
_SHOWN: Final = 10


class _Reason(msgspec.Struct, frozen=True, kw_only=True, tag_field="reason"):
    """One reason. In JSON, its kind is under `reason`."""


class Finished(_Reason, frozen=True, kw_only=True, tag="finished"):
    """Its life is over."""

    status: Status
    at: datetime
    why: str | None = None
    """The error that it failed with, or the reason that was given for its cancel."""

    def __str__(self) -> str:
        return f"it is {self.status} since {_moment(self.at)}{_because(self.why)}"


class Deletion(_Reason, frozen=True, kw_only=True, tag="deleted"):
    """It is deleted softly; `restore` undoes that."""

    at: datetime
    why: str | None = None

    def __str__(self) -> str:
        return f"it is deleted since {_moment(self.at)}{_because(self.why)}"


class CancelPending(_Reason, frozen=True, kw_only=True, tag="cancel_requested"):
    """Somebody asked to cancel it; it ends with the step that runs."""

    at: datetime
    by: str | None = None
    why: str | None = None

    def __str__(self) -> str:
        who = f" by {self.by}" if self.by else ""
        return f"a cancel was requested{who} at {_moment(self.at)}{_because(self.why)}"


class Executing(_Reason, frozen=True, kw_only=True, tag="executing"):
    """It does run."""

    worker: str | None
    since: datetime | None
    until: datetime
    """When its lease ends, unless it is renewed."""
    is_worker_live: bool
    is_lease_over: bool
    """Nobody has renewed it: the reaper is going to take it back."""

    def __str__(self) -> str:
        gone = "" if self.is_worker_live else ", which has not been heard of lately"
        lease = f"; its lease ran out at {_moment(self.until)}, and a reaper is to take it back"
        since = f" since {_moment(self.since)}" if self.since else ""
        told = lease if self.is_lease_over else f", leased until {_moment(self.until)}"
        return f"worker {self.worker} executes it{since}{gone}{told}"


class AwaitingSignals(_Reason, frozen=True, kw_only=True, tag="awaiting_signals"):
    """It sleeps until one of these signals comes, or the time is over."""

    names: tuple[str, ...]
    since: datetime
    until: datetime | None = None

    def __str__(self) -> str:
        end = f", until {_moment(self.until)} at the latest" if self.until else ", without a deadline"
        return f"it awaits {', '.join(self.names) or 'no signal'} since {_moment(self.since)}{end}"


class AwaitingChildren(_Reason, frozen=True, kw_only=True, tag="awaiting_children"):
    """It sleeps until its children have ended."""

    pending: int
    total: int
    live: tuple[int, ...]
    """The first of those that have not."""

    def __str__(self) -> str:
        ids = f": {', '.join(map(str, self.live))}{' …' if self.pending > len(self.live) else ''}"
        return f"it waits for {self.pending} of {self.total} children{ids if self.live else ''}"


class NotDue(_Reason, frozen=True, kw_only=True, tag="not_due"):
    """Its time has not come."""

    until: datetime

    def __str__(self) -> str:
        return f"it is not due until {_moment(self.until)}"


class QueuePaused(_Reason, frozen=True, kw_only=True, tag="queue_paused"):
    """Somebody paused its queue."""

    queue: str
    since: datetime
    by: str | None = None

    def __str__(self) -> str:
        who = f" by {self.by}" if self.by else ""
        return f"queue {self.queue} is paused since {_moment(self.since)}{who}; `gen-durable queues resume` ends that"


class Holder(msgspec.Struct, frozen=True):
    """An instance that executes under a concurrency key."""

    id: int
    worker: str | None
    since: datetime | None


class KeyBusy(_Reason, frozen=True, kw_only=True, tag="key_busy"):
    """Others execute under its concurrency key, as many as may."""

    key: str
    slots: int
    """How many may; it is fewer than there are holders, if the limit was lowered a short while ago."""
    holders: tuple[Holder, ...]
    """All of them."""

    def __str__(self) -> str:
        shown = self.holders[:_SHOWN]
        held = ", ".join(f"{each.id} (on {each.worker})" for each in shown)
        more = f" and {len(self.holders) - _SHOWN} more" if len(self.holders) > _SHOWN else ""
        what = "" if self.slots == 1 else f"each of the {self.slots} slots of "
        return f"{what}its concurrency key {self.key} is held by {held}{more}"


class NotFirstInLine(_Reason, frozen=True, kw_only=True, tag="not_first_in_line"):
    """Its concurrency key has a free slot, but for another instance that is due before it."""

    key: str
    first: int
    """The first of those in line."""

    def __str__(self) -> str:
        return f"instance {self.first} stands before it in the line of its concurrency key {self.key}"


class BucketEmpty(_Reason, frozen=True, kw_only=True, tag="bucket_empty"):
    """Its rate limit has no tokens for it yet."""

    key: str
    weight: int
    """How many it needs."""
    until: datetime
    """When they will be there, as things are now: what waits before it in its queue is counted."""

    def __str__(self) -> str:
        tokens = "a token" if self.weight == 1 else f"{self.weight} tokens"
        return f"its rate limit {self.key} has not {tokens} for it until {_moment(self.until)}"


class UnknownLimit(_Reason, frozen=True, kw_only=True, tag="unknown_limit"):
    """Its rate limit does not exist: it was removed, or has not been set yet. It starts when the limit is set."""

    key: str
    limit: str

    def __str__(self) -> str:
        return f'rate limit "{self.limit}" does not exist; set it: gen-durable limits set {self.limit}=100/1m'


class NoWorkerForQueue(_Reason, frozen=True, kw_only=True, tag="no_worker_for_queue"):
    """No live worker serves its queue, or a prefix of its machine's name."""

    queue: str
    machine: str

    def __str__(self) -> str:
        return f"no live worker serves queue {self.queue}, nor a prefix of {self.machine}"


class NoWorkerForMachine(_Reason, frozen=True, kw_only=True, tag="no_worker_for_machine"):
    """Live workers serve its queue, but none of them has its machine in this version."""

    machine: str
    version: int
    known_elsewhere: int
    """How many live workers have the machine, but serve other queues."""

    def __str__(self) -> str:
        other = f"; {self.known_elsewhere} that know it serve other queues" if self.known_elsewhere else ""
        return f"no live worker that serves its queue knows {self.machine} version {self.version}{other}"


class Waiting(_Reason, frozen=True, kw_only=True, tag="waiting"):
    """Nothing stands in its way: it waits for a free worker, or will be found by the next poll."""

    since: datetime
    ahead: int
    """Instances of its queue that are due before it; 1000 stands for that many and more."""
    workers: int

    def __str__(self) -> str:
        line = f"{self.ahead}{'+' if self.ahead >= 1000 else ''} before it"
        return f"it could run since {_moment(self.since)}; {line}, {self.workers} workers serve it"


Reason: TypeAlias = (
    Finished
    | Deletion
    | CancelPending
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
    """When we looked, by the clock of the database."""
    reasons: tuple[Reason, ...]
    """All of them: each has to go before it runs."""

    def __str__(self) -> str:
        told = "".join(f"\n  {reason}" for reason in self.reasons)
        return f"{self.machine} {self.id} is {self.status} at step {self.step}{told}"


def _moment(at: datetime) -> str:
    return at.isoformat(sep=" ", timespec="seconds")


def _because(why: str | None) -> str:
    return f": {why}" if why else ""
