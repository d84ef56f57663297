"""`gen-durable wait`: wait until an instance has ended."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
from rich.text import Text

from .. import _verbs
from .._core.change_cursor import Condition
from .._db import snapshots
from .._db.failures import StatementError
from .._db.plan import Row
from .._db.pool import Database
from .._dictionary import did_you_mean
from .._runtime.waiting import Waiting
from ..errors import NoTargetError
from ..instance import Status
from ..refs import target_value
from .connection import DatabaseOptions, database_options
from .failure import TIMED_OUT, Failure, no_instance
from .json_text import json_option, print_json
from .options import duration, target
from .progress import show_progress
from .rows import age_text, clean, instance_json, note, removed_text
from .stream import interruptible
from .terminal import open_console

__all__ = ["wait"]

# Seconds between two updates of the line on a terminal.
_REFRESH: Final = 0.5
_FAILED: Final = 1


def _state(text: str) -> Any:
    """Read one `--until`: a word of the Python API, or `step:NAME`."""
    kind, colon, name = text.partition(":")
    if kind == "step" and colon:
        return "step", name
    if text not in _verbs.UNTIL_WORDS:
        hint = did_you_mean(text, _verbs.UNTIL_WORDS)
        raise click.BadParameter(
            f"until is {text!r}; give {', '.join(_verbs.UNTIL_WORDS)}, or step:NAME{hint}"
        )
    return text


@click.command()
@click.argument("to", metavar="TARGET", type=target)
@click.option(
    "--timeout",
    type=duration,
    metavar="DURATION",
    help="Longest wait, for example 30s. Default: no limit.",
)
@click.option(
    "--until",
    type=_state,
    multiple=True,
    metavar="STATE",
    help="Return also when the instance has this status, is parked (waits for a signal or for children), or has "
    "reached a step: step:NAME. Repeatable. Default: finished.",
)
@click.option(
    "--progress", "shows_progress", is_flag=True, help="Show the progress that the step reports, on stderr."
)
@json_option
@database_options()
def wait(
    db: DatabaseOptions,
    to: int | str,
    timeout: timedelta | None,
    until: tuple[Any, ...],
    shows_progress: bool,
    as_json: bool,
) -> None:
    """Wait until an instance has ended, and print its result.

    TARGET is an id or a correlation key.

    Exit code 0: done, or the state given with --until was reached; 1: failed or cancelled; 2: usage error, instance not
    found, or database unreachable; 3: --timeout is over.
    """
    condition = _verbs.checked_until(frozenset(until or ("finished",)), to)
    with interruptible():
        row, code = asyncio.run(
            _wait(db, target_value(to), timeout, condition, shows_progress=shows_progress)
        )
    if as_json:
        print_json(instance_json(row))
    elif row["status"] == Status.DONE and row["collected_at"] is None:
        click.echo(row["result"])
    if code != 0 or row["status"] != Status.DONE or row["collected_at"] is not None:
        click.echo(_summary(row, "still " if code == TIMED_OUT else ""), err=True)
    raise SystemExit(code)


async def _wait(
    db: DatabaseOptions,
    to: int | str,
    timeout: timedelta | None,
    condition: Condition,
    *,
    shows_progress: bool,
) -> tuple[Row, int]:
    async with db.open() as database:
        row, is_over = await _get(database, to), False
        unknown = await database.run(_verbs.unknown_step(row["id"], condition, "--until"))
        if unknown is not None:
            click.echo(f"-- {clean(str(unknown))}", err=True)
        waiting = Waiting(database)
        show = show_progress(waiting, row["id"]) if shows_progress else _show_status(database, row)
        showing = asyncio.get_running_loop().create_task(show)
        try:
            async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
                row = await waiting.until(row["id"], condition)
        except TimeoutError:
            is_over = True
            with suppress(StatementError):
                row = await _get_again(database, row)
        except NoTargetError:
            raise _removed(row) from None
        finally:
            waiting.close()
            showing.cancel()
            await asyncio.wait({showing})  # it clears its line
    return row, _code(row, condition, is_over=is_over)


def _code(row: Row, condition: Condition, *, is_over: bool) -> int:
    status = Status(row["status"])
    if status is Status.DONE or status in condition.statuses:
        return 0
    if status.is_terminal:
        return _FAILED
    return TIMED_OUT if is_over and not condition.holds(row, ()) else 0


async def _get(database: Database, to: int | str) -> Row:
    row = await database.run(snapshots.get(to))
    if row is None:
        raise no_instance(to)
    return row


async def _get_again(database: Database, row: Row) -> Row:
    again = await database.run(snapshots.get(row["id"]))
    if again is None:
        raise _removed(row)
    return again


def _removed(row: Row) -> Failure:
    return Failure(
        f"{clean(row['fsm'])} {row['id']} has ended and was removed, with its result: by keep=False of its machine, "
        "retention_done = 0 of its worker, or retention"
    )


async def _show_status(database: Database, row: Row) -> None:
    """On a terminal, show the instance and how long the wait has lasted."""
    console, began = open_console(stderr=True), time.monotonic()
    if not (sys.stderr.isatty() and console.is_terminal):
        return
    with console.status(Text(_summary(row, ""))) as line:
        while True:
            await asyncio.sleep(_REFRESH)
            with suppress(StatementError):  # the wait itself reports an outage
                row = await _get_again(database, row)
            line.update(
                Text(f"{_summary(row, '')} ({age_text(timedelta(seconds=time.monotonic() - began))})")
            )


def _summary(row: Row, still: str) -> str:
    details = note(row, datetime.now(UTC))
    end = f": {details}" if details else ""
    if row["collected_at"] is not None:
        end += f"; {removed_text(row)}"
    return (
        f"{clean(row['fsm'])} {row['id']} {still}has status {row['status']} at step {clean(row['step'])}{end}"
    )
