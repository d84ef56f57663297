"""`gen-durable stats` and `gen-durable top`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import click
import msgspec
from rich.cells import cell_len
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .. import _verbs
from .._backoff import backoff_seconds
from .._db.failures import StatementError, is_outage, is_race
from .._db.plan import Plan
from ..instance import Status
from ..operations import QueueStatus
from ..stats import Stats
from .connection import DatabaseOptions, database_options
from .failure import Failure
from .json_text import json_option, print_json
from .options import duration
from .rows import STYLES, age_text, clean, moment_text
from .terminal import open_console

__all__ = ["stats", "top"]

_AT_LEAST: Final = 10_000
_WORDS: Final = {
    Status.RUNNABLE: "RUNNABLE",
    Status.EXECUTING: "EXECUTING",
    Status.AWAITING_SIGNAL: "SIGNAL",
    Status.AWAITING_CHILDREN: "CHILDREN",
    Status.DONE: "DONE",
    Status.FAILED: "FAILED",
    Status.CANCELLED: "CANCELLED",
}
_ALL: Final = 1000
_WIDE: Final = 500
# Of `top`: the lines that are not rows of its tables.
_FRAME: Final = 12
_MIN_ERROR: Final = 12
# Of `top`: seconds between two tries while the database is unreachable.
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


@click.command()
@json_option
@database_options()
def stats(db: DatabaseOptions, as_json: bool) -> None:
    """Show instances by machine and status, rates, slow steps and failures.

    The cost is bounded at any size. 10000+ means at least 10000. Slow steps and failures are computed from the recorded
    executions of the newest instances: at most 10000 that committed a transition and 10000 that did not.
    """
    found = db.run(_verbs.stats())
    if as_json:
        print_json(_json(found))
        return
    # In a pipe nothing is cut off.
    console = open_console(width=None if sys.stdout.isatty() else _WIDE)
    for part in _parts(found, [_ALL] * 3, console.width):
        console.print(part)


@click.command()
@click.option(
    "--interval",
    type=duration,
    metavar="DURATION",
    default="5s",
    show_default=True,
    help="Time between two updates.",
)
@database_options()
def top(db: DatabaseOptions, interval: timedelta) -> None:
    """Show queues, machines, slow steps and failures, live. End it with Ctrl-C.

    The numbers are those of `stats` and `queues`. While the database is unreachable, it retries.
    """
    if not sys.stdout.isatty():
        raise Failure("top needs a terminal. In a script, use: gen-durable stats --json")
    with suppress(KeyboardInterrupt):
        asyncio.run(_show_live(db, interval))


async def _show_live(db: DatabaseOptions, interval: timedelta) -> None:
    console = open_console()
    async with db.open() as database:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            shown: list[RenderableType] = []
            tries = 0
            while True:
                try:
                    found, queues = await database.run(_with_queues())
                except StatementError as error:
                    # `watch` and `tail` retry the same errors.
                    if not is_outage(error) and not is_race(error):
                        raise
                    tries += 1
                    live.update(Group(_outage(error), *shown), refresh=True)
                    await asyncio.sleep(backoff_seconds(tries, base=_FIRST_PAUSE, cap=_LONGEST_PAUSE))
                    continue
                tries, shown = 0, list(_screen(found, queues, interval, console))
                live.update(Group(*shown), refresh=True)
                await asyncio.sleep(interval.total_seconds())


def _outage(error: StatementError) -> Text:
    return Text(f"database unreachable; retrying: {clean(str(error))}\n", style="red")


def _with_queues() -> Plan[tuple[Stats, Sequence[QueueStatus]]]:
    return (yield from _verbs.stats()), (yield from _verbs.queues())


def _screen(
    found: Stats, queues: Sequence[QueueStatus], interval: timedelta, console: Console
) -> Iterator[RenderableType]:
    sizes = [len(rows) for rows in (queues, found.machines, found.steps, found.failures)]
    of_queues, *others = _shared(console.height - _FRAME, sizes)
    yield _head(found, interval)
    yield _queues(queues, of_queues)
    yield from _parts(found, others, console.width)


def _shared(lines: int, sizes: Sequence[int]) -> list[int]:
    """Divide lines among tables with this many rows. What a table does not need is left to the larger ones."""
    shares = list(sizes)
    by_size = sorted(range(len(sizes)), key=sizes.__getitem__)
    for place, number in enumerate(by_size):
        shares[number] = min(sizes[number], max(lines // (len(sizes) - place), 2))
        lines -= shares[number]
    return shares


def _add_rows(table: Table, rows: Sequence[Sequence[str]], most: int) -> None:
    """Add rows to a table. The last one of a table that is cut off says how many are missing."""
    shown = len(rows) if len(rows) <= most else most - 1
    for row in rows[:shown]:
        table.add_row(*row)
    if shown < len(rows):
        table.add_row(f"… {len(rows) - shown} more")


def _head(found: Stats, interval: timedelta) -> RenderableType:
    return Text(f"{moment_text(found.at)}  every {interval.total_seconds():g} s, Ctrl-C ends\n", style="dim")


def _parts(found: Stats, most: Sequence[int], width: int) -> Iterator[RenderableType]:
    """Yield the tables of machines, steps and failures. `most` has the maximum number of rows of each."""
    of_machines, of_steps, of_failures = most
    yield _machines(found, of_machines) if found.machines else Text("no instances")
    yield Text(f"\n{_rates(found)}\n")
    if found.steps:
        yield _steps(found, of_steps)
        yield Text("")
    if found.failures:
        yield _failures(found, of_failures, width)
    else:
        yield Text("no failures in the sample")


def _rates(found: Stats) -> str:
    """Format all rates in one unit: per minute if one of them is low."""
    rates = found.per_second
    factor, unit = (60, "minute") if any(0 < rate < 1 for rate in rates.values()) else (1, "second")
    ends = ", ".join(f"{rate * factor:.1f} {status}" for status, rate in rates.items())
    return f"ended in the last 5 minutes: {ends} per {unit}"


def _machines(found: Stats, most: int) -> Table:
    statuses = [status for status in _WORDS if any(each.counts.get(status) for each in found.machines)]
    table = _table("MACHINE", "V")
    for status in statuses:
        table.add_column(_WORDS[status], justify="right", style=STYLES[status])
    rows = [
        (clean(each.machine), str(each.version), *(_count(each.counts.get(status, 0)) for status in statuses))
        for each in found.machines
    ]
    _add_rows(table, rows, most)
    return table


def _queues(queues: Sequence[QueueStatus], most: int) -> Table:
    table = _table("QUEUE", "STATE")
    for name in ("DUE", "OLDEST", "FUTURE", "GATED", "EXECUTING", "WORKERS"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = []
    for each in queues:
        oldest = "-" if each.oldest is None else age_text(each.oldest)
        counts = (each.due, oldest, each.future, each.gated, each.executing, each.workers)
        state = "paused" if each.is_paused else "open"
        rows.append(
            (clean(each.name), state, *(text if isinstance(text, str) else _count(text) for text in counts))
        )
    _add_rows(table, rows, most)
    table.add_row()
    return table


def _steps(found: Stats, most: int) -> Table:
    table = _table(f"SLOWEST STEPS (last {found.sampled} executions)")
    for name in ("EXECUTIONS", "P50", "P95", "LONGEST", "ABORTED"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = []
    for each in found.steps:
        times = (_time(took) for took in (each.p50, each.p95, each.longest))
        name = f"{clean(each.machine)}.{clean(each.step)}"
        rows.append((name, str(each.executions), *times, str(each.not_committed or "-")))
    _add_rows(table, rows, most)
    return table


def _failures(found: Stats, most: int, width: int) -> Table:
    """The errors get what the other columns leave: rich would cut off all columns alike."""
    lines = [
        (
            f"{clean(each.machine)}.{clean(each.step)}",
            str(each.failed or "-"),
            str(each.continued or "-"),
            f"{age_text(found.at - each.last_at)} ago",
            str(each.instance_id),
            clean(each.last_error or each.error),
        )
        for each in found.failures
    ]
    heads = ("FAILURES", "FAILED", "CONTINUED", "LAST", "INSTANCE")
    widths = [
        max(map(cell_len, column)) for column in zip(heads, *(line[:-1] for line in lines), strict=True)
    ]
    table = _table()
    for head, needed in zip(heads, widths, strict=True):
        justify: JustifyMethod = "right" if head in ("FAILED", "CONTINUED", "INSTANCE") else "left"
        table.add_column(head, justify=justify, width=needed, no_wrap=True)
    rest = max(width - sum(widths) - 2 * len(heads), _MIN_ERROR)
    table.add_column("ERROR", no_wrap=True, overflow="ellipsis", max_width=rest)
    _add_rows(table, lines, most)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    return table


def _count(count: int) -> str:
    return "-" if not count else f"{count}+" if count >= _AT_LEAST else str(count)


def _time(took: timedelta | None) -> str:
    if took is None:
        return "-"
    seconds = took.total_seconds()
    return (
        f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 100 else age_text(took)
    )


def _json(found: Stats) -> dict[str, Any]:
    """Durations are seconds."""
    fields = msgspec.structs.asdict(found)
    fields["steps"] = [
        {
            name: value.total_seconds() if isinstance(value, timedelta) else value
            for name, value in msgspec.structs.asdict(each).items()
        }
        for each in found.steps
    ]
    return fields
