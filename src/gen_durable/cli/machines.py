"""`gen-durable machines`."""

from __future__ import annotations

import click

from .. import _verbs
from ..operations import MachineInfo
from .connection import DatabaseOptions, database_options
from .json_text import json_option, print_json_rows
from .rows import clean, print_columns

__all__ = ["machines"]

_COLUMNS = ("MACHINE", "V", "QUEUE", "STEPS", "SIGNALS", "STREAMS", "WORKERS")
_SHOWN = 2  # workers by name


@click.command()
@json_option
@database_options()
def machines(db: DatabaseOptions, as_json: bool) -> None:
    """List the machines and jobs that workers have registered.

    WORKERS are the live workers that run this version.
    """
    found = db.run(_verbs.registered_machines())
    if as_json:
        print_json_rows(found)
    elif found:
        print_columns([_COLUMNS, *map(_cells, found)])
    else:
        click.echo("no machines: no worker has registered one", err=True)


def _cells(each: MachineInfo) -> tuple[str, ...]:
    more = len(each.workers) - _SHOWN
    names = ", ".join(each.workers[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return (
        clean(each.name),
        str(each.version),
        clean(each.queue),
        clean(", ".join(each.steps)) or "-",
        clean(", ".join(each.signals)) or "-",
        clean(", ".join(each.streams)) or "-",
        clean(names) or "none",
    )
