"""`gen-durable wait`: until an instance has ended, for scripts and for people who watch."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from .._db import snapshots
from .._db.failures import StatementError, is_outage
from .._db.plan import Row
from .._db.pool import Database
from ..instance import Status
from ..refs import target_value
from .connection import Place, place_options
from .failure import TIMED_OUT, no_instance
from .json_text import json_option, print_json
from .options import duration, target
from .rows import age_text, clean, instance_json, note

__all__ = ["wait"]

_SHORTEST: Final = 0.02
_LONGEST: Final = 0.5
_FAILED: Final = 1
_INTERRUPTED: Final = 130
_PARKED: Final = (Status.AWAITING_SIGNAL, Status.AWAITING_CHILDREN)

Show = Callable[[Row, float], None]


@click.command()
@click.argument("to", metavar="TARGET", type=target)
@click.option(
    "--timeout",
    type=duration,
    metavar="DURATION",
    help="Wait no longer than so long: 30s. Default: for ever.",
)
@click.option(
    "--until",
    type=click.Choice(["finished", "settled"]),
    default="finished",
    show_default=True,
    help="Settled: also when it waits for a signal or for children.",
)
@json_option
@place_options()
def wait(place: Place, to: int | str, timeout: timedelta | None, until: str, as_json: bool) -> None:
    """Wait until an instance has ended, and print its result.

    TARGET is an id or a correlation key.

    Exit code 0: it is done (or parked, until settled); 1: it failed or was cancelled; 3: the time is over.
    """
    try:
        row, code = asyncio.run(_wait(place, target_value(to), timeout, parked_counts=until == "settled"))
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    if as_json:
        print_json(instance_json(row))
    elif row["status"] == Status.DONE:
        click.echo(row["result"])
    if code != 0 or row["status"] != Status.DONE:
        click.echo(_told(row, "still " if code == TIMED_OUT else ""), err=True)
    raise SystemExit(code)


async def _wait(
    place: Place, to: int | str, timeout: timedelta | None, *, parked_counts: bool
) -> tuple[Row, int]:
    deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
    async with place.open() as database:
        row = await _look(database, to)
        with _progress(row) as progress:
            began, pause = time.monotonic(), _SHORTEST
            while True:
                row = await _look_again(database, row)
                code = _code(row, parked_counts=parked_counts)
                left = None if deadline is None else deadline - time.monotonic()
                if code is None and left is not None and left <= 0:
                    code = TIMED_OUT
                if code is not None:
                    return row, code
                progress(row, time.monotonic() - began)
                await asyncio.sleep(pause if left is None else min(pause, left))
                pause = min(_LONGEST, pause * 1.5)


async def _look(database: Database, to: int | str) -> Row:
    row = await database.run(snapshots.get(to))
    if row is None:
        raise no_instance(to)
    return row


async def _look_again(database: Database, row: Row) -> Row:
    """The row as it is now; while the database is away, as it was: who waits for hours waits for that too."""
    try:
        return await _look(database, row["id"])
    except StatementError as error:
        if not is_outage(error):
            raise
        return row


def _code(row: Row, *, parked_counts: bool) -> int | None:
    status = Status(row["status"])
    if status.is_terminal:
        return 0 if status is Status.DONE else _FAILED
    return 0 if parked_counts and status in _PARKED else None


@contextmanager
def _progress(row: Row) -> Generator[Show]:
    """A line that moves, on a terminal; silence anywhere else."""
    console = Console(stderr=True)
    if not (sys.stderr.isatty() and console.is_terminal):
        yield lambda row, seconds: None
        return
    with console.status(Text(_told(row, ""))) as line:
        yield lambda row, seconds: line.update(
            Text(f"{_told(row, '')} ({age_text(timedelta(seconds=seconds))})")
        )


def _told(row: Row, still: str) -> str:
    said = note(row, datetime.now(UTC))
    end = f": {said}" if said else ""
    return f"{clean(row['fsm'])} {row['id']} is {still}{row['status']} at step '{clean(row['step'])}'{end}"
