"""`gen-durable limits ls | set | rm`: how many executions at once, and how many starts in a time."""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeVar, get_args

import click

from .. import _verbs
from .._checks import duration_text
from .._db.plan import Plan
from ..limits import ConcurrencyLimit, Limit, LimitKind, parse_limit
from .connection import Place, place_options
from .failure import Failure
from .groups import ListGroup, action_options
from .json_text import json_option, print_json_rows
from .rows import clean, print_columns

__all__ = ["limit", "limits"]

T = TypeVar("T")
_COLUMNS: Final = ("NAME", "KIND", "LIMIT")


def limit(text: str) -> Limit:
    """`tenant=3`: slots of a key; `crm=100/1m` or `crm=100/1m/200`: starts per period, and at one moment."""
    try:
        return parse_limit(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.group(cls=ListGroup)
def limits() -> None:
    """Show and change limits. A change counts at once, for all workers."""


@limits.command("ls")
@json_option
@place_options()
def list_limits(place: Place, as_json: bool) -> None:
    """List the limits that are set. A concurrency key without one has a single slot."""
    found = asyncio.run(_run(place, _verbs.limits()))
    if as_json:
        print_json_rows(_json(one) for one in found)
        return
    if found:
        print_columns([_COLUMNS, *map(_cells, found)])
    else:
        click.echo("no limit is set", err=True)


@limits.command("set")
@click.argument("new", metavar="LIMIT...", nargs=-1, required=True, type=limit)
@action_options
@place_options()
def set_limits(place: Place, new: tuple[Limit, ...], reason: str | None, actor: str | None) -> None:
    """Set limits: tenant=3 (slots of each key), crm=100/1m (starts per minute), crm=100/1m/200 (200 at once)."""
    for one in new:
        asyncio.run(_run(place, _verbs.set_limit(one, reason, actor)))
        click.echo("  ".join(_cells(one)))


@limits.command("rm")
@click.argument("name")
@click.option(
    "--kind", type=click.Choice(get_args(LimitKind)), help="Only this one, if the name has both kinds."
)
@action_options
@place_options()
def remove_limit(
    place: Place, name: str, kind: LimitKind | None, reason: str | None, actor: str | None
) -> None:
    """Remove the limit of a name. Keys go back to one slot; rows with a rate limit that is gone wait, and say so."""
    if not asyncio.run(_run(place, _verbs.remove_limit(name, kind, reason, actor))):
        raise Failure(f"there is no limit '{name}'")
    click.echo(f"{name} is gone")


async def _run(place: Place, plan: Plan[T]) -> T:
    async with place.open() as database:
        return await database.run_in_transaction(plan)


def _cells(one: Limit) -> tuple[str, ...]:
    if isinstance(one, ConcurrencyLimit):
        return clean(one.name), one.kind, f"{one.slots} at once"
    return clean(one.name), one.kind, f"{one.allowed} per {duration_text(one.per)}, {one.burst} at one moment"


def _json(one: Limit) -> dict[str, Any]:
    if isinstance(one, ConcurrencyLimit):
        return {"name": one.name, "kind": one.kind, "slots": one.slots}
    return {
        "name": one.name,
        "kind": one.kind,
        "allowed": one.allowed,
        "per_seconds": one.per.total_seconds(),
        "burst": one.burst,
    }
