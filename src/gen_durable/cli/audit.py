"""`gen-durable audit ls | level`: what has happened to an instance, and how much of that is written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TypeVar, get_args

import click
import msgspec

from .. import _verbs
from .._db.plan import Plan
from ..audit import AuditEvent
from ..config import AuditLevel
from ..errors import NoTargetError
from .connection import Place, place_options
from .control import actor_of
from .failure import no_instance
from .json_text import json_option, print_json, print_json_rows
from .options import target
from .rows import by_text, clean

__all__ = ["audit"]

T = TypeVar("T")


@click.group()
def audit() -> None:
    """Look at what has happened to an instance, and say how much of it is written."""


@audit.command("ls")
@click.argument("of", metavar="TARGET", type=target)
@click.option("--limit", type=click.IntRange(1, 10_000), metavar="N", default=1000, show_default=True)
@click.option(
    "--after", type=click.IntRange(min=1), metavar="NUMBER", help="The last of a page begins the next."
)
@json_option
@place_options()
def list_events(place: Place, of: int | str, limit: int, after: int | None, as_json: bool) -> None:
    """List the audit events of an instance, oldest first. TARGET is an id or a correlation key."""
    try:
        events = asyncio.run(_run(place, _verbs.audit(of, after, limit)))
    except NoTargetError:
        raise no_instance(of) from None
    if as_json:
        print_json_rows(msgspec.structs.asdict(event) for event in events)
        return
    for event in events:
        click.echo("  ".join(_cells(event)))
    if not events:
        click.echo("nothing is known of it", err=True)


@audit.command()
@click.argument("level", required=False, type=click.Choice(get_args(AuditLevel)))
@click.option("--actor", metavar="NAME", help="Who changes it. Default: the user of this process.")
@json_option
@place_options()
def level(place: Place, level: AuditLevel | None, actor: str | None, as_json: bool) -> None:
    """Show which events are written, or write those of another LEVEL from now on, in every process.

    failures: what went wrong, and what people did. all: everything. off: nothing.
    """
    if level is None:
        level = asyncio.run(_run(place, _verbs.audit_level()))
    else:
        asyncio.run(_run(place, _verbs.set_audit(level, actor_of(actor))))
    if as_json:
        print_json({"level": level})
    else:
        click.echo(level)


async def _run(place: Place, plan: Plan[T]) -> T:
    async with place.open() as database:
        return await database.run(plan)


def _cells(event: AuditEvent) -> Iterator[str]:
    yield f"{event.at.astimezone():%Y-%m-%d %H:%M:%S}"
    yield event.event
    if event.actor is not None:
        yield by_text(event.actor, event.login)
    if event.reason is not None:
        yield clean(event.reason)
    for name, value in event.data.items():
        yield f"{name}={clean(str(value))}"
