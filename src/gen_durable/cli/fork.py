"""`gen-durable fork`: start a new instance after a transition of another one."""

from __future__ import annotations

import asyncio
import re

import click
import msgspec

from .. import _verbs
from .._typing import KEEP
from ..errors import UsageError
from ..instance import Forked
from ..refs import target_value
from .connection import DatabaseOptions, database_options
from .groups import action_options, no_validate_option
from .json_text import json_option, print_json, read_json
from .options import target

__all__ = ["fork"]


@click.command()
@click.argument("to", metavar="TARGET", type=target)
@click.option(
    "--at",
    type=click.IntRange(0),
    metavar="SEQ",
    help="The transition to start after. Default: the last one.",
)
@click.option("--state", metavar="JSON", help='New state instead of the kept one; "-" reads standard input.')
@click.option("--step", metavar="NAME", help="The step to start at. Default: the one that followed.")
@click.option("--correlation-key", metavar="KEY", help="Correlation key of the new instance.")
@click.option("--unique-key", metavar="KEY", help="Unique key of the new instance.")
@no_validate_option
@action_options
@json_option
@database_options("max_payload")
def fork(
    db: DatabaseOptions,
    to: int | str,
    at: int | None,
    state: str | None,
    step: str | None,
    correlation_key: str | None,
    unique_key: str | None,
    no_validate: bool,
    reason: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Insert a new instance that starts where TARGET was after a transition.

    TARGET is an id or a correlation key. A transition before the last one needs history="all", or --state. `history`
    shows their numbers. The new instance has no keys, signals or children of its origin. Its version is that of the
    state after the transition; --state and --step have to be of that version.

    Exit code 0: inserted; 2: usage error, a state or step was not kept, a key is taken, instance not found, or database
    unreachable.
    """
    text = None if state is None else read_json(state, "the state", db.settings.max_payload)

    async def run() -> Forked:
        plan = _verbs.fork(
            target_value(to),
            at,
            KEEP if text is None else msgspec.Raw(text.encode()),
            step,
            db.settings,
            correlation_key=correlation_key,
            unique_key=unique_key,
            machine=None,
            validate=not no_validate,
            reason=reason,
            actor=actor,
        )
        async with db.open() as database:
            forked, _ = await database.run(plan)
            return forked

    try:
        forked = asyncio.run(run())
    except UsageError as error:
        # The advice names arguments of Python, `step=`; they are options here.
        raise UsageError(error.problem, re.sub(r"\b(at|state|step)=", r"--\1", error.advice)) from None
    if as_json:
        print_json(forked)
    else:
        click.echo(f"inserted {forked.id}, forked from {forked.origin_id} after transition {forked.step_seq}")
