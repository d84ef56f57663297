"""`gen-durable limits ls | set | rm`: concurrency limits and rate limits."""

from __future__ import annotations

from typing import Any, Final, TypeVar, get_args

import click

from .. import _verbs
from .._checks import duration_text
from ..limits import ConcurrencyLimit, Limit, LimitKind, parse_limit
from .connection import DatabaseOptions, database_options
from .failure import Failure
from .groups import ListGroup, action_options
from .json_text import json_option, print_json, print_json_rows
from .rows import clean, print_columns

__all__ = ["limit", "limits"]

T = TypeVar("T")
_COLUMNS: Final = ("NAME", "KIND", "LIMIT")


def limit(text: str) -> Limit:
    """Read a limit: `tenant=3` (slots per key), `crm=100/1m` (starts per minute), `crm=100/1m/200` (with burst)."""
    try:
        return parse_limit(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.group(cls=ListGroup)
def limits() -> None:
    """List and change limits. Changes take effect at once in all workers. Without a command: ls."""


@limits.command("ls")
@json_option
@database_options()
def list_limits(db: DatabaseOptions, as_json: bool) -> None:
    """List limits. A concurrency key without a limit has one slot."""
    found = db.run(_verbs.limits())
    if as_json:
        print_json_rows(_json(one) for one in found)
        return
    if found:
        print_columns([_COLUMNS, *map(_cells, found)])
    else:
        click.echo("no limits", err=True)


@limits.command("set")
@click.argument("new", metavar="LIMIT...", nargs=-1, required=True, type=limit)
@action_options
@json_option
@database_options()
def set_limits(
    db: DatabaseOptions, new: tuple[Limit, ...], reason: str | None, actor: str | None, as_json: bool
) -> None:
    """Set limits.

    tenant=3: 3 executions at once per concurrency key. crm=100/1m: 100 starts per minute. crm=100/1m/200: with a burst
    of 200.
    """
    for one in new:
        db.run(_verbs.set_limit(one, reason, actor))
        if not as_json:
            name, kind, value = _cells(one)
            click.echo(f"set {kind} limit {name}: {value}")
    if as_json:
        print_json_rows(map(_json, new))


@limits.command("rm")
@click.argument("name")
@click.option(
    "--kind", type=click.Choice(get_args(LimitKind)), help="Remove only this kind, if the name has both."
)
@action_options
@json_option
@database_options()
def remove_limit(
    db: DatabaseOptions,
    name: str,
    kind: LimitKind | None,
    reason: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Remove limit NAME.

    Without a concurrency limit, a key has one slot. Instances whose rate limit does not exist wait until it is set.
    """
    if not db.run(_verbs.remove_limit(name, kind, reason, actor)):
        raise Failure(f"limit '{name}' does not exist; list limits with `gen-durable limits`")
    if as_json:
        print_json({"name": name, "removed": True})
    else:
        click.echo(f"removed limit {clean(name)}")


def _cells(one: Limit) -> tuple[str, ...]:
    if isinstance(one, ConcurrencyLimit):
        return clean(one.name), one.kind, f"{one.slots} at once"
    return clean(one.name), one.kind, f"{one.allowed} per {duration_text(one.per)}, burst {one.burst}"


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
