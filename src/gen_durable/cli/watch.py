"""`gen-durable watch` and `gen-durable tail`: print changes of instances as they happen."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import click
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .. import _verbs
from .._core.change_cursor import ChangeCursor
from .._core.records import record_of
from .._db import snapshots
from .._db.failures import StatementError
from .._polling import Pace
from .._runtime.database_status import DatabaseRetry
from .._runtime.waiting import Waiting
from ..refs import target_value
from .connection import DatabaseOptions, database_options
from .failure import no_instance
from .options import target
from .rows import STYLES, clean, instance_json, note
from .selection import Selection, filter_options, read_options
from .stream import interruptible, json_lines_option, print_json_line
from .terminal import open_console

__all__ = ["tail", "watch"]

_Row: TypeAlias = Mapping[str, Any]

# A poll of a tail runs for at most this part of the time.
_MAX_LOAD: Final = 0.1
# The last lines of this many instances are compared with their next ones: as many as `tail` remembers.
_MAX_LINES: Final = 10_000
_COLUMNS: Final = ("ID", "MACHINE", "STEP", "STATUS", "ATTEMPT", "NOTE")


@click.command()
@click.argument("targets", metavar="TARGET...", type=target, nargs=-1, required=True)
@json_lines_option
@database_options()
def watch(db: DatabaseOptions, targets: tuple[int | str, ...], as_json: bool) -> None:
    """Print each change of instances until they have ended.

    TARGET is an id or a correlation key. A change has the state of the instance and the executions that ended since the
    last one. On a terminal, a table shows how the instances are now. --json also prints changes that a line does not
    show, such as a new checkpoint.
    """
    with interruptible():
        asyncio.run(_watch(db, targets, as_json=as_json))


@click.command()
@filter_options
@json_lines_option
@database_options()
def tail(db: DatabaseOptions, as_json: bool, **filters: Any) -> None:
    """Print changes of all instances as they happen. QUERY and filters combine with AND; see `ls`.

    Finds new instances, executing ones, ends, and every change of the instances that it has seen last (at most 10,000).
    It may miss a short step of another instance. For every change of an instance: `watch`.
    """
    with interruptible():
        asyncio.run(_tail(db, read_options(**filters), as_json=as_json))


async def _watch(db: DatabaseOptions, targets: Sequence[int | str], *, as_json: bool) -> None:
    async with db.open() as database:
        for one in targets:
            if await database.run(snapshots.get(target_value(one))) is None:
                raise no_instance(one)
        cursors = [await database.run(_verbs.open_watch(one, None)) for one in targets]
        waiting, printer = Waiting(database), _Printer(as_json=as_json, is_live=not as_json)

        async def follow(cursor: ChangeCursor) -> None:
            async for row, executions in waiting.changes(cursor):
                printer.print(row, executions)

        try:
            with printer.live():
                async with asyncio.TaskGroup() as group:
                    for cursor in cursors:
                        group.create_task(follow(cursor))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            waiting.close()


async def _tail(db: DatabaseOptions, selection: Selection, *, as_json: bool) -> None:
    async with db.open() as database:
        source = _verbs.Tail(await database.run(selection.filter()))
        await database.run(source.start())
        printer, pace, retry = _Printer(as_json=as_json), Pace(), DatabaseRetry("tail", repair_within=0)
        while True:
            began = time.monotonic()
            try:
                found = await database.run(source.next())
            except StatementError as error:
                await asyncio.sleep(retry.pause(error))
                continue
            retry.succeeded()
            for row, executions in found:
                printer.print(row, executions)
            if found:
                pace.reset()
            await asyncio.sleep(max(pace.pause() or 0.0, (time.monotonic() - began) / _MAX_LOAD))


class _Printer:
    """Prints changes: as JSON, as lines below a heading or, live, as lines above a table of the latest states."""

    def __init__(self, *, as_json: bool, is_live: bool = False) -> None:
        console = open_console()
        self._as_json = as_json
        self._rows: dict[int, _Row] = {}
        self._last_lines: dict[int, str] = {}
        self._has_heading = False
        self._live = (
            Live(console=console, auto_refresh=False)
            if is_live and sys.stdout.isatty() and console.is_terminal
            else None
        )

    def live(self) -> Any:
        """Show the table within this context."""
        return self._live or nullcontext()

    def print(self, row: _Row, executions: Sequence[_Row]) -> None:
        """Print one change."""
        if self._as_json:
            ended = [record_of(one) for one in executions]
            print_json_line({"instance": instance_json(row), "executions": ended})
            return
        lines = [_execution_line(one) for one in executions]
        if self._live is None:
            if self._is_new(row["id"], line := _line(row)) or lines:
                if not self._has_heading:
                    self._has_heading = True
                    click.echo("  ".join(_COLUMNS))
                click.echo("\n".join([*lines, line]))
            return
        for line in lines:
            self._live.console.print(Text(line, style="dim"))
        self._rows[row["id"]] = row
        self._live.update(_table(self._rows.values()), refresh=True)

    def _is_new(self, id: int, line: str) -> bool:
        """Return whether the line differs from the last one of the instance: a new checkpoint does not change it."""
        last = self._last_lines.pop(id, None)
        self._last_lines[id] = line
        if len(self._last_lines) > _MAX_LINES:
            del self._last_lines[next(iter(self._last_lines))]
        return line != last


def _line(row: _Row) -> str:
    """One line of text for a row."""
    return "  ".join(_cells(row))


def _cells(row: _Row) -> tuple[str, ...]:
    return (
        str(row["id"]),
        clean(row["fsm"]),
        clean(row["step"]),
        row["status"],
        str(row["attempt"] + 1),
        note(row, datetime.now(UTC)) or "-",
    )


def _execution_line(one: _Row) -> str:
    began = one["started_at"] or one["leased_at"]
    took = "" if began is None else f" after {(one['finished_at'] - began).total_seconds():.3f} s"
    error = f": {clean(one['error'])}" if one["error"] else ""
    words = f"{one['finished_at'].astimezone():%H:%M:%S}  {one['job_id']}  step {clean(one['step'])}"
    return f"{words} execution {one['attempt']}: {one['outcome']}{took}{error}"


def _table(rows: Any) -> Table:
    table = Table(*_COLUMNS, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        texts = [Text(cell, overflow="ellipsis", no_wrap=True) for cell in _cells(row)]
        texts[_COLUMNS.index("STATUS")].stylize(STYLES[row["status"]])
        table.add_row(*texts)
    return table
