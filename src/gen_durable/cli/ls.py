"""`gen-durable ls`: list instances."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import click
from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from .._checks import checked_id
from .._db import insert_by_name, search, snapshots
from .._db.compatibility import KnownSteps, known_steps
from .._db.plan import Plan, Row
from .._db.search import Examined
from .._dictionary import did_you_mean
from .connection import DatabaseOptions, database_options
from .json_text import json_option, print_json_rows
from .rows import STYLES, age_text, clean, instance_json, note
from .selection import Selection, filter_options, read_options
from .terminal import open_console

__all__ = ["ls"]

_COLUMNS: Final = ("ID", "MACHINE", "V", "STEP", "STATUS", "QUEUE", "KEY", "ATTEMPT", "AGE", "NOTE")
_NUMBERS: Final = ("ID", "V", "ATTEMPT", "AGE")
_NARROW: Final = 12
_STATUS: Final = _COLUMNS.index("STATUS")


@click.command()
@filter_options
@click.option("--compensating", is_flag=True, help="Only instances that run undo steps.")
@click.option("--deleted", is_flag=True, help="Include deleted instances.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=50,
    show_default=True,
    help="Maximum number of instances.",
)
@click.option(
    "--before",
    type=click.IntRange(min=1),
    metavar="ID",
    help="Only instances with a smaller id. For the next page: the last id of this page.",
)
@json_option
@database_options()
def ls(
    db: DatabaseOptions,
    compensating: bool,
    deleted: bool,
    limit: int,
    before: int | None,
    as_json: bool,
    **filters: Any,
) -> None:
    """List instances, newest first.

    QUERY is a search: gen-durable ls 'machine:checkout status:failed error:~timeout age:>1h'. Its terms and the filters
    combine with AND. Conditions without an index, such as error: and state., are checked on the newest 10,000 instances
    that the others select; --before continues.
    """
    if before is not None:
        checked_id(before)
    selection = read_options(**filters)
    now, found, steps, hint = db.run(
        _page(selection, compensating=compensating, deleted=deleted, limit=limit, before=before)
    )
    if as_json:
        print_json_rows(instance_json(row) for row in found.rows)
    else:
        _print(found.rows, now, steps, hint)
    if len(found.rows) < limit and found.next is not None:
        click.echo(f"{search.BOUND} instances checked. Continue: --before {found.next}", err=True)
    elif len(found.rows) == limit and not as_json:
        click.echo(f"{limit} shown. Next page: --before {found.next}", err=True)


def _page(
    selection: Selection, *, compensating: bool, deleted: bool, limit: int, before: int | None
) -> Plan[tuple[datetime, Examined, KnownSteps, str]]:
    wanted = yield from selection.filter(with_deleted=deleted, compensating=compensating)
    now = yield from snapshots.now()
    found = yield from search.first(wanted, limit, before)
    steps = yield from known_steps()
    return now, found, steps, "" if found.rows else (yield from _unknown_machines(wanted.fsms))


def _unknown_machines(names: Sequence[str] | None) -> Plan[str]:
    """Say which machines no worker has registered: their names may be misspelled."""
    if not names:
        return ""
    known = yield from insert_by_name.known_versions()
    return "".join(
        f"; no worker has registered machine '{clean(name)}'{did_you_mean(name, tuple(known))}"
        for name in names
        if name not in known
    )


def _print(rows: Sequence[Row], now: datetime, steps: KnownSteps, hint: str) -> None:
    cells = [_cells(row, now, steps) for row in rows]
    if not rows:
        click.echo(f"no matching instances{hint}", err=True)
    elif sys.stdout.isatty():
        _print_table(rows, cells)
    else:
        _print_lines([_COLUMNS, *cells])


def _cells(row: Mapping[str, Any], now: datetime, steps: KnownSteps) -> tuple[str, ...]:
    return (
        str(row["id"]),
        clean(row["fsm"]),
        str(row["fsm_version"]),
        clean(row["step"]),
        row["status"],
        clean(row["queue"]),
        clean(row["correlation_key"] or "-"),
        str(row["attempt"] + 1),
        age_text(now - row["inserted_at"]),
        note(row, now, steps) or "-",
    )


def _print_table(rows: Sequence[Row], cells: Sequence[Sequence[str]]) -> None:
    console = open_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, width in _widths(cells, console.width).items():
        justify: JustifyMethod = "right" if column in _NUMBERS else "left"
        table.add_column(column, justify=justify, width=width, no_wrap=True, overflow="ellipsis")
    for row, line in zip(rows, cells, strict=True):
        texts = [Text(cell) for cell in line]
        texts[_STATUS].stylize(STYLES[row["status"]])
        table.add_row(*texts, style="dim" if row["deleted_at"] is not None else "")
    console.print(table)


def _widths(cells: Sequence[Sequence[str]], screen: int) -> dict[str, int]:
    """Compute column widths. If the screen is too narrow, cut KEY and NOTE."""
    needed = {
        column: max(len(column), *(cell_len(line[number]) for line in cells))
        for number, column in enumerate(_COLUMNS)
    }
    rest = sum(width + 2 for column, width in needed.items() if column not in ("KEY", "NOTE")) + 2
    space = max(screen - rest, 2 * _NARROW)
    key = min(needed["KEY"], max(_NARROW, space - needed["NOTE"]))
    return {**needed, "KEY": key, "NOTE": min(needed["NOTE"], space - key)}


def _print_lines(lines: Sequence[Sequence[str]]) -> None:
    """Print aligned columns, nothing cut off: for programs and pagers."""
    widths = [max(len(line[number]) for line in lines) for number in range(len(_COLUMNS))]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())
