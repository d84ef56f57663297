"""The root command. Errors of the library become a `Failure`; anything else is a bug and shows its traceback."""

from __future__ import annotations

from typing import Any

import click

from .. import __version__
from ..errors import GenDurableError
from .audit import audit
from .control import cancel, delete, restore, retry
from .db import db
from .demo import demo
from .failure import Failure
from .limits import limits
from .ls import ls
from .operations import doctor, explain, queues, workers
from .outbox import outbox
from .producing import insert, signal
from .schedules import schedules
from .show import show
from .wait import wait
from .worker import worker

__all__ = ["root"]


class Root(click.Group):
    """A group whose commands may raise what the library raises."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GenDurableError as error:
            raise Failure(str(error)) from error


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="gen-durable")
def root() -> None:
    """Durable state machines on PostgreSQL."""


for command in (
    *(
        db,
        demo,
        worker,
        insert,
        signal,
        ls,
        show,
        wait,
        cancel,
        retry,
        delete,
        restore,
        outbox,
        audit,
        schedules,
        limits,
    ),
):
    root.add_command(command)
for command in (workers, queues, explain, doctor):
    root.add_command(command)
