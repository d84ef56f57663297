"""`Schedule`: inserting instances at recurring times."""

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
"""What to do with fire times that passed while no worker ran."""
Overlap: TypeAlias = Literal["allow", "skip"]
"""What to do at a fire time while an instance of the schedule is live."""

_TIME_OPTIONS: Final = ("eligible_at", "schedule_at", "schedule_in")


class Schedule:
    """Insert an instance at recurring times.

        nightly = Schedule("nightly", Spec(Report, Scope("all")), cron="0 3 * * *", tz="Europe/Vienna")
        Worker([Report], schedules=[nightly])

    Workers store it in the database when they start; `client.put_schedule(nightly)` does the same. Any number of
    workers may run: each fire time inserts one instance. The instance finds its fire time in `ctx.fire_time`.
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
        """Declare a schedule; give either `cron` or `every`.

        Args:
            name: the name in the database.
            spec: what to insert at each fire time.
            cron: five fields, six with leading seconds, or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`.
            every: a fixed interval instead of cron, at least 1 s; independent of time zones.
            tz: the time zone of `cron`.
            missed: fire times that passed while no worker ran: `"skip"` drops those older than a minute, `"once"`
                inserts one instance for the latest, `"all"` inserts one for each of the latest 1000.
            overlap: `"skip"` inserts nothing while an instance of this schedule is live.

        Raises:
            UsageError: an argument is invalid.
        """
        self.name = checked_name(name, "the name of a schedule")
        if not isinstance(spec, AnySpec):
            raise UsageError(
                f"schedule '{name}' got a {type(spec).__name__}", "give a Spec: Spec(Machine, state)"
            )
        if given := [option for option in _TIME_OPTIONS if option in spec.options]:
            raise UsageError(
                f"the spec of schedule '{name}' has {given[0]}", "leave it out: the schedule sets the time"
            )
        if isinstance(spec.options.get("unique_key"), bytes):
            raise UsageError(f"the unique_key of schedule '{name}' is of type bytes", "give a str")
        if (cron is None) == (every is None):
            raise UsageError(
                f"schedule '{name}' has {'both cron and' if cron else 'neither cron nor'} every",
                "give one of them",
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
    """A stored schedule with its progress, as `client.schedules` returns it."""

    name: str
    machine: str
    spec: Mapping[str, Any]
    """What is inserted, state included, with the field names of the SQL function `insert_all`."""
    cron: str | None
    every: timedelta | None
    tz: str
    missed: Missed
    overlap: Overlap
    next_at: datetime | None
    """The next fire time. Computed anew when a paused schedule is resumed."""
    last_fire_time: datetime | None
    """The last fire time that has passed, fired or skipped."""
    last_fired_at: datetime | None
    last_id: int | None
    """The instance that was inserted last, at a fire time or by `trigger_schedule`."""
    fired_count: int
    last_error: str | None
    """Why nothing was inserted at the last fire time."""
    paused_at: datetime | None
    pause_reason: str | None
    paused_by: str | None
    inserted_at: datetime
    updated_at: datetime

    @property
    def is_paused(self) -> bool:
        """Whether the schedule is paused."""
        return self.paused_at is not None


class Triggered(msgspec.Struct, frozen=True):
    """The answer of `trigger_schedule`."""

    id: int
    is_new: bool
    """Whether it was inserted; otherwise `id` is the instance that has the key of the spec."""


def check_policies(missed: object, overlap: object) -> None:
    """Check the options `missed` and `overlap`."""
    if missed not in get_args(Missed):
        raise UsageError(f"missed is {missed!r}", "give 'skip', 'once' or 'all'")
    if overlap not in get_args(Overlap):
        raise UsageError(f"overlap is {overlap!r}", "give 'allow' or 'skip'")
    if missed == "all" and overlap == "skip":
        raise UsageError(
            "missed is 'all' and overlap is 'skip'",
            "give missed='once' or overlap='allow'; missed instances start together, so only the first would run",
        )
