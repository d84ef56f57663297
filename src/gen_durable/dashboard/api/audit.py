"""The audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from ... import _verbs
from ..._db.plan import Plan
from ..._verbs import AuditWho
from ...audit import AuditEvent
from ...config import AuditLevel
from ..access import User
from ..board import Board
from ..endpoints import Reason, get, post
from ..searching import hidden_selection

__all__ = ["audit"]

T = TypeVar("T")


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Audit events, newest first."""

    items: Sequence[AuditEvent]
    next: int | None
    """Give it as `before` for the next page."""
    level: AuditLevel


class LevelBody(Reason, frozen=True, kw_only=True):
    """The level of the audit log."""

    level: AuditLevel


@get("/audit", every=5, summary="The audit log, newest first")
async def audit(
    board: Board,
    *,
    who: AuditWho = "all",
    actor: str | None = None,
    event: str | None = None,
    subject: str | None = None,
    instance: int | None = None,
    before: int | None = None,
    limit: int = 100,
) -> AuditPage:
    """Return a page of the audit log. It reads at most 100,000 events, so it may be short although `next` is set.

    `who=people`: events with an actor; `who=trouble`: failures, crashes and retries by the engine.
    """
    page = _verbs.audit_page(
        who=who, actor=actor, event=event, subject=subject, instance_id=instance, before=before, limit=limit
    )
    (found, after), level = await board.snapshot(_with_level(page))
    items = [
        msgspec.structs.replace(one, data=board.redact(hidden_selection(one.data, board.redact)))
        for one in found
    ]
    return AuditPage(items=items, next=after, level=level)


def _with_level(page: Plan[T]) -> Plan[tuple[T, AuditLevel]]:
    return (yield from page), (yield from _verbs.audit_level())


@post("/audit/level", role="admin", summary="Set which changes are recorded")
async def set_level(board: Board, user: User, body: LevelBody) -> LevelBody:
    """Set the audit level."""
    await board.client.set_audit(body.level, reason=body.reason or None, actor=user.name)
    return body
