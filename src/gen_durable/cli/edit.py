"""`gen-durable edit`: change the state or the step of an instance."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from .. import _verbs
from .._core.differences import differences
from .._db import snapshots
from .._db.plan import Row
from .._typing import KEEP
from ..errors import GenDurableError
from ..instance import EditRefusal, EditResult, NotEdited, StateChange, Status
from ..refs import target_value
from .connection import DatabaseOptions, database_options
from .failure import Failure, no_instance
from .groups import action_options, no_validate_option
from .json_text import json_option, print_json, read_json, readable
from .options import target
from .rows import clean

__all__ = ["change_text", "edit"]


class _Change(msgspec.Struct, frozen=True, kw_only=True):
    """What the user has asked for."""

    state: str | None
    step: str | None
    wake: bool
    expected_step_seq: int
    validate: bool


@click.command()
@click.argument("to", metavar="TARGET", type=target)
@click.option(
    "--state",
    metavar="JSON",
    help='New state; "-" reads standard input. Without --state, --step and --wake: open $EDITOR with the state.',
)
@click.option("--step", metavar="NAME", help="The step to run next.")
@click.option("--wake", is_flag=True, help="Stop waiting for signals, children or a delay: run now.")
@click.option(
    "--expected-step-seq",
    type=click.IntRange(0),
    metavar="N",
    help="Change nothing unless the instance has this step_seq. Default: the one that this command has read.",
)
@no_validate_option
@action_options
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@database_options("max_payload")
def edit(
    db: DatabaseOptions,
    to: int | str,
    state: str | None,
    step: str | None,
    wake: bool,
    expected_step_seq: int | None,
    no_validate: bool,
    reason: str | None,
    actor: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Change the state or the step of an instance that is runnable, parked or failed.

    TARGET is an id or a correlation key. --state replaces the whole state: a field that it lacks is removed. Shows the
    difference and asks for confirmation; with --yes --json, it does neither. A parked instance keeps
    waiting, with its inbox and its deadline, and runs the new step then; a failed one stays failed until `retry`.

    Exit code 0: changed; 1: a step is executing, the instance has moved on, has ended or would leave its undo, the
    state is unchanged, or the confirmation was declined; 2: usage error, instance not found, or database unreachable.
    """
    limit = db.settings.max_payload
    text = None if state is None else read_json(state, "the state", limit)
    row = db.run(snapshots.get(target_value(to)))
    if row is None:
        raise no_instance(to)
    seq = row["step_seq"] if expected_step_seq is None else expected_step_seq
    change = _Change(state=text, step=step, wake=wake, expected_step_seq=seq, validate=not no_validate)
    if (text, step, wake) == (None, None, False):
        change = _edited(db, row, change)
    if not _is_different(row, change):
        same = " and ".join(name for name, given in (("state", text), ("step", step)) if given is not None)
        click.echo(f"nothing was changed: the {same or 'state'} is the same", err=True)
        raise SystemExit(1)
    if not yes and not _agrees(row, change):
        click.echo("nothing was changed", err=True)
        raise SystemExit(1)
    result = asyncio.run(_change(db, row["id"], change, reason, actor))
    if as_json:
        print_json({"edited": not isinstance(result, NotEdited), **msgspec.structs.asdict(result)})
    else:
        if yes and not isinstance(result, NotEdited):
            _print_difference(row, change)
        click.echo(f"{result.id}: {_sentence(result)}")
    raise SystemExit(1 if isinstance(result, NotEdited) else 0)


def change_text(change: StateChange) -> str:
    """Format one difference between two states."""
    before, after = (clean(msgspec.json.encode(value).decode()) for value in (change.before, change.after))
    match change.kind:
        case "added":
            return f"+ {clean(change.path)}: {after}"
        case "removed":
            return f"- {clean(change.path)}: {before}"
        case _:
            return f"~ {clean(change.path)}: {before} -> {after}"


def _edited(db: DatabaseOptions, row: Row, change: _Change) -> _Change:
    """Let the user edit the state, until it is valid or the user gives up."""
    text = readable(row["state"]) + "\n"
    while True:
        edited = click.edit(text, extension=".json")
        if edited is None:
            return msgspec.structs.replace(change, state=row["state"])
        try:
            state = read_json(edited.strip() or "null", "the state", db.settings.max_payload)
            given = msgspec.structs.replace(change, state=state)
            if change.validate:
                db.run(_verbs.check_change(row, None, _value(state), None, db.settings))
            return given
        except (Failure, GenDurableError) as error:
            click.echo(str(error), err=True)
            if not click.confirm("Edit again?", default=True, err=True):
                return msgspec.structs.replace(change, state=row["state"])
            text = edited


def _is_different(row: Row, change: _Change) -> bool:
    return change.wake or change.step not in (None, row["step"]) or bool(_differences(row, change))


def _differences(row: Row, change: _Change) -> list[StateChange]:
    if change.state is None:
        return []
    return list(differences(msgspec.json.decode(row["state"]), msgspec.json.decode(change.state)))


def _print_difference(row: Row, change: _Change) -> None:
    for one in _differences(row, change):
        click.echo(change_text(one), err=True)
    if change.step not in (None, row["step"]):
        click.echo(f"step: {clean(row['step'])} -> {clean(change.step or '')}", err=True)


def _agrees(row: Row, change: _Change) -> bool:
    _print_difference(row, change)
    name = f"{clean(row['fsm'])} {row['id']} ({row['status']}, step {clean(row['step'])})"
    try:
        return click.confirm(f"Edit {name}?", err=True)
    except click.Abort:
        click.echo(err=True)
        raise Failure(f"nothing was changed: no confirmation to edit {row['id']}. Add --yes.") from None


async def _change(
    db: DatabaseOptions, id: int, change: _Change, reason: str | None, actor: str | None
) -> EditResult:
    async with db.open() as database:
        result, _ = await database.run(
            _verbs.edit(
                id,
                KEEP if change.state is None else _value(change.state),
                change.step,
                db.settings,
                expected_step_seq=change.expected_step_seq,
                machine=None,
                wake=change.wake,
                validate=change.validate,
                reason=reason,
                actor=actor,
                autocommit=True,
            )
        )
        return result


def _value(text: str) -> Any:
    return msgspec.Raw(text.encode())


def _sentence(result: EditResult) -> str:
    if not isinstance(result, NotEdited):
        hint = f"; run it: gen-durable retry {result.id}" if result.status is Status.FAILED else ""
        return f"edited, {result.status}{hint}"
    return f"not changed: {_REFUSALS[result.why].format(**msgspec.structs.asdict(result))}"


_REFUSALS: Mapping[EditRefusal, str] = {
    "executing": "a step is executing; repeat the command when it has ended",
    "moved": "it has moved on (step_seq {step_seq}); repeat the command",
    "ended": "it is {status}; `retry` continues a cancelled instance, `fork` starts a new one",
    "deleted": "it is deleted; `restore` it first",
    "collected": "retention has removed its state; use `retry` with --state",
    "compensating": "it runs undo steps, or has run them, so it takes no other step; "
    "`retry --step` continues a failed one",
}
