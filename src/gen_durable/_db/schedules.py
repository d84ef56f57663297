"""Schedules: finding those that are due, firing them, changing them.

`ahead` is how far the clock of a test is ahead of the database's; it is zero everywhere else.
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
# What is older when somebody looks was missed.
_GRACE: Final = timedelta(minutes=1)
_MOST_MADE_UP_FOR: Final = 1000


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule says; every value is checked."""

    name: str
    cron: str | None
    every: timedelta | None
    tz: str
    missed: Missed
    overlap: Overlap
    spec: str
    """An element of `insert_all`, as JSON."""


class Due(msgspec.Struct, frozen=True):
    """A schedule whose slot has come, or is about to."""

    name: str
    revision: int
    fsm: str
    timetable: Timetable
    missed: Missed
    next_at: datetime
    now: datetime

    @property
    def wait(self) -> timedelta:
        """How long it was until its slot when somebody looked; not above zero: it has come."""
        return self.next_at - self.now

    def firing(self) -> Firing:
        """What is to be fired now, by the schedule's own policy."""
        slots, next_at = self.timetable.due(
            self.next_at, self.now, _MOST_MADE_UP_FOR if self.missed == "all" else 1
        )
        is_missed = self.missed == "skip" and self.now - slots[-1] > _GRACE
        return Firing([] if is_missed else slots, slots[-1], next_at)

    def first(self) -> Firing:
        """The first slot alone, as if somebody had been there to fire it in time."""
        return Firing([self.next_at], self.next_at, self.timetable.after(self.next_at))


class Firing(msgspec.Struct, frozen=True):
    """Slots to fire."""

    fire_times: list[datetime]
    passed_at: datetime
    """The last slot that is over after that."""
    next_at: datetime | None


class Fired(msgspec.Struct, frozen=True):
    """What became of the slots of a schedule."""

    fire_times: list[datetime]
    ids: Sequence[int]
    """For each slot that was fired the new instance, or the one that has its key."""
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
    """The schedules whose slot has come, or comes within so long, the longest due first."""
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
    """Fire slots, and go on to the next; `None` if somebody else has, or has changed the schedule.

    What cannot be inserted must not hold up the slots to come: they are passed by, and the schedule says why.
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
    """Insert an instance now: its id, whether it is new, and its queue."""
    try:
        rows = yield _SQL["trigger_schedule"](name=name, ahead=ahead, reason=reason, actor=actor)
    except StatementError as error:
        if not _is_refusal(error):
            raise
        raise UsageError(
            f"schedule '{name}' cannot be triggered: {error.message}", "mend its spec"
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
    """Make a schedule, or give it another definition. If nothing is new, nothing is written."""
    for _ in range(_TRIES):
        row = yield from _found(new.name, ahead)
        if row["name"] is not None and _is_same(row, new):
            return
        timetable, next_at = _onwards(row, new)
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
    raise _restless(new.name)


def pause(name: str, reason: str | None, actor: str | None) -> Plan[None]:
    """Let its slots pass by."""
    if not (yield _SQL["pause_schedule"](name=name, reason=reason, actor=actor)):
        yield from find(name)


def resume(
    name: str, ahead: timedelta = timedelta(0), *, reason: str | None = None, actor: str | None = None
) -> Plan[None]:
    """Go on with the next slot; those of the pause are gone."""
    for _ in range(_TRIES):
        row = yield from _found(name, ahead)
        if row["name"] is None:
            raise NoScheduleError(name)
        if row["paused_at"] is None:
            return
        next_at = _timetable(row).after(_over(row))
        if (
            yield _SQL["resume_schedule"](
                name=name, revision=row["revision"], next_at=next_at, reason=reason, actor=actor
            )
        ):
            return
    raise _restless(name)


def delete(name: str, *, reason: str | None = None, actor: str | None = None) -> Plan[None]:
    """Forget a schedule."""
    if not (yield _SQL["delete_schedule"](name=name, reason=reason, actor=actor)):
        raise NoScheduleError(name)


def find(name: str) -> Plan[Row]:
    """One schedule, which must be there."""
    row = yield from _found(name, timedelta(0))
    if row["name"] is None:
        raise NoScheduleError(name)
    return row


def all_schedules() -> Plan[Sequence[Row]]:
    """All of them, by name."""
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


def _onwards(row: Row, new: Definition) -> tuple[Timetable, datetime | None]:
    """When the new definition is due: at the same time as before, if it says the same about that."""
    if row["name"] is not None and _when(row) == (new.cron, new.every, new.tz):
        return _timetable(row), row["next_at"]
    timetable = Timetable(new.cron, new.every, new.tz, row["now"])
    return timetable, timetable.after(_over(row))


def _over(row: Row) -> datetime:
    """From when on slots are new: now, but no slot comes again after the clock was set back."""
    now: datetime = row["now"]
    return now if row["last_fire_time"] is None else max(now, row["last_fire_time"])


def _is_same(row: Row, new: Definition) -> bool:
    said = (*_when(row), row["missed"], row["overlap"], msgspec.json.decode(row["spec"]))
    return said == (new.cron, new.every, new.tz, new.missed, new.overlap, msgspec.json.decode(new.spec))


def _when(row: Row) -> tuple[str | None, timedelta | None, str]:
    return row["cron"], row["every"], row["tz"]


def _timetable(row: Row) -> Timetable:
    return Timetable(row["cron"], row["every"], row["tz"], row["anchor_at"])


def _is_refusal(error: StatementError) -> bool:
    """Whether what is to be inserted cannot be, and could not at the next try."""
    return is_data(error) or error.sqlstate.startswith(GEN_DURABLE)


def _restless(name: str) -> Exception:
    return StatementError(SERIALIZATION_FAILURE, f"schedule '{name}' was changed by others again and again")
