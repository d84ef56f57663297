"""`gen-durable demo`."""

from __future__ import annotations

import asyncio
import signal

import click

from ..demo.scenario import run
from ..demo.screen import open_screen
from .extras import require_dashboard
from .options import dsn_option

__all__ = ["demo"]


@click.command()
@click.option(
    "--orders",
    type=click.IntRange(50, 10_000),
    metavar="N",
    default=300,
    show_default=True,
    help="Number of orders.",
)
@click.option(
    "--keep", is_flag=True, help="Afterwards let orders arrive, and keep the dashboard open until Ctrl-C."
)
@dsn_option
def demo(orders: int, keep: bool, dsn: str | None) -> None:
    """Run the demo: kill one of two workers, and check that nothing was lost.

    A shop runs on two worker processes. The demo kills one of them, and checks that no work was lost or committed
    twice. It uses a schema of its own, gen_durable_demo, and drops it first. Meanwhile it serves the dashboard, if the
    extra dash is installed, and prints its URL.

    Exit code 1: a check of the summary failed.
    """
    if keep:
        require_dashboard("demo --keep")
    # On SIGTERM as on SIGINT, exit through the with blocks that stop the worker processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        holds = asyncio.run(run(open_screen(), orders=orders, dsn=dsn, keep=keep))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    raise SystemExit(0 if holds else 1)
