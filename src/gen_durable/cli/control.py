"""`gen-durable cancel | retry | delete | restore`: change named instances, or all that match."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from .._core.hydration import step_of_retry
from .._core.query_terms import TERMS
from .._db.plan import Row
from .._verbs.changes import Cancel, Change, Delete, Restore, Retry, Verb
from ..batches import CHANGED
from ..instance import Status
from ..refs import target_value
from .batches import exit_code, print_result, run_to_end
from .bulk import Preview, carry_out, check, preview, start
from .connection import DatabaseOptions, database_options
from .failure import Failure
from .groups import action_options, no_validate_option
from .json_text import json_option, print_json, read_json
from .options import target
from .rows import clean
from .selection import FILTERS, Selection, read_where, where_option

__all__ = ["cancel", "delete", "restore", "retry"]


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which instances to change, and how."""

    chosen: tuple[int | str, ...] | Selection
    """Named instances, or filters."""
    cascade: bool
    dry_run: bool
    yes: bool
    as_json: bool

    @property
    def is_bulk(self) -> bool:
        """Return whether it may change more than one instance."""
        return isinstance(self.chosen, Selection) or len(self.chosen) > 1


def _control_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that these commands share. The command gets a `request`."""

    @click.argument("targets", metavar="[TARGET]...", nargs=-1, type=target)
    @where_option
    @action_options
    @click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
    @click.option(
        "--yes",
        is_flag=True,
        help="Do not ask for confirmation. Default: ask before changing several instances, and with --where.",
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
            raise Failure(f"give either targets or --where{_meant_where(targets[-1])}")
        if not where and not targets:
            raise Failure("no target: give ids or correlation keys, or --where")
        selection = read_where(where)
        if where and not selection:
            raise Failure("--where is empty. Give a search, for example --where status:failed.")
        request = ControlRequest(
            chosen=selection if where else tuple(target_value(one) for one in targets),
            cascade=cascade,
            dry_run=dry_run,
            yes=yes,
            as_json=as_json,
        )
        return command(request=request, **given)

    return controlled


@click.command()
@_control_options
@click.option(
    "--force",
    is_flag=True,
    help="End now: revoke the lease of a running step and discard its outcome; run no on_cancel or undo step.",
)
@click.option(
    "--no-undo",
    is_flag=True,
    help="Run no on_cancel and undo steps, or no further undo steps; a running step ends first.",
)
@click.option("--cascade", is_flag=True, help="Also cancel all descendants.")
@database_options()
def cancel(
    db: DatabaseOptions,
    request: ControlRequest,
    actor: str | None,
    reason: str | None,
    force: bool,
    no_undo: bool,
) -> None:
    """Cancel instances.

    TARGET is an id or a correlation key. Waiting instances end at once. A running step may finish; its outcome is
    discarded. An instance with undo steps runs them before it ends; a step with on_cancel goes to that step. --where
    selects live instances, unless it filters by status.

    Exit code 0: cancelled, cancel requested, compensating, or already ended; 1: the confirmation was declined; 2: usage
    error, instance not found, or database unreachable.
    """
    change = Cancel(reason=reason, actor=actor, force=force, undo=not no_undo, cascade=request.cascade)
    _run(db, request, change)


@click.command()
@_control_options
@click.option("--state", metavar="JSON", help='New state instead of the last one; "-" reads standard input.')
@click.option(
    "--step", metavar="NAME", help="Run this step instead, without waiting for its signals or children."
)
@no_validate_option
@database_options("max_payload")
def retry(
    db: DatabaseOptions,
    request: ControlRequest,
    actor: str | None,
    reason: str | None,
    state: str | None,
    step: str | None,
    no_validate: bool,
) -> None:
    """Retry failed or cancelled instances at the step where they ended.

    TARGET is an id or a correlation key. An instance whose undo steps have all run starts at the first step that was
    undone. Attempts start again at 1. The inbox was emptied when the instance ended: a
    step that was waiting for a signal, or was woken by one, waits for it again, until its old deadline. After that
    deadline it runs at once, as timed out. --where selects failed and cancelled instances.

    Exit code 0: all are retried; 1: one of them is live, done or deleted, or another instance has its key, or the
    confirmation was declined; 2: usage error, instance not found, or database unreachable.
    """
    text = None if state is None else read_json(state, "the state", db.settings.max_payload)
    _run(db, request, Retry(reason=reason, actor=actor, state=text, step=step, validate=not no_validate))


@click.command()
@_control_options
@database_options()
def delete(db: DatabaseOptions, request: ControlRequest, actor: str | None, reason: str | None) -> None:
    """Soft-delete instances: cancel live ones, and hide all from lists.

    TARGET is an id or a correlation key. `restore` undoes it, until the rows are removed after retention_deleted.

    Exit code 0: deleted, now or before; 1: the confirmation was declined; 2: usage error, instance not found, or
    database unreachable.
    """
    _run(db, request, Delete(reason=reason, actor=actor))


@click.command()
@_control_options
@database_options()
def restore(db: DatabaseOptions, request: ControlRequest, actor: str | None, reason: str | None) -> None:
    """Restore deleted instances.

    TARGET is an id or a correlation key. Instances that the delete cancelled stay cancelled; use `retry` to run them.
    --where selects deleted instances.

    Exit code 0: restored, or not deleted; 1: another instance has the key of one of them (delete that one first), or
    the confirmation was declined; 2: usage error, instance not found, or database unreachable.
    """
    _run(db, request, Restore(reason=reason, actor=actor))


def _run(db: DatabaseOptions, request: ControlRequest, verb: Verb) -> None:
    raise SystemExit(asyncio.run(_change(db, request, verb)))


async def _change(db: DatabaseOptions, request: ControlRequest, verb: Verb) -> int:
    """Preview, confirm, change and report. Returns the exit code."""
    async with db.open() as database:
        shown = await preview(database, verb, request.chosen, cascade=request.cascade)
        await check(database, verb, shown)
        if request.dry_run:
            _print_preview(shown, request, verb)
            return 0
        if (
            (request.is_bulk or shown.child_count)
            and shown.count
            and not request.yes
            and not _agrees(shown, verb)
        ):
            click.echo("nothing was changed", err=True)
            return 1
        if shown.is_batch:
            batch = await start(database, verb, shown)
            batch = await run_to_end(database, batch, actor=verb.actor)
            print_result(batch, as_json=request.as_json)
            return exit_code(batch)
        changes = await carry_out(database, verb, shown)
    _print_changes(changes, shown, request, verb)
    failures = {"refused"} if shown.wanted or verb.is_idempotent else {"refused", "left"}
    return 1 if any(change.outcome in failures for change in changes) else 0


def _agrees(shown: Preview, verb: Verb) -> bool:
    what = ", ".join(
        f"{group.count} {clean(group.machine)} {group.status}"
        for group in shown.groups
        if group.outcome in CHANGED
    )
    below = f", and {shown.child_count} descendants" if shown.child_count else ""
    try:
        return click.confirm(f"{verb.name.capitalize()} {_counted(shown.count)} ({what}{below})?", err=True)
    except click.Abort:
        click.echo(err=True)
        raise Failure(
            f"nothing was changed: no confirmation to {verb.name} {_counted(shown.count)}. Add --yes."
        ) from None


def _print_preview(shown: Preview, request: ControlRequest, verb: Verb) -> None:
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
        click.echo(f"  {shown.child_count} descendants")
    if shown.reacts:
        click.echo("  instances with on_cancel or undo steps run these before they end")


def _print_changes(changes: Sequence[Change], shown: Preview, request: ControlRequest, verb: Verb) -> None:
    outcomes = Counter(change.outcome for change in changes)
    count = sum(number for outcome, number in outcomes.items() if outcome in CHANGED)
    if request.as_json:
        print_json(
            {"verb": verb.name, "dry_run": False, "count": count, "outcomes": outcomes, "instances": changes}
        )
    elif shown.wanted:
        click.echo(
            ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
            or "no matching instances"
        )
    else:
        rows = {row["id"]: row for row in shown.rows}
        for change in changes:
            click.echo(f"{change.id}: {_sentence(change, rows.get(change.id), verb)}")


def _sentence(change: Change, row: Row | None, verb: Verb) -> str:
    match change.outcome:
        case "requested":
            return f"cancel requested; {_what_runs(row, verb)}"
        case "compensating":
            return "not changed: its undo steps are already running; add --no-undo or --force to stop them"
        case "finished":
            return f"already ended ({row['status']})" if row else "already ended"
        case "refused":
            return f"not changed: {change.problem}"
        case "left" if row and isinstance(verb, Retry):
            return f"cannot retry: {_not_retried(row)}"
        case "left":
            deleted = "deleted" if row and row["deleted_at"] is not None else "not deleted"
            return f"not changed: {row['status'] if row else ''}, {deleted}"
        case "retried" if (
            row and isinstance(verb, Retry) and verb.step is None and (first := step_of_retry(row))
        ):
            return f"retried; starts at {clean(first)}, the first step that was undone"
        case _:
            return change.outcome


def _what_runs(row: Row | None, verb: Verb) -> str:
    """Say what runs before a cancelled instance ends."""
    if row is None:  # a descendant
        return "its running step, on_cancel step or undo steps end first"
    runs_steps = isinstance(verb, Cancel) and verb.runs_steps
    steps = {"on_cancel": "its on_cancel step runs", "undo": "its undo steps run"}.get(row["leads_to"] or "")
    if steps is None or not runs_steps:
        return "it ends when its running step ends"
    return f"when its running step ends, {steps}" if row["status"] == Status.EXECUTING else f"{steps} first"


def _not_retried(row: Row) -> str:
    if row["deleted_at"] is not None:
        return f"it is deleted; undo that first: gen-durable restore {row['id']}"
    if row["status"] in (Status.FAILED, Status.CANCELLED):
        return (
            "its state was removed by retention; give --state"
            if row["collected_at"]
            else "it has changed meanwhile"
        )
    return f"it is {row['status']}; only failed and cancelled instances can be retried"


def _meant_where(target: int | str) -> str:
    if isinstance(target, str) and target.partition("=")[0].replace("_", "-") in FILTERS:
        return f"; did you mean --where {target}?"
    if isinstance(target, str) and target.partition(":")[0] in TERMS:
        return f"; did you mean --where '{target}'?"
    return f"; remove {target} or --where"


def _counted(count: int) -> str:
    return "1 instance" if count == 1 else f"{count} instances"
