"""`gen-durable worker app.py:machines`: run machines until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import click

from .. import __version__
from .._db.address import shown
from .._dictionary import did_you_mean
from ..config import Queue, environment_dsn
from ..limits import Limit
from ..schedules import Schedule
from ..worker import Worker
from .failure import Failure
from .limits import limit
from .log import set_up_log
from .options import address, dsn_option, load_settings, prefix, queue, settings_options
from .targets import load

__all__ = ["worker"]

_log: Final = logging.getLogger("gen_durable.worker")


@click.command()
@click.argument("target", required=False)
@click.option(
    "--queue",
    "queues",
    type=queue,
    metavar="NAME=N",
    multiple=True,
    help="Queue to serve and its concurrency (repeatable). Default: the queues of the machines, 10 each. "
    "Further settings of the queue: mail=10,prefetch=5,min-demand=3,weight=2.",
)
@click.option(
    "--prefix",
    "prefixes",
    type=prefix,
    metavar="PREFIX[=N]",
    multiple=True,
    help="Serve all machines whose names have this prefix (billing.), in any queue, with concurrency N (repeatable). "
    "Replaces the default queues. Default: GEN_DURABLE_PREFIXES.",
)
@click.option(
    "--on-unknown",
    type=click.Choice(["fail", "leave"]),
    help="Instances under a prefix whose machine TARGET lacks: fail them, or leave them to others. Default: fail.",
)
@click.option(
    "--limit",
    "limits",
    type=limit,
    metavar="LIMIT",
    multiple=True,
    help="Limit to set unless it exists (repeatable): tenant=3 (executions at once per key), crm=100/1m (starts per "
    "minute), crm=100/1m/200 (with a burst of 200).",
)
@click.option(
    "--metrics",
    type=address,
    metavar="HOST:PORT",
    help="Serve Prometheus metrics there. Needs the extra prometheus.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Number of worker processes; one that crashes is restarted. Default: run in this process.",
)
@click.option(
    "--no-queues",
    is_flag=True,
    help="Serve no queue: run only the services for all workers (reaper, gc). Needs no TARGET.",
)
@click.option(
    "--health",
    metavar="[HOST:]PORT",
    help="Serve /healthz and /readyz there. Default host: 127.0.0.1. For Kubernetes probes: 0.0.0.0:PORT.",
)
@dsn_option
@settings_options()
def worker(
    target: str | None,
    queues: tuple[tuple[str, Queue], ...],
    prefixes: tuple[tuple[str, Queue], ...],
    on_unknown: Literal["fail", "leave"] | None,
    metrics: tuple[str, int] | None,
    processes: int | None,
    no_queues: bool,
    health: str | None,
    limits: tuple[Limit, ...],
    dsn: str | None,
    settings_file: Path | None,
    **settings: Any,
) -> None:
    """Run the machines of TARGET until SIGTERM or SIGINT.

    TARGET is a file (app.py: all machines, jobs and schedules that it defines or imports; __all__ narrows that), a
    variable of a file (app.py:machines: a machine, a list of machines, or a Worker), or the same in a module
    (shop.machines:checkout). A list of machines without schedules runs with the schedules of the file that insert one
    of them.

    The first signal drains: running steps get --drain-timeout to finish. A second signal skips the drain.

    Exit code 0: stopped by a signal; 1: with --processes, one of them failed; 2: usage error, database unreachable, or
    the worker failed.
    """
    if target is None and not no_queues:
        raise click.UsageError("Missing argument 'TARGET'.")
    if no_queues and (queues or prefixes):
        raise Failure("--no-queues excludes --queue and --prefix. Remove one of them.")
    loaded = [] if target is None else load(target)
    set_up_log()
    if isinstance(loaded, Worker):
        others = {
            "queue": queues,
            "prefix": prefixes,
            "on_unknown": on_unknown,
            "no_queues": no_queues,
            "health": health,
            "limit": limits,
            "dsn": dsn,
            "settings": settings_file,
        }
        given = [name for name, value in others.items() if value]
        given += [name for name, value in settings.items() if value is not None]
        if given:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise Failure(
                f"{target} is a Worker, which has its settings in the code. "
                f"Remove {options}, or give a list of machines."
            )
        ready = loaded
    else:
        ready = Worker(
            [each for each in loaded if not isinstance(each, Schedule)],
            dsn=dsn,
            queues={} if no_queues else _distinct(queues, "queue"),
            prefixes=_distinct(prefixes, "prefix"),
            on_unknown=on_unknown or "fail",
            schedules=[each for each in loaded if isinstance(each, Schedule)],
            health=health,
            limits=limits,
            settings=load_settings(settings_file, settings),
        )
    if metrics is not None:
        if processes is not None:
            raise Failure(
                "--metrics excludes --processes: each process needs its own port. Start the processes one by one."
            )
        _serve_metrics(ready, *metrics)

    def announce() -> None:
        # Called in the supervisor only, if there are several processes.
        _warn_of_idle(ready, target)
        click.echo(_start_line(ready, processes))

    ready.run(processes=processes, on_ready=announce)


def _serve_metrics(ready: Worker, host: str, port: int) -> None:
    try:
        from ..contrib.prometheus import Metrics
    except ImportError:
        raise Failure(
            "--metrics needs prometheus-client. Run: pip install 'gen_durable[prometheus]'"
        ) from None
    try:
        Metrics(ready).serve(host, port)
    except OSError as error:
        raise Failure(f"--metrics {host}:{port}: {error.strerror or error}") from None


def _distinct(given: tuple[tuple[str, Queue], ...], what: str) -> dict[str, Queue] | None:
    by_name = dict(given)
    if len(by_name) < len(given):
        raise Failure(f"a {what} is given twice. Give one --{what} for each.")
    return by_name or None


def _warn_of_idle(ready: Worker, target: str | None) -> None:
    """Warn about prefixes and queues that no machine of the worker is in: probably a misspelling."""
    for owned in ready.prefixes:
        if not any(each.name.startswith(owned) for each in ready.machines):
            _log.warning("no machine of %s has prefix %r; %s", target, owned, _fate(ready))
    queues = sorted({each.queue for each in ready.machines})
    if ready.served_queues and not ready.prefixes and not set(queues) & set(ready.served_queues):
        hints = (did_you_mean(name, queues) for name in ready.served_queues)
        hint = next(filter(None, hints), "")
        _log.warning("worker serves none of the queues of its machines (%s)%s", ", ".join(queues), hint)


def _fate(ready: Worker) -> str:
    if ready.leaves_unknown:
        return "its instances are left to other workers"
    return "its instances fail as no_handler_registered (to leave them to other workers: --on-unknown leave)"


def _start_line(ready: Worker, processes: int | None) -> str:
    """Return the line that names machines, server and queues, and the queues of the machines that it does not serve."""
    prefixes = tuple(ready.prefixes)
    ours = [
        each for each in ready.machines if each.queue in ready.served_queues or each.name.startswith(prefixes)
    ]
    machines = ", ".join(f"{each.name} v{each.version}" for each in (ours if prefixes else ready.machines))
    served = [*_sources("queues", ready.served_queues), *_sources("prefixes", ready.prefixes)]
    elsewhere = sorted({each.queue for each in ready.machines} - set(ready.served_queues))
    named = f"queue{'s' * (len(elsewhere) > 1)} {', '.join(elsewhere)}"
    left = f"; {named} left to other workers" if elsewhere and not prefixes else ""
    dsn = ready.dsn or environment_dsn()
    where = shown(dsn) if dsn else "the embedded PostgreSQL"
    number = f", in {processes} processes" if processes else ""
    what = f"{', '.join(served) or 'no queue'}{left}{number}"
    return f"gen-durable {__version__} runs {machines or 'no machine'} on {where}, {what}"


def _sources(kind: str, sources: Mapping[str, Queue]) -> list[str]:
    named = ", ".join(f"{name}={limits.concurrency}" for name, limits in sources.items())
    return [f"{kind} {named}"] if named else []
