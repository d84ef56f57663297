"""`AuditEvent`: one row of the audit log, written in the transaction of the change that it records."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

__all__ = ["AuditEvent", "AuditName"]

AuditName: TypeAlias = Literal[
    "created",
    "leased",
    "started",
    "succeeded",
    "retried",
    "failed",
    "crashed",
    "released",
    "cancelled",
    "compensating",
    "redirected",
    "signalled",
    "expired",
    "cancel_requested",
    "deleted",
    "restored",
    "replayed",
    "paused",
    "resumed",
    "set",
    "removed",
    "triggered",
    "stopped",
    "finished",
]


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the audit log: what happened to an instance, or an action on a queue, limit, schedule or batch."""

    number: int
    """The number of the event; later events have larger numbers."""
    instance_id: int | None
    """`None` if the event concerns `subject`."""
    event: AuditName
    actor: str | None
    """Who made the change, as given by the caller; `None` for changes by the engine."""
    login: str | None
    """PostgreSQL's `session_user` of the session that wrote the event. A caller cannot choose it."""
    reason: str | None
    """The reason that the caller gave."""
    data: Mapping[str, Any]
    """Details. Events of an execution have `execution`, `step`, `step_seq`, `attempt` and `worker`."""
    at: datetime
    subject: str | None = None
    """Instead of an instance: `queue:NAME`, `limit:NAME`, `schedule:NAME`, `batch:ID`, or `audit` for the level."""
