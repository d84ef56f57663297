"""Find due schedules, fire them, and change them.

`ahead` is how far the clock of a test is ahead of the database's; zero otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from .._timetable import Timetable
from ..errors import NoScheduleError, UsageError
from ..schedules import Missed, Overlap
from .failures import StatementError, is_data
from .plan import Call, Plan, Row, statements
from .sqlstates import GEN_DURABLE, SERIALIZATION_FAILURE

__all__ = [
    "Definition",
    "Due",
    "Fired",
    "Firing",
    "all_schedules",
    "delete",
    "due",
    "find",
    "fire",
    "pause",
    "put",
    "resume",
    "trigger",
]

_SQL = statements("schedules.sql")
_TRIES: Final = 20
# A fire time that is older than this when a worker sees it counts as missed.
_GRACE: Final = timedelta(minutes=1)
_MAX_CATCH_UP: Final = 1000


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of a schedule; every value is checked."""

    name: str
    cron: str | None
    every: timedelta | None
    tz: str
    missed: Missed
    overlap: Overlap
    spec: str
    """An element of `insert_all`, as JSON."""


class Due(msgspec.Struct, frozen=True):
    """A schedule that is due, or almost."""

    name: str
    revision: int
    fsm: str
    timetable: Timetable
    missed: Missed
    next_at: datetime
    now: datetime

    @property
    def wait(self) -> timedelta:
        """Time until `next_at`, as of the read; zero or negative if it is due."""
        return self.next_at - self.now

    def firing(self) -> Firing:
        """The fire times that are due now, by the `missed` policy of the schedule."""
        fire_times, next_at = self.timetable.due(
            self.next_at, self.now, _MAX_CATCH_UP if self.missed == "all" else 1
        )
        last = fire_times[-1]
        is_missed = self.missed == "skip" and self.now - last > _GRACE
        return Firing([] if is_missed else fire_times, last, next_at)

    def first(self) -> Firing:
        """Only the first fire time, as if it were fired on time."""
        return Firing([self.next_at], self.next_at, self.timetable.after(self.next_at))


class Firing(msgspec.Struct, frozen=True):
    """Fire times to fire, and where the schedule continues."""

    fire_times: list[datetime]
    passed_at: datetime
    """The last fire time that is past after this."""
    next_at: datetime | None


class Fired(msgspec.Struct, frozen=True):
    """The result of firing a schedule."""

    fire_times: list[datetime]
    ids: Sequence[int]
    """For each fire time, the new instance or the one that has its key."""
    are_new: Sequence[bool]
    queue: str | None
    reason: str
    """Why nothing was fired: `missed`, `overlap` or `error`."""
    problem: str | None = None


def due(
    limit: int,
    except_revisions: Collection[int] = (),
    *,
    within: timedelta = timedelta(0),
    ahead: timedelta = timedelta(0),
) -> Plan[list[Due]]:
    """Read the schedules that are due, or will be `within` that time, longest due first."""
    rows = yield _SQL["due_schedules"](
        limit=limit, except_revisions=list(except_revisions), within=within, ahead=ahead
    )
    return [
        Due(
            row["name"],
            row["revision"],
            msgspec.json.decode(row["spec"])["fsm"],
            _timetable(row),
            row["missed"],
            row["next_at"],
            row["now"],
        )
        for row in rows
    ]


def fire(due: Due, firing: Firing) -> Plan[Fired | None]:
    """Fire a schedule and move it to its next fire time; `None` if it was fired or changed concurrently.

    If the instance cannot be inserted, the fire times are skipped and the schedule records the error: later fire
    times must not be blocked.
    """
    try:
        rows = yield _fire(due, firing, None)
    except StatementError as error:
        if not _is_refusal(error):
            raise
        problem = error.message[:2000]
        rows = yield _fire(due, Firing([], firing.passed_at, firing.next_at), problem)
        return Fired(firing.fire_times, (), (), None, "error", problem) if rows else None
    if not rows:
        return None
    row = rows[0]
    reason = "overlap" if row["is_busy"] else "" if firing.fire_times else "missed"
    return Fired(firing.fire_times, row["ids"] or (), row["are_new"] or (), row["queue"], reason)


def trigger(
    name: str, ahead: timedelta = timedelta(0), *, reason: str | None = None, actor: str | None = None
) -> Plan[tuple[int, bool, str]]:
    """Insert an instance now; return its id, whether it is new, and its queue."""
    try:
        rows = yield _SQL["trigger_schedule"](name=name, ahead=ahead, reason=reason, actor=actor)
    except StatementError as error:
        if not _is_refusal(error):
            raise
        raise UsageError(
            f"schedule '{name}' cannot be triggered: {error.message}", "correct its spec"
        ) from error
    if not rows:
        raise NoScheduleError(name)
    return rows[0]["id"], rows[0]["inserted"], rows[0]["queue"]


def put(
    new: Definition,
    ahead: timedelta = timedelta(0),
    *,
    reason: str | None = None,
    actor: str | None = None,
) -> Plan[None]:
    """Create or update a schedule. An unchanged definition writes nothing."""
    for _ in range(_TRIES):
        row = yield from _found(new.name, ahead)
        if row["name"] is not None and _is_same(row, new):
            return
        timetable, next_at = _next_fire_time(row, new)
        written = yield _SQL["put_schedule"](
            **msgspec.structs.asdict(new),
            anchor_at=timetable.anchor,
            next_at=next_at,
            revision=row["revision"],
            reason=reason,
            actor=actor,
        )
        if written:
            return
    raise _changed_concurrently(new.name)


def pause(name: str, reason: str | None, actor: str | None) -> Plan[None]:
    """Pause a schedule: its fire times are skipped."""
    if not (yield _SQL["pause_schedule"](name=name, reason=reason, actor=actor)):
        yield from find(name)


def resume(
    name: str, ahead: timedelta = timedelta(0), *, reason: str | None = None, actor: str | None = None
) -> Plan[None]:
    """Resume a schedule with its next fire time; those during the pause are not fired."""
    for _ in range(_TRIES):
        row = yield from _found(name, ahead)
        if row["name"] is None:
            raise NoScheduleError(name)
        if row["paused_at"] is None:
            return
        next_at = _timetable(row).after(_not_before(row))
        if (
            yield _SQL["resume_schedule"](
                name=name, revision=row["revision"], next_at=next_at, reason=reason, actor=actor
            )
        ):
            return
    raise _changed_concurrently(name)


def delete(name: str, *, reason: str | None = None, actor: str | None = None) -> Plan[None]:
    """Delete a schedule."""
    if not (yield _SQL["delete_schedule"](name=name, reason=reason, actor=actor)):
        raise NoScheduleError(name)


def find(name: str) -> Plan[Row]:
    """Read one schedule.

    Raises:
        NoScheduleError: there is none of that name.
    """
    row = yield from _found(name, timedelta(0))
    if row["name"] is None:
        raise NoScheduleError(name)
    return row


def all_schedules() -> Plan[Sequence[Row]]:
    """Read all schedules, by name."""
    return (yield _SQL["list_schedules"]())


def _fire(due: Due, firing: Firing, problem: str | None) -> Call:
    return _SQL["fire_schedule"](
        name=due.name,
        revision=due.revision,
        fire_times=firing.fire_times,
        passed_at=firing.passed_at,
        next_at=firing.next_at,
        problem=problem,
    )


def _found(name: str, ahead: timedelta) -> Plan[Row]:
    (row,) = yield _SQL["find_schedule"](name=name, ahead=ahead)
    return row


def _next_fire_time(row: Row, new: Definition) -> tuple[Timetable, datetime | None]:
    """The timetable and `next_at` of a new definition; unchanged if its times are unchanged."""
    if row["name"] is not None and _when(row) == (new.cron, new.every, new.tz):
        return _timetable(row), row["next_at"]
    timetable = Timetable(new.cron, new.every, new.tz, row["now"])
    return timetable, timetable.after(_not_before(row))


def _not_before(row: Row) -> datetime:
    """The earliest time to fire next: now, or the last fire time if the clock was set back."""
    now: datetime = row["now"]
    return now if row["last_fire_time"] is None else max(now, row["last_fire_time"])


def _is_same(row: Row, new: Definition) -> bool:
    stored = (*_when(row), row["missed"], row["overlap"], msgspec.json.decode(row["spec"]))
    return stored == (new.cron, new.every, new.tz, new.missed, new.overlap, msgspec.json.decode(new.spec))


def _when(row: Row) -> tuple[str | None, timedelta | None, str]:
    return row["cron"], row["every"], row["tz"]


def _timetable(row: Row) -> Timetable:
    return Timetable(row["cron"], row["every"], row["tz"], row["anchor_at"])


def _is_refusal(error: StatementError) -> bool:
    """Whether the insert is invalid, so that a retry fails as well."""
    return is_data(error) or error.sqlstate.startswith(GEN_DURABLE)


def _changed_concurrently(name: str) -> Exception:
    return StatementError(SERIALIZATION_FAILURE, f"schedule '{name}' was changed concurrently {_TRIES} times")
