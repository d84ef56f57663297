"""`gen-durable schedules ls | show | add | pause | resume | trigger | rm`: recurring inserts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import click
import msgspec
from rich.table import Table

from .. import _verbs
from .._checks import duration_text
from .._db import snapshots
from .._db.plan import Plan
from ..schedules import Missed, Overlap, ScheduleRecord, Triggered
from .connection import DatabaseOptions, database_options
from .failure import Failure
from .groups import ListGroup, action_options
from .json_text import json_option, print_json, print_json_rows, read_json, readable
from .options import duration
from .rows import age_text, clean, print_columns
from .terminal import open_console

__all__ = ["schedules"]

T = TypeVar("T")
_COLUMNS: Final = ("NAME", "MACHINE", "WHEN", "NEXT", "LAST", "FIRED", "NOTE")
_NOW: Final = timedelta(0)

name_argument = click.argument("name")


@click.group(cls=ListGroup)
def schedules() -> None:
    """List and change schedules, which insert instances again and again. Without a command: ls."""


@schedules.command("ls")
@json_option
@database_options()
def list_(db: DatabaseOptions, as_json: bool) -> None:
    """List schedules by name: next and last fire time, and number of inserted instances."""
    now, records = db.run(_listing())
    if as_json:
        print_json_rows(map(_json, records))
        return
    if not records:
        click.echo("no schedules", err=True)
        return
    lines = [_cells(record, now) for record in records]
    if sys.stdout.isatty():
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in _COLUMNS:
            table.add_column(column, overflow="fold")
        for line in lines:
            table.add_row(*line)
        open_console().print(table)
        return
    print_columns([_COLUMNS, *lines])


@schedules.command()
@name_argument
@json_option
@database_options()
def show(db: DatabaseOptions, name: str, as_json: bool) -> None:
    """Show schedule NAME."""
    _print(db.run(_verbs.schedules.get(name)), as_json=as_json)


@schedules.command()
@name_argument
@click.argument("machine")
@click.argument("state", metavar="[STATE-JSON]", default="{}")
@click.option("--cron", metavar="FIELDS", help="Fire times: '0 3 * * *', six fields with seconds, or @daily.")
@click.option("--every", type=duration, metavar="DURATION", help="Interval between fire times: 15m.")
@click.option("--tz", metavar="ZONE", default="UTC", show_default=True, help="Time zone of --cron.")
@click.option(
    "--missed",
    type=click.Choice(["skip", "once", "all"]),
    default="once",
    show_default=True,
    help="Fire times while no worker ran: skip them, fire once, or fire all.",
)
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip"]),
    default="allow",
    show_default=True,
    help="Fire time while an instance of the schedule is live: insert another one, or skip.",
)
@click.option("--step", metavar="NAME", help="First step. Default: the initial step of the machine.")
@click.option("--queue", metavar="NAME", help="Queue. Default: the queue of the machine.")
@click.option(
    "--priority",
    type=click.IntRange(-(2**15), 2**15 - 1),
    metavar="N",
    help="Smaller numbers run earlier. Default: that of the machine, or 0.",
)
@click.option(
    "--correlation-key",
    metavar="KEY",
    help="Business key. While a live instance has it, no other is inserted.",
)
@click.option(
    "--concurrency-key",
    metavar="KEY",
    help="Run one instance with this key at a time, or as many as its limit allows. Default: that of the machine; "
    '"": none.',
)
@click.option(
    "--rate-limit",
    metavar="NAME",
    help='Rate limit of the first step. Default: that of the machine; "": none.',
)
@click.option(
    "--weight",
    type=click.IntRange(1, 2**31 - 1),
    metavar="N",
    help="Tokens of the rate limit that the first step takes. Default: 1.",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(1, 2**31 - 1),
    metavar="N",
    help="Maximum number of attempts at a step.",
)
@click.option(
    "--version",
    type=click.IntRange(1, 2**31 - 1),
    metavar="N",
    help="Version of the machine. Default: at each fire time, the newest that a worker has registered.",
)
@action_options
@json_option
@database_options("max_payload")
def add(
    db: DatabaseOptions,
    name: str,
    machine: str,
    state: str,
    cron: str | None,
    every: timedelta | None,
    tz: str,
    missed: Missed,
    overlap: Overlap,
    reason: str | None,
    actor: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Add schedule NAME, or replace it. Give --cron or --every.

    MACHINE is a machine that a worker has registered. STATE-JSON is the state of its instances. Default: {}. "-" reads
    standard input.
    """
    if (cron is None) == (every is None):
        raise Failure("give either --cron or --every")
    record, _ = db.run(
        _verbs.schedules.put_by_name(
            name,
            machine,
            read_json(state, "the state", db.settings.max_payload),
            {key: value for key, value in options.items() if value is not None},
            cron=cron,
            every=every,
            tz=tz,
            missed=missed,
            overlap=overlap,
            reason=reason,
            actor=actor,
        )
    )
    _print(record, as_json=as_json)


@schedules.command()
@name_argument
@action_options
@json_option
@database_options()
def pause(db: DatabaseOptions, name: str, reason: str | None, actor: str | None, as_json: bool) -> None:
    """Pause schedule NAME: it inserts nothing until it is resumed."""
    record, _ = db.run(_verbs.schedules.pause(name, reason, actor))
    _print(record, as_json=as_json)


@schedules.command()
@name_argument
@action_options
@json_option
@database_options()
def resume(db: DatabaseOptions, name: str, reason: str | None, actor: str | None, as_json: bool) -> None:
    """Resume schedule NAME at its next fire time. Fire times during the pause are skipped."""
    record, _ = db.run(_verbs.schedules.resume(name, _NOW, reason, actor))
    _print(record, as_json=as_json)


@schedules.command()
@name_argument
@action_options
@json_option
@database_options()
def trigger(db: DatabaseOptions, name: str, reason: str | None, actor: str | None, as_json: bool) -> None:
    """Insert an instance of schedule NAME now, even if it is paused. Its fire times stay the same."""
    done: Triggered
    done, _ = db.run(_verbs.schedules.trigger(name, _NOW, reason, actor))
    if as_json:
        print_json({"id": done.id, "inserted": done.is_new})
    else:
        click.echo(f"inserted {done.id}" if done.is_new else f"not inserted: instance {done.id} has this key")


@schedules.command()
@name_argument
@action_options
@json_option
@database_options()
def rm(db: DatabaseOptions, name: str, reason: str | None, actor: str | None, as_json: bool) -> None:
    """Remove schedule NAME. Its instances stay. A worker whose code declares the schedule adds it again at start."""
    db.run(_verbs.schedules.delete(name, reason, actor))
    if as_json:
        print_json({"name": name, "removed": True})
    else:
        click.echo(f"removed schedule {clean(name)}")


def _listing() -> Plan[tuple[datetime, Sequence[ScheduleRecord]]]:
    return (yield from snapshots.now()), (yield from _verbs.schedules.every())


def _json(record: ScheduleRecord) -> dict[str, Any]:
    every = None if record.every is None else duration_text(record.every)
    return {**msgspec.structs.asdict(record), "every": every}


def _when(record: ScheduleRecord) -> str:
    if record.every is not None:
        return f"every {duration_text(record.every)}"
    return f"{record.cron} {record.tz}"


def _upcoming(record: ScheduleRecord, now: datetime) -> str:
    if record.is_paused or record.next_at is None:
        return "-"
    if record.next_at < now:
        return f"{age_text(now - record.next_at)} overdue"
    return f"in {age_text(record.next_at - now)}"


def _cells(record: ScheduleRecord, now: datetime) -> tuple[str, ...]:
    last = f"{age_text(now - record.last_fired_at)} ago" if record.last_fired_at else "-"
    note = "; ".join(filter(None, ["paused" if record.is_paused else "", clean(record.last_error or "")]))
    return (
        clean(record.name),
        clean(record.machine),
        clean(_when(record)),
        _upcoming(record, now),
        last,
        str(record.fired_count),
        note or "-",
    )


def _print(record: ScheduleRecord, *, as_json: bool) -> None:
    if as_json:
        print_json(_json(record))
        return
    facts = {
        "when": _when(record),
        "next": "paused" if record.is_paused else record.next_at,
        "paused": _pause(record),
        "last fire time": record.last_fire_time,
        "last fired": record.last_fired_at,
        "last instance": record.last_id,
        "last error": record.last_error,
        "fired": record.fired_count,
        "missed": record.missed,
        "overlap": record.overlap,
    }
    click.echo(f"{clean(record.name)}: {clean(record.machine)}")
    for label, fact in facts.items():
        if fact is not None:
            text = fact.isoformat(timespec="seconds") if isinstance(fact, datetime) else clean(str(fact))
            click.echo(f"  {label:<14} {text}")
    spec = {"machine" if name == "fsm" else name: value for name, value in record.spec.items()}
    text = readable(msgspec.json.encode(spec).decode()).replace("\n", "\n" + " " * 17)
    click.echo(f"  {'inserts':<14} {text}")


def _pause(record: ScheduleRecord) -> str | None:
    if record.paused_at is None:
        return None
    by = f" by {record.paused_by}" if record.paused_by else ""
    why = f": {record.pause_reason}" if record.pause_reason else ""
    return f"{record.paused_at.isoformat(timespec='seconds')}{by}{why}"
