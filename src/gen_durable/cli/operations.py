"""`gen-durable workers | queues | explain | doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from .. import _verbs
from .._db import snapshots
from .._db.plan import Plan
from .._polling import poll
from ..errors import NoTargetError, PauseTimeoutError
from ..findings import Finding
from ..operations import QueueControl, QueueStatus, WorkerInfo
from .connection import DatabaseOptions, database_options
from .failure import TIMED_OUT, Failure, no_instance
from .groups import ListGroup, action_options
from .json_text import json_option, print_json, print_json_rows
from .options import duration, target
from .rows import age_text, clean, print_columns

__all__ = ["doctor", "explain", "queues", "workers"]

T = TypeVar("T")


@click.command()
@json_option
@database_options()
def workers(db: DatabaseOptions, as_json: bool) -> None:
    """List workers.

    State live: it reports on every heartbeat; draining: it finishes its steps and starts nothing; silent: it stopped
    reporting in the last 10 minutes; blocked: a step blocks its event loop.

    LEASED: executions at the last heartbeat, of how many it runs at once. SERVES: queues and prefixes, with how many of
    their executions run at once.
    """
    now, found = db.run(_with_time(_verbs.workers()))
    if as_json:
        print_json_rows(found)
    elif found:
        print_columns([_WORKER_COLUMNS, *(_worker_cells(each, now) for each in found)])
    else:
        click.echo("no workers", err=True)


_WORKER_COLUMNS = ("NAME", "STATE", "UP", "SEEN", "LEASED", "VERSION", "SERVES", "MACHINES")


def _worker_cells(each: WorkerInfo, now: datetime) -> tuple[str, ...]:
    state = "draining" if each.is_draining else "live"
    if not each.is_live:
        state = "silent"
    elif each.blocked is not None:
        by = f" by {each.blocked.machine} {each.blocked.id}" if each.blocked.machine else ""
        state = f"blocked{clean(by)}"
    served = [f"{name} {capacity}" for name, capacity in each.capacities.items()]
    machines = [f"{name} v{version}" for name, version in each.machines]
    return (
        clean(each.name),
        state,
        age_text(now - each.started_at),
        age_text(now - each.seen_at),
        f"{each.in_flight}/{_capacity(each)}",
        each.version,
        clean(", ".join(served)) or "-",
        clean(", ".join(machines)) or "-",
    )


def _capacity(each: WorkerInfo) -> int:
    total = sum(each.capacities.values())
    return total if each.capacity is None else min(each.capacity, total)


@click.group(cls=ListGroup)
def queues() -> None:
    """List, pause and resume queues, and set their concurrency. Without a command: ls."""


@queues.command("ls")
@json_option
@database_options()
def list_queues(db: DatabaseOptions, as_json: bool) -> None:
    """List queues and their waiting instances.

    OLDEST is how long the oldest due instance has waited. GATED instances wait for a concurrency slot. CONCURRENCY is
    the value of `queues set`. 10000 means at least 10000.
    """
    found = db.run(_verbs.queues())
    if as_json:
        print_json_rows(found)
    elif found:
        print_columns([_QUEUE_COLUMNS, *(_queue_cells(each) for each in found)])
    else:
        click.echo("no queues", err=True)


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
    return click.argument("name")(action_options(json_option(database_options()(command))))


@queues.command()
@click.option("--wait", is_flag=True, help="Wait until every live worker has confirmed.")
@click.option(
    "--timeout",
    type=duration,
    metavar="DURATION",
    help="With --wait: longest wait, for example 30s. Default: no limit.",
)
@_on_queue
def pause(
    db: DatabaseOptions,
    name: str,
    reason: str | None,
    actor: str | None,
    as_json: bool,
    wait: bool,
    timeout: timedelta | None,
) -> None:
    """Pause queue NAME: workers start nothing from it until it is resumed.

    Running steps finish. A queue that no worker serves is paused as well, with a warning.

    Exit code 3: not confirmed within --timeout. The queue stays paused.
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout needs --wait")
    try:
        queue = asyncio.run(_pause(db, name, reason, actor, wait=wait, timeout=timeout))
    except PauseTimeoutError as error:
        click.echo(f"gen-durable: {clean(str(error))}", err=True)
        raise SystemExit(TIMED_OUT) from None
    if not queue.is_paused:
        raise Failure(f"queue {clean(name)} was resumed before all workers had confirmed the pause")
    _print(queue, f"queue {clean(name)} paused{', confirmed by all live workers' if wait else ''}", as_json)


async def _pause(
    db: DatabaseOptions,
    name: str,
    reason: str | None,
    actor: str | None,
    *,
    wait: bool,
    timeout: timedelta | None,
) -> QueueControl:
    confirmation = _verbs.pause_confirmation(name, wait=wait, timeout=timeout, has_conn=False)
    async with db.open() as database:
        queue, _ = await database.run(_verbs.pause_queue(name, reason, actor, _warn))
        return queue if confirmation is None else await poll(lambda: database.run(confirmation.plan()))


def _warn(text: str) -> None:
    click.echo(f"warning: {clean(text)}", err=True)


@queues.command()
@_on_queue
def resume(db: DatabaseOptions, name: str, reason: str | None, actor: str | None, as_json: bool) -> None:
    """Resume queue NAME."""
    queue, _ = db.run(_verbs.resume_queue(name, reason, actor))
    _print(queue, f"queue {clean(name)} resumed", as_json)


@queues.command("set")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum number of steps at once in each worker process.",
)
@click.option("--reset", is_flag=True, help="Use the concurrency that each worker was started with.")
@_on_queue
def set_(
    db: DatabaseOptions,
    name: str,
    concurrency: int | None,
    reset: bool,
    reason: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Set the concurrency of queue NAME in all workers. Takes effect within poll_interval."""
    if (concurrency is None) != reset:
        raise click.UsageError("give either --concurrency N or --reset")
    queue, _ = db.run(_verbs.set_queue(name, concurrency, reason, actor))
    value = "reset to that of each worker" if concurrency is None else f"set to {concurrency} per worker"
    _print(queue, f"concurrency of queue {clean(name)} {value}", as_json)


def _print(queue: QueueControl, text: str, as_json: bool) -> None:
    if as_json:
        print_json(queue)
    else:
        click.echo(text)


@click.command()
@click.argument("instance", metavar="TARGET", type=target)
@json_option
@database_options()
def explain(db: DatabaseOptions, instance: int | str, as_json: bool) -> None:
    """Explain why an instance does not run: state, since when, cause, fix.

    TARGET is an id or a correlation key.
    """
    try:
        found = db.run(_verbs.explain(instance))
    except NoTargetError:
        raise no_instance(instance) from None
    if as_json:
        print_json(found)
        return
    for line in str(found).split("\n"):
        click.echo(clean(line))


@click.command()
@json_option
@database_options("lease", "heartbeat", "reap_interval")
@click.pass_context
def doctor(ctx: click.Context, db: DatabaseOptions, as_json: bool) -> None:
    """Check the database and its workers. Each finding says what to do.

    Give --lease, --heartbeat and --reap-interval as the workers have them.

    Exit code 0: no problem, at most notices; 1: at least one problem.
    """
    findings = asyncio.run(_check(db))
    if as_json:
        print_json_rows(findings)
    else:
        for finding in findings:
            what, fix = str(finding).split("\n", 1)
            click.echo(f"{clean(what)}\n  {clean(fix.strip())}")
        if not findings:
            click.echo("no problems found")
    if any(finding.severity == "problem" for finding in findings):
        ctx.exit(1)


async def _check(db: DatabaseOptions) -> Sequence[Finding]:
    async with db.open(check_schema=False) as database:
        return await database.run(_verbs.doctor(db.settings))


def _with_time(plan: Plan[T]) -> Plan[tuple[datetime, T]]:
    now = yield from snapshots.now()
    return now, (yield from plan)
