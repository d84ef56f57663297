"""`gen-durable outbox ls | tail | replay`: emitted events and their delivery."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Final, get_args

import click
import msgspec
from rich.table import Table

from .. import _verbs
from .._db.outbox import newest
from .._db.pool import Database
from .._polling import poll
from .._runtime.follow import follow
from ..batches import Batch
from ..events import EventRecord, EventState
from .batches import exit_code, run_to_end
from .connection import DatabaseOptions, database_options
from .failure import Failure
from .groups import ListGroup, action_options
from .json_text import json_option, print_json, print_json_rows
from .options import target
from .rows import age_text, clean
from .stream import interruptible, json_lines_option, print_json_line
from .terminal import open_console

__all__ = ["outbox"]

_COLUMNS: Final = ("NUMBER", "EVENT", "TYPE", "SINK", "STATE", "FAILURES", "AGE", "SUBJECT", "NOTE")
_STYLES: Final = {"pending": "blue", "published": "green", "dead": "red"}
_state_option = click.option(
    "--state", type=click.Choice(get_args(EventState)), help="Only events in this state."
)
_instance_option = click.option(
    "--instance",
    type=target,
    metavar="TARGET",
    help="Only events of this instance: an id or a correlation key.",
)
_sink_option = click.option("--sink", metavar="NAME", help="Only events for this sink.")


@click.group(cls=ListGroup)
def outbox() -> None:
    """List emitted events, and publish events again. Without a command: ls."""


@outbox.command("ls")
@_instance_option
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
@_instance_option
@_sink_option
@click.option(
    "--after",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="Only events after this one; 0: from the oldest. Default: only new events.",
)
@click.option(
    "--follow/--no-follow", "follows", default=True, show_default=True, help="Wait for further events."
)
@json_lines_option
@database_options()
def tail(
    db: DatabaseOptions,
    instance: int | str | None,
    sink: str | None,
    after: int | None,
    follows: bool,
    as_json: bool,
) -> None:
    """Print events in the order of their numbers, oldest first, as they are committed.

    No event is left out, although events commit in another order: a transaction that stays open delays the events after
    it. Whether an event is published makes no difference.
    """
    with interruptible():
        asyncio.run(_tail(db, instance, sink, after, follows=follows, as_json=as_json))


async def _tail(
    db: DatabaseOptions,
    instance: int | str | None,
    sink: str | None,
    after: int | None,
    *,
    follows: bool,
    as_json: bool,
) -> None:
    async with db.open() as database:
        if after is None:
            found = await database.run(newest(0))
            after = 0 if found is None else found[0]
        events = (
            follow(database.run, _verbs.EventFollow(instance, sink, after))
            if follows
            else _existing(database, instance, sink, after)
        )
        async for event in events:
            if as_json:
                print_json_line(event)
            else:
                click.echo(_line(event))


async def _existing(
    database: Database, instance: int | str | None, sink: str | None, after: int
) -> AsyncIterator[EventRecord]:
    last: EventRecord | int = after
    while True:
        page = _verbs.events_after(instance, sink, None, None, last, 1000)
        events = await poll(lambda page=page: database.run(page.plan()))  # type: ignore[misc]  # bound per page
        for event in events:
            yield event
        if not events:
            return
        last = events[-1]


def _line(event: EventRecord) -> str:
    words = (event.id, event.type, event.sink, event.subject, msgspec.json.encode(event.data).decode())
    return "  ".join((str(event.number), *map(clean, words)))


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

    Dead letters are published again by a batch; see `batches`. Ctrl-C stops it.

    Exit code 1: the confirmation was declined, or the batch was stopped.
    """
    if bool(numbers) == dead:
        raise Failure("give either event numbers or --dead")
    if dead and not yes and not as_json:
        if not sys.stdin.isatty():
            raise Failure("--dead needs a confirmation. Add --yes.")
        click.confirm("Publish all dead letters again?", abort=True)
    if dead:
        batch = asyncio.run(_replay_dead(db, sink, reason, actor))
        _print_replayed(batch.done, as_json=as_json, batch=batch.id, status=batch.status)
        raise SystemExit(exit_code(batch))
    _print_replayed(db.run(_verbs.replay(numbers, reason, actor)), as_json=as_json)


async def _replay_dead(db: DatabaseOptions, sink: str | None, reason: str | None, actor: str | None) -> Batch:
    async with db.open() as database:
        started = await database.run(_verbs.start_replay(sink, reason, actor))
        return await run_to_end(database, started, actor=actor)


def _print_replayed(count: int, *, as_json: bool, **of_batch: int | str) -> None:
    if as_json:
        print_json({"replayed": count, **of_batch})
    else:
        click.echo(f"{count} event{'s' * (count != 1)} will be published again")


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
        open_console().print(table)
        return
    widths = [max(len(line[db]) for line in (_COLUMNS, *cells)) for db in range(len(_COLUMNS))]
    for line in (_COLUMNS, *cells):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
