"""`gen-durable insert` and `gen-durable signal`."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import click

from .. import _verbs
from .._checks import checked_delay, checked_moment, checked_name
from .._db.insert_by_name import NamedInsert
from .._db.plan import Plan
from .._verbs import NamedResult
from ..errors import EncodeError, NoTargetError
from ..instance import Delivered, Delivery
from .connection import DatabaseOptions, database_options
from .declared import undeclared
from .failure import Failure
from .groups import action_options, no_validate_option
from .json_text import json_option, print_json, read_json
from .options import duration, moment, target

__all__ = ["insert", "signal"]


@click.command()
@click.argument("machine")
@click.argument("state", metavar="[STATE-JSON]", default="{}")
@click.option("--step", metavar="NAME", help="First step. Default: the initial step of the machine.")
@click.option("--queue", metavar="NAME", help="Queue. Default: the queue of the machine.")
@click.option(
    "--priority",
    type=click.IntRange(-(2**15), 2**15 - 1),
    metavar="N",
    help="Smaller numbers run earlier. Default: that of the machine, or 0.",
)
@click.option("--in", "delay", type=duration, metavar="DURATION", help="Delay before the first run: 90s, 2h.")
@click.option(
    "--at",
    "eligible_at",
    type=moment,
    metavar="TIME",
    help="Earliest time of the first run: 2026-01-31T09:00Z.",
)
@click.option(
    "--correlation-key",
    metavar="KEY",
    help="Business key. Signals and commands can address the instance by it; one live instance has it at a time.",
)
@click.option("--unique-key", metavar="KEY", help="Insert nothing if an instance with this key exists.")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="Unique key of a request: repeated inserts return the first instance, as long as it is kept.",
)
@click.option(
    "--concurrency-key",
    metavar="KEY",
    help="Run one instance with this key at a time, or as many as its limit allows: importer, or tenant:7. "
    'Default: that of the machine; "": none.',
)
@click.option(
    "--rate-limit",
    metavar="NAME",
    help="Rate limit of the first step: crm, or crm:7 for a bucket of its own. Default: that of the machine; "
    '"": none.',
)
@click.option(
    "--weight",
    type=click.IntRange(1, 2**31 - 1),
    metavar="N",
    help="Tokens of the rate limit that the first step takes. Default: 1.",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(1, 2**31 - 1),
    metavar="N",
    help="Maximum number of attempts at a step. Default: that of the machine or of the retry policy.",
)
@click.option(
    "--version",
    type=click.IntRange(1, 2**31 - 1),
    metavar="N",
    help="Version of the machine. Default: the newest that a worker has registered.",
)
@no_validate_option
@action_options
@json_option
@database_options("max_payload")
def insert(
    db: DatabaseOptions,
    machine: str,
    state: str,
    no_validate: bool,
    reason: str | None,
    actor: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Insert an instance of a machine that a worker has registered.

    STATE-JSON is the state. Default: {}. "-" reads standard input. For a machine or job without state, give null.
    """
    checked_name(machine, "the machine")
    text = read_json(state, "the state", db.settings.max_payload)
    key = given["correlation_key"]
    if isinstance(target(key or ""), int):
        click.echo(
            f"warning: correlation key {key} consists of digits, which commands read as an id. "
            f"Use --where correlation-key={key}, or ls --correlation-key {key}.",
            err=True,
        )
    new = NamedInsert(fsm=machine, state=text, **_checked(**given))
    done = asyncio.run(_insert(db, new, reason, actor, validate=not no_validate))
    if as_json:
        print_json(done)
    elif done.inserted:
        click.echo(f"inserted {done.id}")
    else:
        click.echo(
            f"not inserted: instance {done.id} ({done.status}) has this key; see: gen-durable show {done.id}"
        )


@click.command()
@click.argument("to", metavar="TARGET", type=target)
@click.argument("name")
@click.argument("payload", metavar="[PAYLOAD-JSON]", default="null")
@click.option(
    "--dedup-key", metavar="KEY", help="Deliver a signal with this key at most once to the instance."
)
@click.option(
    "--no-validate", is_flag=True, help="Do not check the payload against what workers have registered."
)
@action_options
@json_option
@database_options("max_payload", "max_inbox")
def signal(
    db: DatabaseOptions,
    to: int | str,
    name: str,
    payload: str,
    dedup_key: str | None,
    no_validate: bool,
    reason: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Send signal NAME to an instance. Wakes the instance if it waits for it.

    TARGET is an id or a correlation key. PAYLOAD-JSON is the payload. Default: null. "-" reads standard input. The
    payload of a signal that the machine declares is checked before anything is written.
    """
    text = read_json(payload, "the payload", db.settings.max_payload)
    plan = _verbs.signal_with_reason(
        to, name, text, dedup_key, db.settings, reason, actor, validate=not no_validate
    )
    found, warning = asyncio.run(_signal(db, to, name, plan))
    if warning is not None:
        click.echo(f"warning: {warning}", err=True)
    is_awaited = isinstance(found, Delivered) and found.is_awaited
    if as_json:
        print_json({"id": found.id, "delivered": isinstance(found, Delivered), "is_awaited": is_awaited})
    elif not isinstance(found, Delivered):
        click.echo(f"not delivered: instance {found.id} already has a signal with this dedup key")
    elif is_awaited:
        click.echo(f"delivered to {found.id}, which was waiting for it")
    else:
        click.echo(f"delivered to the inbox of {found.id}; the instance is not waiting for it")


def _checked(
    *,
    unique_key: str | None,
    idempotency_key: str | None,
    delay: timedelta | None,
    eligible_at: datetime | None,
    **given: Any,
) -> dict[str, Any]:
    if unique_key is not None and idempotency_key is not None:
        raise Failure("--unique-key and --idempotency-key exclude each other. Give one of them.")
    if delay is not None and eligible_at is not None:
        raise Failure("--in and --at exclude each other. Give one of them.")
    return {
        **given,
        "unique_key": unique_key,
        "idempotency_key": idempotency_key,
        "delay": None if delay is None else checked_delay(delay, "--in"),
        "eligible_at": None if eligible_at is None else checked_moment(eligible_at, "--at"),
    }


async def _insert(
    db: DatabaseOptions, new: NamedInsert, reason: str | None, actor: str | None, *, validate: bool
) -> NamedResult:
    async with db.open() as database:
        return await database.run_in_transaction(_verbs.insert_named(new, reason, actor, validate=validate))


async def _signal(
    db: DatabaseOptions, to: int | str, name: str, plan: Plan[Delivery]
) -> tuple[Delivery, str | None]:
    async with db.open() as database:
        try:
            found = await database.run_in_transaction(plan)
            return found, await database.run(undeclared(found.id, "signal", name))
        except EncodeError as error:
            raise Failure(f"{error}. Correct the payload, or add --no-validate.") from error
        except NoTargetError as error:
            if isinstance(to, int):
                raise Failure(
                    f"{error}. If {to} is a correlation key: gen-durable ls --correlation-key {to}"
                ) from error
            raise
