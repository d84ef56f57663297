"""Mutants of schedules."""

from __future__ import annotations

from tests.interleavings.mutants import Mutant
from tests.interleavings.product import SCHEMA, Change
from tests.interleavings.scenarios import schedules

_SEEN = (
    "s.name = fire_schedule.name and s.revision = fire_schedule.revision\n     for no key update skip locked"
)
_NEW_REVISION = "revision = default, "

MUTANTS = [
    Mutant(
        name="a firing does not check the revision",
        scenario=schedules.cron_and_cron(),
        reason="a fire time did not fire exactly once",
        changes=[Change(SCHEMA, _SEEN, "s.name = fire_schedule.name for no key update skip locked")],
    ),
    Mutant(
        name="a firing makes no new revision",
        scenario=schedules.cron_and_cron(),
        reason="a fire time did not fire exactly once",
        changes=[Change(SCHEMA, "set revision = default, next_at", "set next_at")],
    ),
    Mutant(
        name="a firing waits for its schedule",
        scenario=schedules.cron_and_cron(),
        reason="waited for a lock",
        changes=[Change(SCHEMA, _SEEN, _SEEN.removesuffix(" skip locked"))],
    ),
    Mutant(
        name="a pause makes no new revision",
        scenario=schedules.cron_and_pause(),
        reason="fired after it was paused",
        changes=[Change("pause_schedule", _NEW_REVISION, "")],
    ),
    Mutant(
        name="an update makes no new revision",
        scenario=schedules.cron_and_update(),
        reason="fired a time that was no longer due",
        changes=[Change("put_schedule", _NEW_REVISION, "")],
    ),
    Mutant(
        name="a firing ignores an updated definition",
        scenario=schedules.cron_and_update(),
        reason="fired a time that was no longer due",
        changes=[Change(SCHEMA, _SEEN, "s.name = fire_schedule.name for no key update skip locked")],
    ),
    Mutant(
        name="an update does not check the revision again",
        scenario=schedules.update_and_resume(),
        reason="the next fire time is not of this definition",
        changes=[
            Change("put_schedule", _NEW_REVISION, ""),
        ],
    ),
]
