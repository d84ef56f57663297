"""Recurring work: what to insert, and when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from ._checks import checked_name
from ._timetable import checked_cron, checked_interval, checked_zone
from .errors import UsageError
from .refs import AnySpec

__all__ = ["Missed", "Overlap", "Schedule", "ScheduleRecord", "Triggered", "check_policies"]

Missed: TypeAlias = Literal["skip", "once", "all"]
"""What becomes of slots that came while nobody was there to fire them."""
Overlap: TypeAlias = Literal["allow", "skip"]
"""What becomes of a slot that comes while an instance of the schedule is live."""

_NOT_HERE: Final = ("eligible_at", "schedule_at", "schedule_in")


class Schedule:
    """A declaration: `Schedule("nightly", Spec(Report, Scope("all")), cron="0 3 * * *", tz="Europe/Vienna")`.

    Give it to workers (`Worker(…, schedules=[…])`), or to `client.put_schedule`.
    """

    __slots__ = ("cron", "every", "missed", "name", "overlap", "spec", "tz")
    name: str
    spec: AnySpec
    cron: str | None
    every: timedelta | None
    tz: str
    missed: Missed
    overlap: Overlap

    def __init__(
        self,
        name: str,
        spec: AnySpec,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        tz: str = "UTC",
        missed: Missed = "once",
        overlap: Overlap = "allow",
    ) -> None:
        """Say what to insert, and when.

        Args:
            name: by which it is known in the database.
            spec: what to insert at each slot; the step finds the slot in `ctx.fire_time`.
            cron: five fields, six with seconds before them, or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`.
            every: instead of cron, so long from slot to slot, whatever clocks on the wall do.
            tz: the time zone in which cron is read.
            missed: slots that came while no worker ran are skipped (after a minute), made up for once, or made up
                for each, but the latest thousand at most.
            overlap: `skip` passes a slot by while an instance of this schedule is live.
        """
        self.name = checked_name(name, "the name of a schedule")
        if not isinstance(spec, AnySpec):
            raise UsageError(
                f"schedule '{name}' got a {type(spec).__name__}", "give what to insert: Spec(Machine, state)"
            )
        if given := [option for option in _NOT_HERE if option in spec.options]:
            raise UsageError(
                f"the spec of schedule '{name}' has {given[0]}", "the slot says when: leave it out"
            )
        if isinstance(spec.options.get("unique_key"), bytes):
            raise UsageError(f"the unique_key of schedule '{name}' is of bytes", "give a str")
        if (cron is None) == (every is None):
            raise UsageError(
                f"schedule '{name}' has {'both cron and' if cron else 'neither cron nor'} every", "give one"
            )
        self.spec = spec
        self.tz = checked_zone(tz)
        self.cron = None if cron is None else checked_cron(cron, tz)
        self.every = None if every is None else checked_interval(every)
        check_policies(missed, overlap)
        self.missed = missed
        self.overlap = overlap

    def __repr__(self) -> str:
        when = f"cron={self.cron!r}, tz={self.tz!r}" if self.cron else f"every={self.every!r}"
        return f"Schedule({self.name!r}, {self.spec!r}, {when})"


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is stored, and how it goes."""

    name: str
    machine: str
    spec: Mapping[str, Any]
    """What is inserted, under the names of the SQL function `insert_all`; state and all."""
    cron: str | None
    every: timedelta | None
    tz: str
    missed: Missed
    overlap: Overlap
    next_at: datetime | None
    """The next slot. It is kept while the schedule is paused, and found anew when it goes on."""
    last_fire_time: datetime | None
    """The last slot that is over, fired or passed by."""
    last_fired_at: datetime | None
    last_id: int | None
    """The instance that was inserted last, by a slot or a trigger."""
    fired_count: int
    last_error: str | None
    """Why the last slot came to nothing."""
    paused_at: datetime | None
    pause_reason: str | None
    paused_by: str | None
    inserted_at: datetime
    updated_at: datetime

    @property
    def is_paused(self) -> bool:
        """Whether its slots pass by."""
        return self.paused_at is not None


class Triggered(msgspec.Struct, frozen=True):
    """What a trigger has inserted."""

    id: int
    is_new: bool
    """Else an instance had a key of its spec, and this is that one."""


def check_policies(missed: object, overlap: object) -> None:
    """Check what is to become of slots that cannot be fired in time."""
    if missed not in get_args(Missed):
        raise UsageError(f"missed is {missed!r}", "give 'skip', 'once' or 'all'")
    if overlap not in get_args(Overlap):
        raise UsageError(f"overlap is {overlap!r}", "give 'allow' or 'skip'")
    if missed == "all" and overlap == "skip":
        raise UsageError(
            "missed is 'all' and overlap is 'skip'",
            "what is made up for starts at once, so only the first would run: give missed='once', or allow overlap",
        )
