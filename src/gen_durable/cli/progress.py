"""The progress of one instance: a bar on a terminal, lines otherwise."""

from __future__ import annotations

import sys

import click
import msgspec
from rich.progress import BarColumn, Progress, TimeElapsedColumn

from .._core.change_cursor import ChangeCursor
from .._core.hydration import progress_of
from .._runtime.waiting import Waiting
from .rows import clean
from .terminal import open_console, text_column

__all__ = ["show_progress"]


async def show_progress(waiting: Waiting, id: int) -> None:
    """Show what the steps of an instance report, until it has ended."""
    console = open_console(stderr=True)
    changes = waiting.changes(ChangeCursor(id))
    if not (sys.stderr.isatty() and console.is_terminal):
        shown = ""
        async for row, _ in changes:
            reported = progress_of(row["progress"])
            if reported is not None and (line := f"{clean(row['step'])}: {clean(str(reported))}") != shown:
                shown = line
                click.echo(line, err=True)
        return
    columns = (
        text_column("{task.description}"),
        BarColumn(),
        text_column("{task.fields[numbers]}"),
        TimeElapsedColumn(),
        text_column("{task.fields[message]}"),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("", total=None, numbers="", message="")
        async for row, _ in changes:
            reported = progress_of(row["progress"])
            fraction = None if reported is None else reported.fraction
            bars.update(
                bar,
                description=clean(row["step"]),
                completed=fraction or 0,
                total=None if fraction is None else 1,
                numbers="" if reported is None else str(msgspec.structs.replace(reported, message="")),
                message="" if reported is None else clean(reported.message),
            )
