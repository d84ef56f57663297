"""The root command. It turns errors of the library into a `Failure`; other exceptions are bugs and show a traceback."""

from __future__ import annotations

from typing import Any

import click

from .. import __version__
from ..errors import GenDurableError
from .audit import audit
from .batches import batches
from .check import check
from .control import cancel, delete, restore, retry
from .dash import dash
from .db import db
from .demo import demo
from .dev import dev
from .edit import edit
from .failure import Failure
from .fork import fork
from .graph import graph
from .history import diff, history
from .limits import limits
from .ls import ls
from .machines import machines
from .openapi import openapi
from .operations import doctor, explain, queues, workers
from .outbox import outbox
from .producing import insert, signal
from .schedules import schedules
from .show import show
from .stats import stats, top
from .stream import stream
from .wait import wait
from .watch import tail, watch
from .worker import worker

__all__ = ["root"]


class Root(click.Group):
    """Show errors of the library as a `Failure`."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GenDurableError as error:
            raise Failure(str(error)) from error


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="gen-durable")
def root() -> None:
    """Durable state machines on PostgreSQL.

    Exit codes: 0 success; 1 negative result (a check found a problem, an instance failed, a confirmation was declined);
    2 usage error, instance not found, or database unreachable; 3 --timeout is over.
    """


for command in (
    *(db, demo, dev, worker, dash, openapi, graph, check),
    *(insert, signal, ls, show, history, diff, wait, watch, tail, stream, explain),
    *(cancel, retry, edit, fork, delete, restore, batches),
    *(stats, top, machines),
    *(workers, queues, limits, schedules, outbox, audit, doctor),
):
    root.add_command(command)
