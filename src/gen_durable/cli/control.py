"""`gen-durable cancel | retry | delete | restore`: a few instances, or all that match."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.progress import Progress

from .._db.plan import Row
from ..refs import target_value
from .bulk import Preview, carry_out, preview
from .connection import Place, place_options
from .failure import Failure
from .groups import action_options
from .json_text import json_option, print_json, read_json
from .options import target
from .rows import clean
from .selection import FILTERS, Selection, read_where, where_option
from .verbs import IDLE, Cancel, Change, Delete, Restore, Retry, Verb

__all__ = ["cancel", "delete", "restore", "retry"]

_MANY: Final = 1000  # instances whose change one would like to watch


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to change, and how to go about it."""

    chosen: tuple[int | str, ...] | Selection
    """Those that are named, or those that match."""
    cascade: bool
    dry_run: bool
    yes: bool
    as_json: bool

    @property
    def is_bulk(self) -> bool:
        """Whether it may concern more than one."""
        return isinstance(self.chosen, Selection) or len(self.chosen) > 1


def _control_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What all of these have; the command gets a `request`, and who wishes it as `actor`."""

    @click.argument("targets", metavar="[TARGET]...", nargs=-1, type=target)
    @where_option
    @action_options
    @click.option("--dry-run", is_flag=True, help="Only show what would be touched.")
    @click.option(
        "--yes",
        is_flag=True,
        help="Do not ask. Without it there is a question if several instances are named, with --where even for one, "
        "and if a cascade finds children.",
    )
    @json_option
    @functools.wraps(command)
    def controlled(
        *,
        targets: tuple[int | str, ...],
        where: tuple[str, ...],
        dry_run: bool,
        yes: bool,
        as_json: bool,
        cascade: bool = False,
        **given: Any,
    ) -> Any:
        if where and targets:
            raise Failure(f"give instances or --where, not both{_meant_where(targets[-1])}")
        if not where and not targets:
            raise Failure("which instances? give ids or correlation keys, or --where")
        request = ControlRequest(
            chosen=read_where(where) if where else tuple(target_value(one) for one in targets),
            cascade=cascade,
            dry_run=dry_run,
            yes=yes,
            as_json=as_json,
        )
        return command(request=request, **given)

    return controlled


@click.command()
@_control_options
@click.option("--force", is_flag=True, help="Do not wait for a step that executes: revoke its lease now.")
@click.option("--cascade", is_flag=True, help="The children that they wait for as well, and theirs.")
@place_options()
def cancel(place: Place, request: ControlRequest, actor: str | None, reason: str | None, force: bool) -> None:
    """Cancel instances.

    TARGET is an id or a correlation key. What is parked or runnable ends at once; a step that executes may end first,
    and its outcome is dropped. With --where, those of the matching instances that have not ended, unless it names
    a status.

    Exit code 0: they are cancelled or will be, or had ended before; 1: the question was answered with no; 2: a wrong
    call, nobody there, or no database.
    """
    _run(place, request, Cancel(reason=reason, actor=actor, force=force))


@click.command()
@_control_options
@click.option(
    "--state", metavar="JSON", help='With this state instead of the one it ended with; "-": standard input.'
)
@place_options("max_payload")
def retry(
    place: Place, request: ControlRequest, actor: str | None, reason: str | None, state: str | None
) -> None:
    """Let failed or cancelled instances go on where they ended.

    TARGET is an id or a correlation key. They begin the step at which they ended anew, with a fresh count of attempts.
    The inbox went with the end: what was waiting for a signal, or was woken by one, waits for it again, until the
    deadline that it had; if that has passed, it runs at once as timed out. With --where, those that failed or were
    cancelled.

    Exit code 0: they go on; 1: one of them could not (it is live, done or deleted, or another instance has its key),
    or the question was answered with no; 2: a wrong call, nobody there, or no database.
    """
    text = None if state is None else read_json(state, "the state", place.settings.max_payload)
    _run(place, request, Retry(reason=reason, actor=actor, state=text))


@click.command()
@_control_options
@place_options()
def delete(place: Place, request: ControlRequest, actor: str | None, reason: str | None) -> None:
    """Delete instances softly.

    TARGET is an id or a correlation key. They are hidden and never run again; what is live is cancelled. `restore`
    brings them back.

    Exit code 0: they are deleted, now or before; 1: the question was answered with no; 2: a wrong call, nobody there,
    or no database.
    """
    _run(place, request, Delete(reason=reason, actor=actor))


@click.command()
@_control_options
@place_options()
def restore(place: Place, request: ControlRequest, actor: str | None, reason: str | None) -> None:
    """Bring deleted instances back.

    TARGET is an id or a correlation key. What the deletion cancelled stays cancelled; `retry` lets it go on. With
    --where, those that are deleted.

    Exit code 0: they are not deleted, now or before; 1: another instance has the key of one of them (delete that, or
    insert anew), or the question was answered with no; 2: a wrong call, nobody there, or no database.
    """
    _run(place, request, Restore(reason=reason, actor=actor))


def _run(place: Place, request: ControlRequest, verb: Verb) -> None:
    raise SystemExit(asyncio.run(_change(place, request, verb)))


async def _change(place: Place, request: ControlRequest, verb: Verb) -> int:
    """Look, ask, do, tell; the exit code."""
    async with place.open() as database:
        shown = await preview(database, verb, request.chosen, cascade=request.cascade)
        if request.dry_run:
            _tell_preview(shown, request, verb)
            return 0
        if (
            (request.is_bulk or shown.child_count)
            and shown.count
            and not request.yes
            and not _agrees(shown, verb)
        ):
            click.echo("nothing was changed", err=True)
            return 1
        with _progress(shown.count) as tell:
            changes = await carry_out(database, verb, shown, tell)
    _tell(changes, shown, request, verb)
    disappointing = {"refused"} if shown.wanted or verb.is_idempotent else {"refused", "left"}
    return 1 if any(change.outcome in disappointing for change in changes) else 0


@contextmanager
def _progress(count: int) -> Generator[Callable[[int], None]]:
    """A bar on a terminal, if there is enough to do for one."""
    if count < _MANY or not sys.stderr.isatty():
        yield lambda done: None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=count)
        yield lambda done: bar.update(task, completed=done)


def _agrees(shown: Preview, verb: Verb) -> bool:
    what = ", ".join(f"{group.count} {clean(group.machine)} {group.status}" for group in shown.groups)
    below = f" and {shown.child_count} children below" if shown.child_count else ""
    try:
        return click.confirm(f"{verb.name.capitalize()} {_counted(shown.count)} ({what}{below})?", err=True)
    except click.Abort:
        click.echo(err=True)
        raise Failure(
            f"nothing was changed: {_counted(shown.count)} would be; answer the question, or say --yes"
        ) from None


def _tell_preview(shown: Preview, request: ControlRequest, verb: Verb) -> None:
    if request.as_json:
        print_json(
            {
                "verb": verb.name,
                "dry_run": True,
                "count": shown.count,
                "groups": shown.groups,
                "child_count": shown.child_count,
            }
        )
        return
    click.echo(f"{verb.name} would change {_counted(shown.count)}")
    for group in shown.groups:
        click.echo(f"  {group.count} {clean(group.machine)} {group.status}: {group.outcome}")
    if shown.child_count:
        click.echo(f"  {shown.child_count} children below")


def _tell(changes: Sequence[Change], shown: Preview, request: ControlRequest, verb: Verb) -> None:
    outcomes = Counter(change.outcome for change in changes)
    count = sum(number for outcome, number in outcomes.items() if outcome not in IDLE)
    if request.as_json:
        print_json(
            {"verb": verb.name, "dry_run": False, "count": count, "outcomes": outcomes, "instances": changes}
        )
    elif shown.wanted:
        click.echo(
            ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items()) or "no instance matches"
        )
    else:
        rows = {row["id"]: row for row in shown.rows}
        for change in changes:
            click.echo(f"{change.id} {_sentence(change, rows.get(change.id))}")


def _sentence(change: Change, row: Row | None) -> str:
    match change.outcome:
        case "requested":
            return "executes a step, and is cancelled when that ends"
        case "finished":
            return f"had ended before: it is {row['status']}" if row else "had ended before"
        case "refused":
            return f"was left as it is: {change.problem}"
        case "left":
            deleted = "deleted" if row and row["deleted_at"] is not None else "not deleted"
            return f"was left as it is: {row['status'] if row else ''}, {deleted}"
        case _:
            return f"is {change.outcome}"


def _meant_where(target: int | str) -> str:
    is_filter = isinstance(target, str) and target.partition("=")[0].replace("_", "-") in FILTERS
    return f"; did you mean --where {target}?" if is_filter else f": leave out {target}, or --where"


def _counted(count: int) -> str:
    return "1 instance" if count == 1 else f"{count} instances"
