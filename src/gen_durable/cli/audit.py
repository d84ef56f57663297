"""`gen-durable audit ls | level`: the audit log and its level."""

from __future__ import annotations

from typing import Any, Final, TypeVar, get_args

import click
import msgspec

from .. import _verbs
from ..audit import AuditEvent
from ..config import AuditLevel
from ..errors import NoTargetError
from .connection import DatabaseOptions, database_options
from .failure import no_instance
from .groups import ListGroup, action_options
from .json_text import json_option, print_json, print_json_rows
from .options import target
from .rows import by_text, clean, print_columns

__all__ = ["audit"]

T = TypeVar("T")
_COLUMNS: Final = ("NUMBER", "TIME", "SUBJECT", "EVENT", "ACTOR", "REASON", "DATA")


@click.group(cls=ListGroup)
def audit() -> None:
    """List audit events, and show or set the audit level. Without a command: ls."""


@audit.command("ls")
@click.argument("of", metavar="[TARGET]", required=False, type=target)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=100,
    show_default=True,
    help="Maximum number of events.",
)
@click.option(
    "--after", type=click.IntRange(min=1), metavar="NUMBER", help="With TARGET: only events after this one."
)
@click.option(
    "--before",
    type=click.IntRange(min=1),
    metavar="NUMBER",
    help="Without TARGET: only events before this one.",
)
@json_option
@database_options()
def list_events(
    db: DatabaseOptions,
    of: int | str | None,
    limit: int,
    after: int | None,
    before: int | None,
    as_json: bool,
) -> None:
    """List audit events.

    Without TARGET: the latest events of all instances, queues, limits and schedules, newest first. With TARGET, an id
    or a correlation key: the history of that instance, oldest first.
    """
    if after is not None and of is None:
        raise click.UsageError("--after needs a TARGET")
    if before is not None and of is not None:
        raise click.UsageError("--before cannot be combined with a TARGET; use --after")
    plan = _verbs.audit_log(before, limit) if of is None else _verbs.audit(of, after, limit)
    try:
        events = db.run(plan)
    except NoTargetError:
        assert of is not None  # noqa: S101 - without a target nothing can be missing
        raise no_instance(of) from None
    if as_json:
        print_json_rows(msgspec.structs.asdict(event) for event in events)
        return
    if not events:
        click.echo("no audit events", err=True)
        return
    print_columns([_COLUMNS, *map(_cells, events)])
    if len(events) == limit:
        page = "--before" if of is None else "--after"
        click.echo(f"{limit} shown. Next page: {page} {events[-1].number}", err=True)


@audit.command()
@click.argument("level", required=False, type=click.Choice(get_args(AuditLevel)))
@action_options
@json_option
@database_options()
def level(
    db: DatabaseOptions, level: AuditLevel | None, reason: str | None, actor: str | None, as_json: bool
) -> None:
    """Show the audit level, or set it for all processes.

    off: write nothing. failures: failures, crashes and actions of operators. all: every event.
    """
    if level is None:
        text: str = (level := db.run(_verbs.audit_level()))
    else:
        before, _ = db.run(_verbs.set_audit(level, reason, actor))
        text = f"audit level set to {level} (was {before})"
    if as_json:
        print_json({"level": level})
    else:
        click.echo(text)


def _cells(event: AuditEvent) -> tuple[str, ...]:
    return (
        str(event.number),
        f"{event.at.astimezone():%Y-%m-%d %H:%M:%S}",
        clean(event.subject or str(event.instance_id)),
        event.event,
        "-" if event.actor is None else by_text(event.actor, event.login).removeprefix("by "),
        clean(event.reason or "-"),
        " ".join(f"{name}={_value(name, value)}" for name, value in event.data.items()) or "-",
    )


def _value(name: str, value: Any) -> str:
    # People count attempts from 1.
    return clean(str(value + 1 if name == "attempt" else value))
