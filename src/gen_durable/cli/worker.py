"""`gen-durable worker app.py:machines`: run machines until the process is told to stop."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import click

from .._db.pool import redacted
from ..config import Queue, environment_dsn
from ..telemetry import PickStop
from ..worker import Worker
from .failure import Failure
from .options import dsn_option, load_settings, queue, settings_options
from .targets import load

__all__ = ["worker"]


@click.command()
@click.argument("target")
@click.option(
    "--queue",
    "queues",
    type=queue,
    metavar="NAME=N",
    multiple=True,
    help="A queue, and how many of its steps run at once; may be repeated. Default: the machines' queues, 10 each.",
)
@dsn_option
@settings_options()
def worker(
    target: str,
    queues: tuple[tuple[str, Queue], ...],
    dsn: str | None,
    settings_file: Path | None,
    **settings: Any,
) -> None:
    """Run the machines of TARGET until SIGTERM or SIGINT.

    TARGET is a file (app.py: all machines written in it), something in a file (app.py:machines: a machine, a list of
    machines, or a Worker), or the same in a module (shop.machines:checkout).
    """
    loaded = load(target)
    if isinstance(loaded, Worker):
        given = [name for name, value in settings.items() if value is not None]
        if queues or dsn or settings_file or given:
            raise Failure(f"{target} is a Worker and has its settings in the code; leave the options out")
        ready = loaded
    else:
        ready = Worker(
            loaded, dsn=dsn, queues=_distinct(queues), settings=load_settings(settings_file, settings)
        )
    _announce(ready)
    ready.run()


def _distinct(queues: tuple[tuple[str, Queue], ...]) -> dict[str, Queue] | None:
    by_name = dict(queues)
    if len(by_name) < len(queues):
        raise Failure("a queue is given twice; one --queue NAME=N for each")
    return by_name or None


def _announce(ready: Worker) -> None:
    """Say that it works once it does: it has looked for work, and a signal from now on lets it drain."""

    def on_first_look(_: PickStop) -> None:
        unsubscribe()
        click.echo(_start_line(ready))

    unsubscribe = ready.telemetry.subscribe(on_first_look, PickStop)


def _start_line(ready: Worker) -> str:
    """Who runs what, where. Queues of the machines that are left to other workers are named: it may be a mistake."""
    machines = ", ".join(f"{each.name} v{each.version}" for each in ready.machines)
    queues = ", ".join(f"{name}={served.concurrency}" for name, served in ready.queues.items())
    elsewhere = sorted({each.queue for each in ready.machines} - set(ready.queues))
    left = f"; not {', '.join(elsewhere)}" if elsewhere else ""
    dsn = ready.dsn or environment_dsn()
    where = redacted(dsn) if dsn else "the embedded PostgreSQL"
    return f"gen-durable {metadata.version('gen_durable')} runs {machines} on {where}, queues {queues}{left}"
