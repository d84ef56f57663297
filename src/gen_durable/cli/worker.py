"""`gen-durable worker app.py:machines`: run machines until the process is told to stop."""

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
    help="A queue, and how many of its steps run at once; may be repeated. Default: the machines' queues, 10 each. "
    "More of Queue behind a comma: mail=10,prefetch=5,min-demand=3,weight=2.",
)
@click.option(
    "--prefix",
    "prefixes",
    type=prefix,
    metavar="PREFIX[=N]",
    multiple=True,
    help="A namespace of machines that this worker owns (billing.), and how many of their steps run at once; may be "
    "repeated, and stands instead of queues unless those are given too. Default: GEN_DURABLE_PREFIXES, if it is set.",
)
@click.option(
    "--on-unknown",
    type=click.Choice(["fail", "leave"]),
    help="What becomes of an instance under a prefix whose machine TARGET does not have. Default: fail.",
)
@click.option(
    "--limit",
    "limits",
    type=limit,
    metavar="LIMIT",
    multiple=True,
    help="A limit to set if there is none of its name: tenant=3 (executions of a key at once), crm=100/1m (starts per "
    "minute), crm=100/1m/200 (200 of them at one moment); may be repeated.",
)
@click.option(
    "--metrics",
    type=address,
    metavar="HOST:PORT",
    help="Answer Prometheus there (needs the extra prometheus).",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Work in so many processes; one that crashes is started again. Default: in this one.",
)
@click.option(
    "--no-queues",
    is_flag=True,
    help="Serve no queue: only run the services that serve everybody (reaper, gc). Needs no TARGET.",
)
@click.option(
    "--health",
    metavar="[HOST:]PORT",
    help="Answer /healthz and /readyz there. Default host: 127.0.0.1. Kubernetes probes need 0.0.0.0:PORT.",
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

    TARGET is a file (app.py: all machines and schedules written in it), something in a file (app.py:machines: a
    machine, a list of machines, or a Worker), or the same in a module (shop.machines:checkout).
    """
    if target is None and not no_queues:
        raise click.UsageError("Missing argument 'TARGET'.")
    if no_queues and (queues or prefixes):
        raise Failure("--no-queues serves none; leave --queue and --prefix out, or it")
    loaded = [] if target is None else load(target)
    set_up_log()
    if isinstance(loaded, Worker):
        given = [name for name, value in settings.items() if value is not None]
        if queues or prefixes or on_unknown or no_queues or health or limits or dsn or settings_file or given:
            raise Failure(f"{target} is a Worker and has its settings in the code; leave the options out")
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
                "--metrics and --processes: every process needs a port of its own; start them one by one"
            )
        _serve_metrics(ready, *metrics)

    def tell() -> None:
        # Not before: of several processes only the one that looks after them comes here.
        _warn_of_idle(ready, target)
        click.echo(_start_line(ready, processes))

    ready.run(processes=processes, on_ready=tell)


def _serve_metrics(ready: Worker, host: str, port: int) -> None:
    try:
        from ..contrib.prometheus import Metrics
    except ImportError:
        raise Failure("--metrics needs prometheus-client: pip install 'gen_durable[prometheus]'") from None
    try:
        Metrics(ready).serve(host, port)
    except OSError as error:
        raise Failure(f"--metrics {host}:{port}: {error.strerror or error}") from None


def _distinct(given: tuple[tuple[str, Queue], ...], what: str) -> dict[str, Queue] | None:
    by_name = dict(given)
    if len(by_name) < len(given):
        raise Failure(f"a {what} is given twice; one --{what} for each")
    return by_name or None


def _warn_of_idle(ready: Worker, target: str | None) -> None:
    """Who serves what none of its machines is in has rather made a mistake, and waits for ever, or fails what comes."""
    for owned in ready.prefixes:
        if not any(each.name.startswith(owned) for each in ready.machines):
            _log.warning("no machine of %s begins with %r; %s", target, owned, _fate(ready))
    queues = sorted({each.queue for each in ready.machines})
    if ready.served_queues and not ready.prefixes and not set(queues) & set(ready.served_queues):
        hints = (did_you_mean(name, queues) for name in ready.served_queues)
        hint = next(filter(None, hints), "")
        _log.warning("this worker serves none of the queues of its machines (%s)%s", ", ".join(queues), hint)


def _fate(ready: Worker) -> str:
    if ready.leaves_unknown:
        return "what is inserted under it is left to other workers"
    return "what is inserted under it fails as no_handler_registered (--on-unknown leave leaves it)"


def _start_line(ready: Worker, processes: int | None) -> str:
    """Who runs what, where. Queues of the machines that are left to other workers are named: it may be a mistake."""
    prefixes = tuple(ready.prefixes)
    ours = [
        each for each in ready.machines if each.queue in ready.served_queues or each.name.startswith(prefixes)
    ]
    machines = ", ".join(f"{each.name} v{each.version}" for each in (ours if prefixes else ready.machines))
    served = [*_sources("queues", ready.served_queues), *_sources("prefixes", ready.prefixes)]
    elsewhere = sorted({each.queue for each in ready.machines} - set(ready.served_queues))
    named = f"queue{'s' * (len(elsewhere) > 1)} {', '.join(elsewhere)}"
    left = f"; leaves {named} to other workers" if elsewhere and not prefixes else ""
    dsn = ready.dsn or environment_dsn()
    where = shown(dsn) if dsn else "the embedded PostgreSQL"
    number = f", in {processes} processes" if processes else ""
    what = f"{', '.join(served) or 'no queue'}{left}{number}"
    return f"gen-durable {__version__} runs {machines or 'no machine'} on {where}, {what}"


def _sources(kind: str, sources: Mapping[str, Queue]) -> list[str]:
    named = ", ".join(f"{name}={limits.concurrency}" for name, limits in sources.items())
    return [f"{kind} {named}"] if named else []
