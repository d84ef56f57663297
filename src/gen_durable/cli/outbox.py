"""`gen-durable outbox ls | replay`: emitted events and their delivery."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Final, get_args

import click
import msgspec
from rich.console import Console
from rich.table import Table

from .. import _verbs
from .._db.plan import Plan
from ..events import EventRecord, EventState
from .connection import DatabaseOptions, database_options
from .failure import Failure
from .groups import ListGroup, action_options
from .json_text import json_option, print_json, print_json_rows
from .options import target
from .rows import age_text, clean

__all__ = ["outbox"]

_COLUMNS: Final = ("NUMBER", "EVENT", "TYPE", "SINK", "STATE", "FAILURES", "AGE", "SUBJECT", "NOTE")
_STYLES: Final = {"pending": "blue", "published": "green", "dead": "red"}
_state_option = click.option(
    "--state", type=click.Choice(get_args(EventState)), help="Only events in this state."
)
_sink_option = click.option("--sink", metavar="NAME", help="Only events for this sink.")


@click.group(cls=ListGroup)
def outbox() -> None:
    """List emitted events, and publish events again. Without a command: ls."""


@outbox.command("ls")
@click.option(
    "--instance",
    type=target,
    metavar="TARGET",
    help="Only events of this instance: an id or a correlation key.",
)
@_sink_option
@_state_option
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=50,
    show_default=True,
    help="Maximum number of events.",
)
@click.option(
    "--before",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Only events before this one. For the next page: the last number of this page.",
)
@json_option
@database_options("retention_pending")
def list_events(
    db: DatabaseOptions,
    instance: int | str | None,
    sink: str | None,
    state: EventState | None,
    limit: int,
    before: int | None,
    as_json: bool,
) -> None:
    """List events, newest first.

    A pending event is retried until it expires, --retention-pending after its commit. Give the value of the workers.
    """
    events = db.run(_verbs.events(instance, sink, state, before, limit))
    retention = db.settings.retention_pending
    if as_json:
        print_json_rows(
            {**msgspec.structs.asdict(event), "expires_at": _expires_at(event, retention)} for event in events
        )
    elif not events:
        click.echo("no matching events", err=True)
    else:
        _print(events, retention)


@outbox.command()
@click.argument("numbers", metavar="[NUMBER]...", nargs=-1, type=click.IntRange(min=1))
@click.option("--dead", is_flag=True, help="All dead letters, with --sink those of one sink.")
@_sink_option
@click.option("--yes", is_flag=True, help="With --dead: do not ask for confirmation.")
@action_options
@json_option
@database_options()
def replay(
    db: DatabaseOptions,
    numbers: tuple[int, ...],
    dead: bool,
    sink: str | None,
    yes: bool,
    reason: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Publish events again, under the same ids: published events or dead letters.

    NUMBER is the number of an event in `outbox ls`.

    Exit code 1: the confirmation was declined.
    """
    if bool(numbers) == dead:
        raise Failure("give either event numbers or --dead")
    if dead and not yes and not as_json:
        if not sys.stdin.isatty():
            raise Failure("--dead needs a confirmation. Add --yes.")
        click.confirm("Publish all dead letters again?", abort=True)
    count = db.run(_replay(numbers, sink, reason, actor))
    if as_json:
        print_json({"replayed": count})
    else:
        click.echo(f"{count} event{'s' * (count != 1)} will be published again")


def _replay(numbers: tuple[int, ...], sink: str | None, reason: str | None, actor: str | None) -> Plan[int]:
    if numbers:
        return (yield from _verbs.replay(numbers, reason, actor))
    count = 0
    while dead := (yield from _verbs.events(None, sink, "dead", None, 1000)):
        count += yield from _verbs.replay(dead, reason, actor)
    return count


def _expires_at(event: EventRecord, retention: timedelta) -> datetime | None:
    return event.created_at + retention if event.state == "pending" else None


def _failing(events: list[EventRecord]) -> dict[tuple[int, str], EventRecord]:
    """Return the oldest failed event of each instance and sink; later events wait for it."""
    newest_first = [event for event in events if event.state == "pending" and event.attempts]
    return {(event.instance_id, event.sink): event for event in newest_first}


def _note(event: EventRecord, failing: EventRecord | None, retention: timedelta, now: datetime) -> str:
    """Describe the next attempt and expiry of an event, and its last error."""
    notes = []
    if event.state == "pending":
        if failing is not None and failing.number < event.number:
            notes.append(f"waiting for {failing.id}")
        elif event.next_at is not None and event.next_at > now:
            notes.append(f"next attempt in {age_text(event.next_at - now)}")
        notes.append(f"expires in {age_text(event.created_at + retention - now)}")
    return "; ".join([*notes, *filter(None, [clean(event.last_error or "")])]) or "-"


def _print(events: list[EventRecord], retention: timedelta) -> None:
    now = datetime.now(UTC)
    failing = _failing(events)
    cells: list[tuple[str, ...]] = [
        (
            str(event.number),
            event.id,
            clean(event.type),
            clean(event.sink),
            event.state,
            str(event.attempts),
            age_text(now - event.created_at),
            clean(event.subject),
            _note(event, failing.get((event.instance_id, event.sink)), retention, now),
        )
        for event in events
    ]
    if sys.stdout.isatty():
        table = Table(*_COLUMNS, box=None, pad_edge=False, header_style="bold")
        for line in cells:
            table.add_row(*line, style=_STYLES[line[4]])
        Console().print(table)
        return
    widths = [max(len(line[db]) for line in (_COLUMNS, *cells)) for db in range(len(_COLUMNS))]
    for line in (_COLUMNS, *cells):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
