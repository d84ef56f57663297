"""The progress of one instance: a bar on a terminal, lines otherwise."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .._core.change_cursor import ChangeCursor
from .._core.hydration import progress_of
from .._runtime.waiting import Waiting
from .rows import clean

__all__ = ["show_progress"]


async def show_progress(waiting: Waiting, id: int) -> None:
    """Show what the steps of an instance report, until it has ended."""
    console = Console(stderr=True)
    changes = waiting.changes(ChangeCursor(id))
    if not (sys.stderr.isatty() and console.is_terminal):
        shown = ""
        async for row, _ in changes:
            reported = progress_of(row["progress"])
            if reported is not None and (line := f"{clean(row['step'])}: {clean(str(reported))}") != shown:
                shown = line
                click.echo(line, err=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[message]}"), console=console, transient=True) as bars:
        bar = bars.add_task("", total=None, message="")
        async for row, _ in changes:
            reported = progress_of(row["progress"])
            bars.update(
                bar,
                description=clean(row["step"]),
                completed=0 if reported is None else reported.done,
                total=None if reported is None else reported.total,
                message="" if reported is None else clean(reported.message),
            )
