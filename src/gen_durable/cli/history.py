"""`gen-durable history` and `gen-durable diff`: what an instance did, and how its state changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

import click
import msgspec

from .. import _verbs
from .._core.differences import differences
from .._db import snapshots
from .._db.plan import Row
from ..errors import NoTargetError
from ..instance import Transition
from ..refs import target_value
from .connection import DatabaseOptions, database_options
from .edit import change_text
from .failure import Failure, no_instance
from .json_text import json_option, print_json, print_json_rows
from .options import target
from .rows import age_text, clean

__all__ = ["diff", "history"]

_MAX_CHANGES: Final = 10  # shown of one transition; --json and `diff` have all


@click.command()
@click.argument("to", metavar="TARGET", type=target)
@click.option(
    "--after", type=click.IntRange(0), metavar="SEQ", help="Only transitions after this number. Default: all."
)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=1000,
    show_default=True,
    help="Maximum number of transitions.",
)
@json_option
@database_options()
def history(db: DatabaseOptions, to: int | str, after: int | None, limit: int, as_json: bool) -> None:
    """Show the committed transitions of an instance, oldest first.

    TARGET is an id or a correlation key. States and their changes are kept for machines with history="all", and for
    edits. Transitions older than retention_executions are not shown.
    """
    found = _read(db, to, after, limit)
    if as_json:
        print_json_rows(_json(one) for one in found)
        return
    for one in found:
        click.echo(_line(one))
        for text in _change_lines(one):
            click.echo(f"      {text}")
    if found and len(found) < limit:
        for line in _end(_row(db, to), found[-1]):
            click.echo(line)


@click.command()
@click.argument("to", metavar="TARGET", type=target)
@click.argument("first", metavar="[SEQ]", type=click.IntRange(0), required=False)
@click.argument("second", metavar="[SEQ]", type=click.IntRange(0), required=False)
@json_option
@database_options()
def diff(db: DatabaseOptions, to: int | str, first: int | None, second: int | None, as_json: bool) -> None:
    """Show how the state of an instance changed.

    TARGET is an id or a correlation key. With one SEQ: the changes of that transition. With two: from the first to the
    second; 0 is the insert. Without: from the insert to now.

    Exit code 0: shown, even if nothing differs; 2: usage error, a state was not kept, instance not found, or database
    unreachable.
    """
    if first is not None and second is None:
        first, second = first - 1, first
        if first < 0:
            raise Failure("transition 0 is the insert. Give a larger SEQ, or two.")
    if second is not None:
        _check_number(db, to, max(first or 0, second))
    before = _state(db, to, 0 if first is None else first)
    after = _current_state(db, to) if second is None else _state(db, to, second)
    found = list(differences(before, after))
    if as_json:
        print_json(found)
        return
    for one in found:
        click.echo(change_text(one))


def _read(db: DatabaseOptions, to: int | str, after: int | None, limit: int) -> Sequence[Transition]:
    try:
        return db.run(_verbs.history_of(target_value(to), after, limit))
    except NoTargetError as error:
        raise no_instance(to) from error


def _state(db: DatabaseOptions, to: int | str, seq: int) -> Any:
    """Return the state after one transition."""
    for one in _read(db, to, seq - 1 if seq else None, 1):
        if one.step_seq == seq and one.has_state:
            return one.state
    raise Failure(
        f'the state after transition {seq} was not kept. Machines keep states with history="all", from the next '
        "transition on."
    )


def _check_number(db: DatabaseOptions, to: int | str, seq: int) -> None:
    if seq > (last := _row(db, to)["step_seq"]):
        raise Failure(f"there is no transition {seq}: the last one is {last}")


def _row(db: DatabaseOptions, to: int | str) -> Row:
    row = db.run(snapshots.get(target_value(to)))
    if row is None:
        raise no_instance(to)
    return row


def _current_state(db: DatabaseOptions, to: int | str) -> Any:
    return msgspec.json.decode(_row(db, to)["state"])


def _end(row: Row, last: Transition) -> Iterator[str]:
    """Say how an instance ended, if its last transition does not: a cancel, a crash or an undo."""
    if row["finished_at"] is None or last.outcome in ("done", "stop") or last.step_seq < row["step_seq"]:
        return
    is_cancelled = row["status"] == "cancelled"
    by = f" by {clean(row['cancelled_by'])}" if is_cancelled and row["cancelled_by"] else ""
    why = row["cancel_reason"] if is_cancelled else row["last_error"]
    at = f"{row['finished_at'].astimezone():%Y-%m-%d %H:%M:%S}"
    yield f"      {at}  {row['status']}{by}{': ' + clean(why) if why else ''}"


def _json(one: Transition) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(one),
        "duration": _seconds(one.duration),
        "waited": _seconds(one.waited),
    }


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def _line(one: Transition) -> str:
    parts = [f"{one.step_seq:>4}", f"{one.finished_at.astimezone():%Y-%m-%d %H:%M:%S}"]
    # "undo" after the name of a step would read as if that step was undone.
    outcome = "starts undo" if one.outcome == "undo" else one.outcome
    name = f"{clean(one.step or '')} {outcome}".strip()
    parts.append(f"{name} -> {clean(one.to)}" if one.to else name)
    return "  ".join(parts) + "".join(f", {fact}" for fact in _facts(one))


def _facts(one: Transition) -> Iterator[str]:
    if one.waited is not None and one.waited >= timedelta(seconds=1):
        yield f"waited {age_text(one.waited)}"
    if one.duration is not None:
        yield f"took {one.duration.total_seconds():.3f} s"
    if one.executions > 1:
        yield f"{one.executions} executions"
    if one.signals:
        yield f"consumed {', '.join(map(clean, one.signals))}"
    if one.children:
        yield f"{len(one.children)} {'child' if len(one.children) == 1 else 'children'}"
    if one.worker is not None:
        yield f"on {clean(one.worker)}"
    if one.error is not None:
        yield clean(one.error)


def _change_lines(one: Transition) -> Iterator[str]:
    changes = one.changes or ()
    yield from map(change_text, changes[:_MAX_CHANGES])
    if len(changes) > _MAX_CHANGES:
        yield f"… {len(changes) - _MAX_CHANGES} more: --json"
