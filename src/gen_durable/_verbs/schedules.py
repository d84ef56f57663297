"""The operations on schedules of both clients and of the command line, as plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from .._checks import checked_name
from .._core.new_rows import new_instance
from .._db import schedules
from .._db.insert_by_name import NamedInsert
from .._db.plan import Plan, Row
from .._timetable import checked_cron, checked_interval, checked_zone
from ..config import Settings
from ..definition import definition_of
from ..errors import UsageError
from ..schedules import Missed, Overlap, Schedule, ScheduleRecord, Triggered, check_policies
from .common import checked_actor, checked_reason
from .named_inserts import check_registered

__all__ = [
    "definitions",
    "delete",
    "every",
    "get",
    "pause",
    "put",
    "put_by_name",
    "put_definition",
    "record_of",
    "resume",
    "trigger",
]

_NOW: Final = timedelta(0)


def definitions(declared: Iterable[Schedule], settings: Settings) -> list[schedules.Definition]:
    """Convert declared schedules to stored definitions. Raises UsageError if a name is used twice."""
    found: dict[str, schedules.Definition] = {}
    for schedule in declared:
        definition = _definition(schedule, settings)
        if definition.name in found:
            raise UsageError(f"two schedules have the name '{definition.name}'", "rename one of them")
        found[definition.name] = definition
    return list(found.values())


def put(
    schedule: Schedule, settings: Settings, ahead: timedelta, reason: str | None, actor: str | None
) -> Plan[tuple[ScheduleRecord, set[str]]]:
    """Store a schedule."""
    return (yield from put_definition(_definition(schedule, settings), ahead, reason, actor))


def put_definition(
    definition: schedules.Definition, ahead: timedelta, reason: str | None, actor: str | None
) -> Plan[tuple[ScheduleRecord, set[str]]]:
    """Store the definition of a schedule."""
    yield from schedules.put(definition, ahead, **_why(reason, actor))
    return (yield from get(definition.name)), set()


def put_by_name(
    name: str,
    machine: str,
    state: str,
    options: Mapping[str, Any],
    *,
    cron: str | None,
    every: timedelta | None,
    tz: str,
    missed: Missed,
    overlap: Overlap,
    reason: str | None,
    actor: str | None,
) -> Plan[tuple[ScheduleRecord, set[str]]]:
    """Store a schedule of a machine that a worker has registered. `options` are those of an insert, without `None`.

    An empty concurrency key or rate limit means none, also if the machine has a default.
    """
    checked_name(machine, "the machine")
    if (cron is None) == (every is None):
        raise UsageError(f"schedule '{name}' needs one of cron and every", "give one of them")
    check_policies(missed, overlap)
    emptied = {key: None for key in ("concurrency_key", "rate_limit") if options.get(key) == ""}
    definition = schedules.Definition(
        name=_checked(name),
        cron=None if cron is None else checked_cron(cron, tz),
        every=None if every is None else checked_interval(every),
        tz=checked_zone(tz),
        missed=missed,
        overlap=overlap,
        spec=msgspec.json.encode(
            {"fsm": machine, "state": msgspec.Raw(state.encode()), **options, **emptied}
        ).decode(),
    )
    keys = {key: options.get(key) for key in ("concurrency_key", "rate_limit")}
    yield from check_registered(NamedInsert(fsm=machine, state=state, version=options.get("version"), **keys))
    return (yield from put_definition(definition, _NOW, reason, actor))


def get(name: str) -> Plan[ScheduleRecord]:
    """Return one schedule."""
    return record_of((yield from schedules.find(_checked(name))))


def every() -> Plan[Sequence[ScheduleRecord]]:
    """Return all schedules."""
    return [record_of(row) for row in (yield from schedules.all_schedules())]


def pause(name: str, reason: str | None, actor: str | None) -> Plan[tuple[ScheduleRecord, set[str]]]:
    """Pause a schedule."""
    yield from schedules.pause(_checked(name), **_why(reason, actor))
    return (yield from get(name)), set()


def resume(
    name: str, ahead: timedelta, reason: str | None, actor: str | None
) -> Plan[tuple[ScheduleRecord, set[str]]]:
    """Resume a schedule."""
    yield from schedules.resume(_checked(name), ahead, **_why(reason, actor))
    return (yield from get(name)), set()


def trigger(
    name: str, ahead: timedelta, reason: str | None, actor: str | None
) -> Plan[tuple[Triggered, set[str]]]:
    """Insert an instance of a schedule now."""
    id, is_new, queue = yield from schedules.trigger(_checked(name), ahead, **_why(reason, actor))
    return Triggered(id, is_new), {queue} if is_new else set()


def delete(name: str, reason: str | None, actor: str | None) -> Plan[tuple[None, set[str]]]:
    """Delete a schedule."""
    yield from schedules.delete(_checked(name), **_why(reason, actor))
    return None, set()


def record_of(row: Row) -> ScheduleRecord:
    """Build a record from a row."""
    spec = msgspec.json.decode(row["spec"])
    return ScheduleRecord(
        name=row["name"],
        machine=spec["fsm"],
        spec=spec,
        cron=row["cron"],
        every=row["every"],
        tz=row["tz"],
        missed=row["missed"],
        overlap=row["overlap"],
        next_at=row["next_at"],
        last_fire_time=row["last_fire_time"],
        last_fired_at=row["last_fired_at"],
        last_id=row["last_id"],
        fired_count=row["fired_count"],
        last_error=row["last_error"],
        paused_at=row["paused_at"],
        pause_reason=row["pause_reason"],
        paused_by=row["paused_by"],
        inserted_at=row["inserted_at"],
        updated_at=row["updated_at"],
    )


def _why(reason: str | None, actor: str | None) -> dict[str, str | None]:
    return {"reason": checked_reason(reason), "actor": checked_actor(actor)}


def _checked(name: str) -> str:
    return checked_name(name, "the name of a schedule")


def _definition(schedule: Schedule, settings: Settings) -> schedules.Definition:
    if not isinstance(schedule, Schedule):
        raise UsageError(
            f"a value of type {type(schedule).__name__} is not a schedule",
            "use Schedule(name, Spec(…), cron=…)",
        )
    return schedules.Definition(
        name=schedule.name,
        cron=schedule.cron,
        every=schedule.every,
        tz=schedule.tz,
        missed=schedule.missed,
        overlap=schedule.overlap,
        spec=_spec(schedule, settings),
    )


def _spec(schedule: Schedule, settings: Settings) -> str:
    """Encode the spec of a schedule as an element of the SQL function `insert_all`."""
    new = new_instance(schedule.spec, settings.max_payload)
    values = schedule.spec.values
    element: dict[str, Any] = {
        "fsm": new.fsm,
        "version": new.version,
        "step": new.step,
        "state": msgspec.Raw(new.state.encode()),
        "queue": new.queue,
        "priority": new.priority,
        "concurrency_key": new.concurrency_key,
        "correlation_key": new.correlation_key,
        "unique_key": None if new.unique_key is None else new.unique_key.decode(),
        "max_attempts": new.max_attempts,
        "rate_limit": new.rate_limit,
        "weight": new.weight,
    }
    if new.correlation_key is not None:
        element["correlation_scope"] = values.correlation_scope
    if new.unique_key is not None:
        element["unique_scope"] = values.unique_scope
    defaults = definition_of(schedule.spec.definition).defaults
    # None is stored where the machine has a default, which would apply otherwise.
    kept = {name for name in ("concurrency_key", "rate_limit") if getattr(defaults, name) is not None}
    given = {name: value for name, value in element.items() if value is not None or name in kept}
    return msgspec.json.encode(given).decode()
