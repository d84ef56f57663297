"""`gen-durable insert` and `gen-durable signal`."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import click
import msgspec

from .. import _verbs
from .._checks import checked_delay, checked_moment, checked_name
from .._db import audit, insert_by_name, snapshots
from .._db.insert_by_name import NamedInsert
from .._db.plan import Plan
from .._dictionary import did_you_mean
from ..config import Settings
from ..errors import NoTargetError
from ..instance import Delivered, Delivery
from .connection import Place, place_options
from .failure import Failure
from .groups import action_options
from .json_text import json_option, print_json, read_json
from .options import duration, moment, target

__all__ = ["check_known", "insert", "signal"]


class Insertion(msgspec.Struct, frozen=True):
    """What became of an insert."""

    id: int
    inserted: bool
    status: str
    """Of the new instance, or of the one that has the key."""


@click.command()
@click.argument("machine")
@click.argument("state", metavar="[STATE-JSON]", default="{}")
@click.option("--step", metavar="NAME", help="Begin here instead of at the machine's initial step.")
@click.option("--queue", metavar="NAME", help="Wait here instead of in the machine's queue.")
@click.option(
    "--priority",
    type=click.IntRange(-(2**15), 2**15 - 1),
    metavar="N",
    default=0,
    show_default=True,
    help="Smaller numbers run earlier.",
)
@click.option(
    "--in", "delay", type=duration, metavar="DURATION", help="Run no earlier than so long from now: 90s, 2h."
)
@click.option(
    "--at", "eligible_at", type=moment, metavar="MOMENT", help="Run no earlier than: 2026-01-31T09:00Z."
)
@click.option(
    "--correlation-key", metavar="KEY", help="What the business calls it; signals may be sent to this."
)
@click.option("--unique-key", metavar="KEY", help="Insert nothing if an instance has this key.")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="The same, for a request that may come twice: it gives the first instance for ever.",
)
@click.option(
    "--concurrency-key",
    metavar="KEY",
    help="Of the instances with this key, one at a time executes, unless a limit gives its name more slots.",
)
@click.option(
    "--rate-limit",
    metavar="NAME",
    help="The first step takes tokens from this limit: crm, or crm:7 for a part.",
)
@click.option(
    "--weight",
    type=click.IntRange(1, 2**31 - 1),
    metavar="N",
    help="How many tokens that takes. Default: 1.",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(1, 2**31 - 1),
    metavar="N",
    help="How often a step may be executed in all, where a retry policy counts.",
)
@click.option(
    "--version",
    type=click.IntRange(1, 2**31 - 1),
    metavar="N",
    help="Of this version of the machine. Default: the newest that a worker has registered.",
)
@action_options
@json_option
@place_options("max_payload")
def insert(
    place: Place,
    machine: str,
    state: str,
    reason: str | None,
    actor: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Insert an instance of a machine that a worker has registered.

    STATE-JSON is its state, {} if left out; "-" reads it from standard input. A machine or job without a state of its
    own takes null.
    """
    checked_name(machine, "the machine")
    text = read_json(state, "the state", place.settings.max_payload)
    key = given["correlation_key"]
    if isinstance(target(key or ""), int):
        click.echo(
            f"gen-durable: the correlation key {key} is all digits, which commands take for an id; "
            f"they find it by --where correlation-key={key}",
            err=True,
        )
    new = NamedInsert(fsm=machine, state=text, **_checked(**given))
    done = asyncio.run(_insert(place, new, reason, actor))
    if as_json:
        print_json(done)
    elif done.inserted:
        click.echo(f"inserted {done.id}")
    else:
        click.echo(f"{done.id} has that key already; it is {done.status}")


@click.command()
@click.argument("to", metavar="TARGET", type=target)
@click.argument("name")
@click.argument("payload", metavar="[PAYLOAD-JSON]", default="null")
@click.option("--dedup-key", metavar="KEY", help="The instance takes a signal with this key once only.")
@action_options
@json_option
@place_options("max_payload", "max_inbox")
def signal(
    place: Place,
    to: int | str,
    name: str,
    payload: str,
    dedup_key: str | None,
    reason: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Send a signal to an instance, and wake it if it waits for that.

    TARGET is an id, or a correlation key. PAYLOAD-JSON is null if left out; "-" reads it from standard input.
    """
    text = read_json(payload, "the payload", place.settings.max_payload)
    plan = _signalling(to, name, text, dedup_key, place.settings, reason, actor)
    found = asyncio.run(_signal(place, to, plan))
    is_awaited = isinstance(found, Delivered) and found.is_awaited
    if as_json:
        print_json({"id": found.id, "delivered": isinstance(found, Delivered), "is_awaited": is_awaited})
    elif not isinstance(found, Delivered):
        click.echo(f"{found.id} has had a signal with that dedup key; nothing was added")
    elif is_awaited:
        click.echo(f"delivered to {found.id}, which was waiting for it")
    else:
        click.echo(f"delivered to {found.id}; it lies in its inbox")


def _checked(
    *,
    unique_key: str | None,
    idempotency_key: str | None,
    delay: timedelta | None,
    eligible_at: datetime | None,
    **given: Any,
) -> dict[str, Any]:
    if unique_key is not None and idempotency_key is not None:
        raise Failure("--unique-key and --idempotency-key are both given; an idempotency key is a unique key")
    if delay is not None and eligible_at is not None:
        raise Failure("--in and --at are both given; both say when it may run")
    return {
        **given,
        "unique_key": unique_key,
        "idempotency_key": idempotency_key,
        "delay": None if delay is None else checked_delay(delay, "--in"),
        "eligible_at": None if eligible_at is None else checked_moment(eligible_at, "--at"),
    }


async def _insert(place: Place, new: NamedInsert, reason: str | None, actor: str | None) -> Insertion:
    async with place.open() as database:
        check_known(new, await database.run(insert_by_name.known_versions()))
        return await database.run_in_transaction(_insertion(new, reason, actor))


def _insertion(new: NamedInsert, reason: str | None, actor: str | None) -> Plan[Insertion]:
    id, is_new = yield from insert_by_name.insert(new)
    if is_new:
        yield from audit.give_reason(id, "created", reason, actor, {"machine": new.fsm})
    row = yield from snapshots.get(id)
    # Whoever holds the key may be gone for good by now.
    return Insertion(id, is_new, "gone" if row is None else row["status"])


def check_known(new: NamedInsert, known: Any) -> None:
    """Nobody would ever run a machine whose name is misspelt."""
    versions = known.get(new.fsm)
    if versions is None:
        hint = did_you_mean(new.fsm, tuple(known))
        there = f"there are {', '.join(known)}" if known else "none has registered any"
        raise Failure(
            f"no worker has registered a machine '{new.fsm}'{hint} ({there}); start its worker once"
        )
    if new.version is not None and new.version not in versions:
        raise Failure(
            f"no worker has registered version {new.version} of {new.fsm} "
            f"(there are {', '.join(map(str, versions))}); start its worker once"
        )


async def _signal(place: Place, to: int | str, plan: Plan[Delivery]) -> Delivery:
    async with place.open() as database:
        try:
            return await database.run_in_transaction(plan)
        except NoTargetError as error:
            if isinstance(to, int):
                raise Failure(
                    f"{error}; if {to} is a correlation key, gen-durable ls --correlation-key {to} has the id"
                ) from error
            raise


def _signalling(
    to: int | str,
    name: str,
    payload: str,
    dedup_key: str | None,
    settings: Settings,
    reason: str | None,
    actor: str | None,
) -> Plan[Delivery]:
    raw = msgspec.Raw(payload.encode())
    delivery, _ = yield from _verbs.signal(to, name, raw, dedup_key, settings)
    if isinstance(delivery, Delivered):
        yield from audit.give_reason(delivery.id, "signalled", reason, actor, {"signal": name})
    return delivery
