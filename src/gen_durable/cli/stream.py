"""`gen-durable stream`: print what an instance publishes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click
import msgspec

from .. import _verbs
from .._db import snapshots
from .._runtime.follow import follow
from ..errors import NoTargetError
from ..streams import StreamItem
from .connection import DatabaseOptions, database_options
from .declared import undeclared
from .failure import no_instance
from .options import target
from .rows import clean

__all__ = ["interruptible", "json_lines_option", "print_json_line", "stream"]

_INTERRUPTED: Final = 130
json_lines_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one document per line.")


@click.command()
@click.argument("to", metavar="TARGET", type=target)
@click.argument("name")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    metavar="POSITION",
    default=0,
    help="Only items after this position.",
)
@click.option(
    "--follow/--no-follow",
    "follows",
    default=True,
    show_default=True,
    help="Wait for further items until the instance has ended or the stream is closed.",
)
@json_lines_option
@database_options()
def stream(db: DatabaseOptions, to: int | str, name: str, after: int, follows: bool, as_json: bool) -> None:
    """Print the items that an instance publishes to a stream, one per line.

    TARGET is an id or a correlation key, NAME the name of the stream. Texts are printed as they are, other items as
    JSON; on a terminal, control characters are escaped. A line on stderr says where another execution of a step
    continues: the one before has failed or crashed, or another step follows. After Ctrl-C, it has the last position.
    """
    with interruptible():
        asyncio.run(_stream(db, to, name, after, follows=follows, as_json=as_json))


async def _stream(
    db: DatabaseOptions, to: int | str, name: str, after: int, *, follows: bool, as_json: bool
) -> None:
    execution: int | None = None
    async with db.open() as database:
        try:
            cursor = await database.run(_verbs.open_stream(to, name, after))
        except NoTargetError as error:
            raise no_instance(to) from error
        if await database.run(snapshots.get(cursor.id)) is None:
            raise no_instance(to)
        if warning := await database.run(undeclared(cursor.id, "stream", name)):
            click.echo(f"-- {warning}", err=True)
        source = _verbs.StreamFollow(cursor)
        try:
            async for item in follow(database.run, source, ends_when_empty=not follows):
                if as_json:
                    print_json_line(item)
                    continue
                if execution not in (None, item.execution):
                    click.echo(_heading(item), err=True)
                execution = item.execution
                click.echo(_text(item.value), color=True)  # keep escape sequences in a pipe
        except asyncio.CancelledError:
            click.echo(f"-- read up to position {cursor.after}; continue: --after {cursor.after}", err=True)
            raise


def _heading(item: StreamItem[Any]) -> str:
    at = f"position {item.position}, execution {item.execution}"
    return f"-- {at}: step {clean(item.step)}, attempt {item.attempt + 1}"


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return clean(text) if sys.stdout.isatty() else text


def print_json_line(value: object) -> None:
    """Print a document on a line of its own."""
    click.echo(msgspec.json.encode(value))


@contextmanager
def interruptible() -> Iterator[None]:
    """End with exit code 130 on Ctrl-C, and quietly if the reader of a pipe has gone."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    except BrokenPipeError:
        sys.stdout = None  # nothing to flush at the exit
        raise SystemExit(0) from None
