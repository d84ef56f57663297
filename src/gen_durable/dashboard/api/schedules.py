"""Schedules: when they fire, what became of their runs, and changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import msgspec

from ... import _verbs
from ..._db import dashboard, snapshots
from ..._db.plan import Plan
from ..._timetable import Timetable
from ...errors import NoScheduleError
from ...instance import Status
from ...schedules import Missed, Overlap, ScheduleRecord
from ..access import User
from ..board import Board
from ..cron_words import in_words
from ..endpoints import Reason, get, post
from ..redaction import restored

__all__ = ["schedules"]

_RUNS: Final = 14
_UPCOMING: Final = 48
_DAY: Final = timedelta(days=1)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that a schedule inserted."""

    id: int
    status: Status
    fire_time: datetime | None
    inserted_at: datetime
    finished_at: datetime | None
    last_error: str | None


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule."""

    name: str
    machine: str
    when: str
    """Its fire times in words."""
    cron: str | None
    every: timedelta | None
    tz: str
    missed: Missed
    overlap: Overlap
    next_at: datetime | None
    last_fire_time: datetime | None
    last_fired_at: datetime | None
    last_error: str | None
    """Why the last fire time inserted nothing; null: it did."""
    fired_count: int
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    state: Any
    """Of its instances. Secrets are hidden."""
    options: Mapping[str, Any]
    """Of its instances: queue, priority, keys and so on."""
    upcoming: list[datetime]
    """Fire times of the next 24 hours, at most 48."""
    runs: list[Run]
    """The newest instances, newest first."""


class SchedulesPage(msgspec.Struct, frozen=True, kw_only=True):
    """All schedules."""

    at: datetime
    schedules: Sequence[ScheduleRow]


@get("/schedules", every=5, summary="Schedules with their next fire times and last runs")
async def schedules(board: Board) -> SchedulesPage:
    """Return all schedules."""
    found = await board.cached("schedules", 2.0, _page)
    replace = msgspec.structs.replace
    return replace(found, schedules=[replace(one, state=board.redact(one.state)) for one in found.schedules])


def _page() -> Plan[SchedulesPage]:
    at = yield from snapshots.now()
    found = yield from _verbs.schedules.every()
    runs: defaultdict[str, list[Run]] = defaultdict(list)
    for row in (yield from dashboard.recent_runs(_RUNS)):
        runs[row["schedule"]].append(
            Run(
                id=row["id"],
                status=Status(row["status"]),
                fire_time=row["fire_time"],
                inserted_at=row["inserted_at"],
                finished_at=row["finished_at"],
                last_error=row["last_error"],
            )
        )
    return SchedulesPage(at=at, schedules=[_row(one, runs[one.name], at) for one in found])


def _row(one: ScheduleRecord, runs: list[Run], at: datetime) -> ScheduleRow:
    return ScheduleRow(
        name=one.name,
        machine=one.machine,
        when=in_words(one.cron, one.every),
        cron=one.cron,
        every=one.every,
        tz=one.tz,
        missed=one.missed,
        overlap=one.overlap,
        next_at=one.next_at,
        last_fire_time=one.last_fire_time,
        last_fired_at=one.last_fired_at,
        last_error=one.last_error,
        fired_count=one.fired_count,
        paused_at=one.paused_at,
        paused_by=one.paused_by,
        pause_reason=one.pause_reason,
        state=one.spec.get("state"),
        options={
            # A stored null: none, although the machine has a default.
            name: "" if value is None else value
            for name, value in one.spec.items()
            if name not in ("fsm", "state")
        },
        upcoming=_upcoming(one, at),
        runs=runs,
    )


def _upcoming(one: ScheduleRecord, at: datetime) -> list[datetime]:
    if one.next_at is None or one.is_paused:
        return []
    timetable = Timetable(one.cron, one.every, one.tz, one.next_at)
    found: list[datetime] = []
    time: datetime | None = one.next_at
    while time is not None and time < at + _DAY and len(found) < _UPCOMING:
        found.append(time)
        time = timetable.after(time)
    return found


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Options of the instances of a schedule. Those that are left out are the defaults of the machine."""

    step: str | None = None
    queue: str | None = None
    priority: Annotated[int, msgspec.Meta(ge=-(2**15), lt=2**15)] | None = None
    correlation_key: str | None = None
    correlation_scope: Sequence[Status] | None = None
    unique_key: str | None = None
    unique_scope: Sequence[Status] | None = None
    concurrency_key: str | None = None
    """The empty text: none, although the machine has one."""
    rate_limit: str | None = None
    """The empty text: none, although the machine has one."""
    weight: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = None
    max_attempts: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = None
    version: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = None
    """Otherwise at each fire time the newest that a worker has registered."""


class ScheduleBody(Reason, frozen=True, kw_only=True):
    """The definition of a schedule: give either `cron` or `every`."""

    machine: str
    state: Any = msgspec.field(default_factory=dict)
    """Of its instances. Hidden values stay those of the stored schedule."""
    cron: str | None = None
    every: timedelta | None = None
    tz: str = "UTC"
    missed: Missed = "once"
    overlap: Overlap = "allow"
    options: Options = Options()


class Triggered(msgspec.Struct, frozen=True, kw_only=True):
    """The instance of a schedule that was triggered."""

    id: int
    is_new: bool
    """Whether it was inserted; otherwise this instance has the key."""


@post("/schedules/{name}", role="operate", summary="Store a schedule: a new one, or another definition")
async def put_schedule(board: Board, user: User, name: str, body: ScheduleBody) -> Reason:
    """Store a schedule. A worker whose code declares it stores it again when it starts."""
    try:
        stored = (await board.read(_verbs.schedules.get(name))).spec.get("state")
    except NoScheduleError:
        stored = None
    await board.change(
        _verbs.schedules.put_by_name(
            name,
            body.machine,
            msgspec.json.encode(restored(body.state, stored, board.redact)).decode(),
            msgspec.to_builtins(body.options),
            cron=body.cron or None,
            every=body.every,
            tz=body.tz,
            missed=body.missed,
            overlap=body.overlap,
            reason=body.reason or None,
            actor=user.name,
        )
    )
    return Reason(reason=body.reason)


@post("/schedules/{name}/pause", role="operate", summary="Pause a schedule")
async def pause_schedule(board: Board, user: User, name: str, body: Reason) -> Reason:
    """Pause a schedule."""
    await board.client.pause_schedule(name, reason=body.reason or None, actor=user.name)
    return body


@post("/schedules/{name}/resume", role="operate", summary="Resume a paused schedule")
async def resume_schedule(board: Board, user: User, name: str, body: Reason) -> Reason:
    """Resume a schedule."""
    await board.client.resume_schedule(name, reason=body.reason or None, actor=user.name)
    return body


@post("/schedules/{name}/trigger", role="operate", summary="Insert an instance of a schedule now")
async def trigger_schedule(board: Board, user: User, name: str, body: Reason) -> Triggered:
    """Trigger a schedule."""
    made = await board.client.trigger_schedule(name, reason=body.reason or None, actor=user.name)
    return Triggered(id=made.id, is_new=made.is_new)


@post("/schedules/{name}/delete", role="admin", summary="Delete a schedule; its instances stay")
async def delete_schedule(board: Board, user: User, name: str, body: Reason) -> Reason:
    """Delete a schedule."""
    await board.client.delete_schedule(name, reason=body.reason or None, actor=user.name)
    return body
