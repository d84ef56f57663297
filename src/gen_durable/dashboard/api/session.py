"""Who is logged in, and what every page shows."""

from __future__ import annotations

from typing import Final

import msgspec

from ... import __version__, _verbs
from ..._db import dashboard, search
from ..._db import workers as stored_workers
from ..._db.plan import Plan
from ..access import Role, User
from ..board import Board
from ..endpoints import get
from ..live import topic

__all__ = ["Findings", "Session", "Shell", "findings", "session", "shell"]

_MOST: Final = 10_000


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """The user of this session."""

    user: str
    role: Role
    csrf: str
    """Send it as the header X-CSRF-Token with every change."""
    version: str
    """Of gen_durable."""
    schema: str
    read_only: bool
    environment: str
    can_log_out: bool
    """Whether the dashboard has sessions of its own; otherwise the host application logs out."""


class Shell(msgspec.Struct, frozen=True, kw_only=True):
    """The counts beside the names of pages."""

    machines: int
    queues_paused: int
    workers: int
    workers_lost: int
    """Workers that stopped without a clean shutdown."""
    failures: int
    """Failed instances, at most 10,000 are counted."""
    dead_events: int
    """At most 10,000 are counted."""
    is_audit_off: bool
    """Whether changes are not recorded. Pages say so."""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """How many findings `doctor` has."""

    findings: int


@get("/session", summary="Who is logged in")
async def session(board: Board, user: User) -> Session:
    """Return user, role and CSRF token."""
    return Session(
        user=user.name,
        role=user.role,
        csrf=board.access.csrf(user),
        version=__version__,
        schema=board.client.settings.schema,
        read_only=board.options.read_only,
        environment=board.options.environment,
        can_log_out=board.access.has_sessions,
    )


@get("/shell", summary="Counts for the navigation")
async def shell(board: Board) -> Shell:
    """Return the counts."""
    return await board.cached("shell", 5.0, _shell)


@topic("shell", every=5.0)
def _shell() -> Plan[Shell]:
    machines = yield from _verbs.registered_machines()
    overrides = yield from stored_workers.overrides()
    workers = yield from _verbs.workers()
    failures, _ = yield from search.count_up_to(search.Filter(statuses=["failed"]), _MOST)
    dead = yield from dashboard.dead_sinks()
    level = yield from _verbs.audit_level()
    return Shell(
        machines=len({one.name for one in machines}),
        queues_paused=sum(one.paused_at is not None for one in overrides.values()),
        workers=sum(one.is_live for one in workers),
        workers_lost=sum(not one.is_live for one in workers),
        failures=failures,
        dead_events=sum(row["count"] for row in dead),
        is_audit_off=level == "off",
    )


@get("/findings", summary="Number of findings for the navigation")
async def findings(board: Board) -> Findings:
    """Count what `doctor` finds."""
    return Findings(findings=len(await board.findings()))
