"""`gen-durable worker app.py:machines`: run machines until SIGTERM or SIGINT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .. import __version__
from ..worker import Worker
from .connection import described_server
from .failure import Failure
from .log import set_up_log
from .options import address, dsn_option, load_settings, settings_options
from .targets import load
from .worker_options import Selection, make, refuse_options, selection_options, served, warn_of_idle

__all__ = ["worker"]


@click.command()
@click.argument("target", required=False)
@selection_options
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
    selection: Selection,
    metrics: tuple[str, int] | None,
    processes: int | None,
    no_queues: bool,
    health: str | None,
    dsn: str | None,
    settings_file: Path | None,
    **settings: Any,
) -> None:
    """Run the machines of TARGET until SIGTERM or SIGINT.

    TARGET is a file (app.py: all machines, jobs and schedules that it defines or imports; __all__ narrows that; a
    machine object at module level replaces its class), a variable of a file (app.py:machines: a machine, a list of
    machines, or a Worker), or the same in a module (shop.machines:checkout). A list of machines without schedules runs
    with the schedules of the file that insert one of them.

    The first signal drains: running steps get --drain-timeout to finish. A second signal skips the drain.

    Exit code 0: stopped by a signal; 1: with --processes, one of them failed; 2: usage error, database unreachable, or
    the worker failed.
    """
    if target is None and not no_queues:
        raise click.UsageError("Missing argument 'TARGET'.")
    if no_queues and (selection.queues or selection.prefixes):
        raise Failure("--no-queues excludes --queue and --prefix. Remove one of them.")
    loaded = [] if target is None else load(target, to_run=True)
    set_up_log()
    if isinstance(loaded, Worker):
        others = {"no_queues": no_queues or None, "health": health, "dsn": dsn, "settings": settings_file}
        refuse_options(target, selection, {**others, **settings})
        ready = loaded
    else:
        ready = make(
            loaded,
            selection,
            dsn,
            load_settings(settings_file, settings),
            serves_queues=not no_queues,
            health=health,
        )
    if metrics is not None:
        if processes is not None:
            raise Failure(
                "--metrics excludes --processes: each process needs its own port. Start the processes one by one."
            )
        _serve_metrics(ready, *metrics)

    def announce() -> None:
        # Called in the supervisor only, if there are several processes.
        warn_of_idle(ready, target)
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


def _start_line(ready: Worker, processes: int | None) -> str:
    """Return the line that names machines, server and queues."""
    machines, queues = served(ready)
    where = described_server(ready.dsn)
    number = f", in {processes} processes" if processes else ""
    return f"gen-durable {__version__} runs {machines} on {where}, {queues}{number}"
