"""`gen-durable workers | queues | explain | doctor`: what operators ask and say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from .. import _verbs
from .._db import snapshots
from .._db.plan import Plan
from ..errors import NoTargetError, PauseTimeoutError
from ..findings import Finding
from ..operations import QueueControl, QueueStatus, WorkerInfo
from .connection import Place, place_options
from .failure import TIMED_OUT, Failure, no_instance
from .groups import ListGroup, action_options
from .json_text import json_option, print_json, print_json_rows
from .options import duration, target
from .rows import age_text, clean, print_columns

__all__ = ["doctor", "explain", "queues", "workers"]

T = TypeVar("T")


@click.command()
@json_option
@place_options()
def workers(place: Place, as_json: bool) -> None:
    """List the workers of this database, and those that died within the last ten minutes."""
    now, found = asyncio.run(_run(place, _with_time(_verbs.workers())))
    if as_json:
        print_json_rows(found)
    elif found:
        print_columns([_WORKER_COLUMNS, *(_worker_cells(each, now) for each in found)])
    else:
        click.echo("no worker is there", err=True)


_WORKER_COLUMNS = ("NAME", "STATE", "UP", "SEEN", "VERSION", "SERVES", "MACHINES")


def _worker_cells(each: WorkerInfo, now: datetime) -> tuple[str, ...]:
    state = "silent" if not each.is_live else "draining" if each.is_draining else "live"
    served = [*each.queues, *(f"{prefix}*" for prefix in each.prefixes)]
    machines = [f"{name} v{version}" for name, version in each.machines]
    return (
        clean(each.name),
        state,
        age_text(now - each.started_at),
        age_text(now - each.seen_at),
        each.version,
        clean(", ".join(served)) or "-",
        clean(", ".join(machines)) or "-",
    )


@click.group(cls=ListGroup)
def queues() -> None:
    """List the queues and what waits in them; or pause, resume or set one of them."""


@queues.command("ls")
@json_option
@place_options()
def list_queues(place: Place, as_json: bool) -> None:
    """List the queues and what waits in them."""
    found = asyncio.run(_run(place, _verbs.queues()))
    if as_json:
        print_json_rows(found)
    elif found:
        print_columns([_QUEUE_COLUMNS, *(_queue_cells(each) for each in found)])
    else:
        click.echo("there is no queue yet", err=True)


_QUEUE_COLUMNS = ("QUEUE", "STATE", "DUE", "OLDEST", "FUTURE", "GATED", "EXECUTING", "WORKERS", "CONCURRENCY")


def _queue_cells(each: QueueStatus) -> tuple[str, ...]:
    return (
        clean(each.name),
        _state(each),
        str(each.due),
        "-" if each.oldest is None else age_text(each.oldest),
        str(each.future),
        str(each.gated),
        str(each.executing),
        str(each.workers),
        "-" if each.concurrency is None else str(each.concurrency),
    )


def _state(queue: QueueStatus) -> str:
    if not queue.is_paused:
        return "open"
    return "paused" + (f" by {clean(queue.paused_by)}" if queue.paused_by else "")


def _on_queue(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("name")(action_options(place_options()(command)))


@queues.command()
@click.option("--wait", is_flag=True, help="Return when every live worker has confirmed.")
@click.option(
    "--timeout", type=duration, metavar="DURATION", help="With --wait: how long to wait at most: 30s."
)
@_on_queue
def pause(
    place: Place, name: str, reason: str | None, actor: str | None, wait: bool, timeout: timedelta | None
) -> None:
    """Pause the queue NAME: workers start nothing from it until it is resumed.

    Exit code 3: live workers have not confirmed within --timeout. The queue stays paused.
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout needs --wait")
    try:
        said = asyncio.run(_pause(place, name, reason, actor, wait=wait, timeout=timeout))
    except PauseTimeoutError as error:
        click.echo(f"gen-durable: {clean(str(error))}", err=True)
        raise SystemExit(TIMED_OUT) from None
    if not said.is_paused:
        raise Failure(f"queue {clean(name)} was resumed before every worker had confirmed the pause")
    click.echo(f"queue {clean(name)} is paused{', confirmed by every live worker' if wait else ''}")


async def _pause(
    place: Place, name: str, reason: str | None, actor: str | None, *, wait: bool, timeout: timedelta | None
) -> QueueControl:
    confirming = _verbs.confirming(name, wait=wait, timeout=timeout, is_borrowed=False)
    async with place.open() as database:
        known = {queue.name for queue in await database.run(_verbs.queues())}
        said, _ = await database.run(_verbs.pause_queue(name, reason, actor))
        if name not in known:
            click.echo(
                f"notice: no worker, machine or due instance is in queue {clean(name)}; check the name",
                err=True,
            )
        pause: float | None = None if confirming is None else 0.0
        while confirming is not None and pause is not None:
            await asyncio.sleep(pause)
            said, pause = await database.run(confirming.plan())
    return said


@queues.command()
@_on_queue
def resume(place: Place, name: str, reason: str | None, actor: str | None) -> None:
    """Serve the queue NAME again."""
    asyncio.run(_run(place, _verbs.resume_queue(name, reason, actor)))
    click.echo(f"queue {clean(name)} is open")


@queues.command("set")
@click.option(
    "--concurrency", type=click.IntRange(min=1), metavar="N", help="How many at once in each worker."
)
@click.option("--reset", is_flag=True, help="As each worker was told.")
@_on_queue
def set_(
    place: Place, name: str, concurrency: int | None, reset: bool, reason: str | None, actor: str | None
) -> None:
    """Give the queue NAME another concurrency in every worker."""
    if (concurrency is None) != reset:
        raise click.UsageError("give either --concurrency N or --reset")
    asyncio.run(_run(place, _verbs.set_queue(name, concurrency, reason, actor)))
    told = "as each worker was told" if concurrency is None else f"{concurrency} in each worker"
    click.echo(f"queue {clean(name)} runs {told}")


@click.command()
@click.argument("instance", type=target)
@json_option
@place_options()
def explain(place: Place, instance: int | str, as_json: bool) -> None:
    """Say why INSTANCE, an id or a correlation key, does not run."""
    try:
        found = asyncio.run(_run(place, _verbs.explain(instance)))
    except NoTargetError:
        raise no_instance(instance) from None
    if as_json:
        print_json(found)
        return
    for line in str(found).split("\n"):
        click.echo(clean(line))


@click.command()
@json_option
@place_options("lease", "heartbeat", "reap_interval")
@click.pass_context
def doctor(ctx: click.Context, place: Place, as_json: bool) -> None:
    """Look for what is wrong with the database and its workers. Exit code 1: something is."""
    findings = asyncio.run(_examine(place))
    if as_json:
        print_json_rows(findings)
    else:
        for finding in findings:
            what, fix = str(finding).split("\n", 1)
            click.echo(f"{clean(what)}\n  {clean(fix.strip())}")
        if not findings:
            click.echo("all is well")
    if any(finding.severity == "problem" for finding in findings):
        ctx.exit(1)


async def _examine(place: Place) -> Sequence[Finding]:
    async with place.open(of_any_age=True) as database:
        return await database.run(_verbs.doctor(place.settings))


async def _run(place: Place, plan: Plan[T]) -> T:
    async with place.open() as database:
        return await database.run(plan)


def _with_time(plan: Plan[T]) -> Plan[tuple[datetime, T]]:
    now = yield from snapshots.now()
    return now, (yield from plan)
