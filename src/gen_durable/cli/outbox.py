"""`gen-durable outbox ls | replay`: what has been emitted, and how far it has come."""

from __future__ import annotations

import asyncio
import sys
from typing import Final, get_args

import click
import msgspec
from rich.console import Console
from rich.table import Table

from .. import _verbs
from ..events import EventRecord, EventState
from .connection import Place, place_options
from .failure import Failure
from .json_text import json_option, print_json, print_json_rows
from .options import target
from .rows import clean

__all__ = ["outbox"]

_COLUMNS: Final = ("NUMBER", "EVENT", "TYPE", "SINK", "STATE", "TRIES", "SUBJECT", "NOTE")
_STYLES: Final = {"pending": "blue", "published": "green", "dead": "red"}
_state_option = click.option(
    "--state", type=click.Choice(get_args(EventState)), help="Only those that are in this state."
)
_sink_option = click.option("--sink", metavar="NAME", help="Only those for this sink.")


@click.group()
def outbox() -> None:
    """Look at emitted events, and publish some of them again."""


@outbox.command("ls")
@click.option("--instance", type=target, metavar="ID|KEY", help="Only those of this instance.")
@_sink_option
@_state_option
@click.option("--limit", type=click.IntRange(1, 10_000), metavar="N", default=50, show_default=True)
@click.option(
    "--before", type=click.IntRange(min=1), metavar="NUMBER", help="The last of a page begins the next."
)
@json_option
@place_options()
def list_events(
    place: Place,
    instance: int | str | None,
    sink: str | None,
    state: EventState | None,
    limit: int,
    before: int | None,
    as_json: bool,
) -> None:
    """List events, the newest first."""
    events = asyncio.run(_events(place, instance, sink, state, before, limit))
    if as_json:
        print_json_rows(msgspec.structs.asdict(event) for event in events)
    elif not events:
        click.echo("no event matches", err=True)
    else:
        _print(events)


@outbox.command()
@click.argument("numbers", metavar="[NUMBER]...", nargs=-1, type=click.IntRange(min=1))
@click.option("--dead", is_flag=True, help="All that were given up.")
@_sink_option
@click.option("--yes", is_flag=True, help="With --dead: do not ask.")
@json_option
@place_options()
def replay(
    place: Place, numbers: tuple[int, ...], dead: bool, sink: str | None, yes: bool, as_json: bool
) -> None:
    """Publish events again that were published or given up, under the same ids.

    Events are named by their number, as `outbox ls` shows it; or all that were given up are meant.
    """
    if bool(numbers) == dead:
        raise Failure("which events? give their numbers, or --dead")
    if dead and not yes and not as_json:
        if not sys.stdin.isatty():
            raise Failure("this may publish many events again; say --yes")
        click.confirm("publish all events again that were given up?", abort=True)
    count = asyncio.run(_replay(place, numbers, sink))
    if as_json:
        print_json({"replayed": count})
    else:
        click.echo(f"{count} will be published again")


async def _events(
    place: Place,
    instance: int | str | None,
    sink: str | None,
    state: EventState | None,
    before: int | None,
    limit: int,
) -> list[EventRecord]:
    async with place.open() as database:
        return await database.run(_verbs.events(instance, sink, state, before, limit))


async def _replay(place: Place, numbers: tuple[int, ...], sink: str | None) -> int:
    async with place.open() as database:
        if numbers:
            return await database.run(_verbs.replay(numbers))
        count = 0
        while dead := await database.run(_verbs.events(None, sink, "dead", None, 1000)):
            count += await database.run(_verbs.replay(dead))
        return count


def _print(events: list[EventRecord]) -> None:
    cells: list[tuple[str, ...]] = [
        (
            str(event.number),
            event.id,
            clean(event.type),
            clean(event.sink),
            event.state,
            str(event.attempts),
            clean(event.subject),
            clean(event.last_error or "-"),
        )
        for event in events
    ]
    if sys.stdout.isatty():
        table = Table(*_COLUMNS, box=None, pad_edge=False, header_style="bold")
        for line in cells:
            table.add_row(*line, style=_STYLES[line[4]])
        Console().print(table)
        return
    widths = [max(len(line[place]) for line in (_COLUMNS, *cells)) for place in range(len(_COLUMNS))]
    for line in (_COLUMNS, *cells):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
