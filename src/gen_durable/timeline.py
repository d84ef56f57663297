"""`TimelineEntry`: one line of what happened to an instance, as `client.timeline` returns them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal, TypeAlias

import msgspec

__all__ = ["TimelineEntry", "TimelineKind"]

TimelineKind: TypeAlias = Literal["insert", "wait", "execution", "signal", "child", "audit", "end"]


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the timeline of an instance: something that began at one time."""

    at: datetime
    """When it began."""
    kind: TimelineKind
    name: str = ""
    """Of an execution the step, of a signal its name, of a child its machine, of an audit event the event, of a wait
    the names of the awaited signals."""
    duration: timedelta | None = None
    """How long it took, or has taken so far if `is_open`; `None` if it has no duration or that was not recorded."""
    is_open: bool = False
    """Whether it has not ended: an execution that runs, a wait that lasts, a live child."""
    outcome: str | None = None
    """Of an execution its outcome, or why it was aborted; of a signal `unread` or `consumed`; of a child and an end the
    status; of a wait what for: `signal`, `children`, `retry`, or `start` (a delay or a free worker)."""
    number: int | None = None
    """The number of the execution within the instance, the id of the signal or of the child."""
    attempt: int = 0
    """Executions of the step before this one, for the same transition."""
    step_seq: int | None = None
    """The transition that an execution committed or was to commit."""
    worker: str | None = None
    error: str | None = None
    to_step: str | None = None
    """Of an execution: the step that its transition led to."""
    cause: str | None = None
    """Of an execution: why its step failed, as in `ExecutionRecord.cause`."""
    actor: str | None = None
    """Who made the change, as given by the caller."""
    login: str | None = None
    """The role of the caller's session."""
    reason: str | None = None
    """The reason that the caller gave."""
    signals: tuple[str, ...] = ()
    """Names of the signals that an execution consumed."""
