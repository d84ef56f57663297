"""`gen-durable batches ls | show | run | stop`, and the progress of a batch that a command runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import click
import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from .. import _verbs
from .._db import snapshots
from .._db.pool import Database
from ..batches import Batch
from ..errors import DatabaseError
from .connection import DatabaseOptions, database_options
from .failure import Failure
from .groups import ListGroup, action_options
from .json_text import json_option, print_json, print_json_rows
from .rows import age_text, clean, moment_text, print_columns
from .terminal import open_console, text_column

__all__ = ["batches", "exit_code", "print_result", "run_to_end"]

_COLUMNS: Final = ("ID", "VERB", "STATUS", "VISITED", "CHANGED", "SKIPPED", "STARTED", "BY", "REASON")

id_argument = click.argument("id", metavar="ID", type=click.IntRange(min=1))


async def run_to_end(database: Database, batch: Batch, *, actor: str | None) -> Batch:
    """Run a batch until it is over; stop it if the command is interrupted."""
    run = _verbs.BatchRun(batch.id)
    try:
        with _progress(batch) as report:
            while True:
                (batch, pause), _ = await database.run(run.plan())
                report(batch)
                if pause is None:
                    return batch
                await asyncio.sleep(pause)
    except asyncio.CancelledError:
        # Ctrl-C. A batch that only lost its runner would be continued by the next process that looks for it.
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        return await database.run(_verbs.stop_batch(batch.id, "interrupted", actor))
    except DatabaseError as error:
        raise Failure(
            f"{error}\nBatch {batch.id} is not finished; continue it: gen-durable batches run {batch.id}"
        ) from error


def print_result(batch: Batch, *, as_json: bool) -> None:
    """Print what a batch has done."""
    if as_json:
        document = {"verb": batch.verb, "dry_run": False, "count": batch.done, "outcomes": batch.outcomes}
        print_json({**document, "batch": batch.id, "status": batch.status})
        return
    stopped = f"stopped after {batch.visited} of {batch.total}: " if batch.stopped_at else ""
    click.echo(f"{stopped}{_counts(batch)} (batch {batch.id})")


@click.group(cls=ListGroup)
def batches() -> None:
    """List, run and stop batches: changes of more than 500 instances. Without a command: ls."""


@batches.command("ls")
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, 10_000), help="Number of batches."
)
@json_option
@database_options()
def list_batches(db: DatabaseOptions, limit: int, as_json: bool) -> None:
    """List batches, newest first. `pending`: not finished, and no process runs it."""
    found = db.run(_verbs.list_batches(limit))
    if as_json:
        print_json_rows(map(_json, found))
    elif found:
        now = db.run(snapshots.now())
        print_columns([_COLUMNS, *(_cells(batch, now) for batch in found)])
    else:
        click.echo("no batches", err=True)


@batches.command()
@id_argument
@json_option
@database_options()
def show(db: DatabaseOptions, id: int, as_json: bool) -> None:
    """Show batch ID: what it selects, how far it is, and what it has done."""
    _print(db.run(_verbs.get_batch(id)), as_json=as_json)


@batches.command()
@id_argument
@action_options
@json_option
@database_options()
def run(db: DatabaseOptions, id: int, reason: str | None, actor: str | None, as_json: bool) -> None:
    """Run batch ID until it has ended, or continue it after its process died.

    If another process runs it, wait for that process. Ctrl-C stops the batch.

    Exit code 0: finished; 1: stopped, or another instance has the key of one of the instances; 2: usage error, no such
    batch, or database unreachable.
    """

    async def run() -> Batch:
        async with db.open() as database:
            found = await database.run(_verbs.continue_batch(id, reason, actor))
            return await run_to_end(database, found, actor=actor)

    batch = asyncio.run(run())
    print_result(batch, as_json=as_json)
    raise SystemExit(exit_code(batch))


@batches.command()
@id_argument
@action_options
@json_option
@database_options()
def stop(db: DatabaseOptions, id: int, reason: str | None, actor: str | None, as_json: bool) -> None:
    """Stop batch ID before its next page. What it has changed stays changed; it cannot be continued."""
    batch = db.run(_verbs.stop_batch(id, reason, actor))
    if batch.stopped_at is None and not as_json:
        click.echo(f"batch {id} had finished before", err=True)
    _print(batch, as_json=as_json)


def exit_code(batch: Batch) -> int:
    """Return 1 if a batch left out instances that it should have changed."""
    return 1 if batch.stopped_at or "refused" in batch.outcomes or "locked" in batch.outcomes else 0


@contextmanager
def _progress(batch: Batch) -> Generator[Callable[[Batch], None]]:
    """Show a progress bar on a terminal."""
    if not sys.stderr.isatty():
        yield lambda now: None
        return
    columns = (
        text_column("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=open_console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{batch.verb} (batch {batch.id})", total=batch.total)

        def report(now: Batch) -> None:
            bar.update(task, completed=now.visited, total=max(now.total, now.visited))

        yield report


def _counts(batch: Batch) -> str:
    skipped = batch.skipped
    changed_first = sorted(batch.outcomes.items(), key=lambda pair: pair[0] in skipped)
    return ", ".join(f"{number} {outcome}" for outcome, number in changed_first) or "no matching instances"


def _json(batch: Batch) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(batch),
        "visited": batch.visited,
        "done": batch.done,
        "skipped": batch.skipped,
    }


def _cells(batch: Batch, now: datetime) -> tuple[str, ...]:
    return (
        str(batch.id),
        batch.verb,
        batch.status,
        f"{batch.visited}/{batch.total}",
        str(batch.done),
        str(sum(batch.skipped.values())),
        f"{age_text(now - batch.created_at)} ago",
        clean(batch.actor or "-"),
        clean(batch.reason or "-"),
    )


def _print(batch: Batch, *, as_json: bool) -> None:
    if as_json:
        print_json(_json(batch))
        return
    facts = {
        "where": batch.where,
        "selects": _selects(batch),
        "options": msgspec.json.encode(batch.options).decode() if batch.options else None,
        "visited": f"{batch.visited} of {batch.total}",
        "outcomes": _counts(batch) if batch.outcomes else None,
        "runner": batch.runner,
        "created": moment_text(batch.created_at) + (f" by {batch.actor}" if batch.actor else ""),
        "reason": batch.reason,
        "finished": None if batch.finished_at is None or batch.stopped_at else moment_text(batch.finished_at),
        "stopped": _stop(batch),
        "last problem": batch.last_error,
    }
    click.echo(f"batch {batch.id}: {batch.verb}, {batch.status}")
    for label, fact in facts.items():
        if fact is not None:
            click.echo(f"  {label:<13} {clean(fact)}")
    if batch.status == "pending":
        click.echo(f"  {'continue':<13} gen-durable batches run {batch.id}")


def _selects(batch: Batch) -> str:
    if batch.filter is not None:
        return msgspec.json.encode(batch.filter).decode()
    return "dead letters" if batch.verb == "replay" else "ids"


def _stop(batch: Batch) -> str | None:
    if batch.stopped_at is None:
        return None
    return moment_text(batch.stopped_at) + (f" by {batch.stopped_by}" if batch.stopped_by else "")
