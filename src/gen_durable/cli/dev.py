"""`gen-durable dev app.py`: a database, a worker that reloads and the dashboard, for development."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click

from .. import __version__
from .._runtime.processes.supervisor import CrashedWorkers
from .._schema import migrate_schema, schema_status
from .._server import Server
from ..async_client import AsyncClient
from ..config import DASHBOARD_PORT, Settings, is_supervised
from ..errors import GenDurableError
from ..telemetry import PickStop, Telemetry
from ..worker import Worker
from .connection import described_server
from .dash import listen, no_address
from .extras import require_dashboard
from .failure import Failure
from .log import set_up_log
from .options import dsn_option, load_settings, settings_options
from .reloading import BROKEN, ReloadingWorker
from .sources import Sources
from .targets import load
from .worker_options import Selection, make, refuse_options, selection_options, served, warn_of_idle

__all__ = ["dev"]

_HOST: Final = "127.0.0.1"
# A step that a change interrupts runs again, so it need not end first. The dashboard shows former states only
# if they are kept.
_DEFAULTS: Final = {"drain_timeout": timedelta(seconds=2), "history": "all"}


@click.command()
@click.argument("target")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help=f"Port of the dashboard; 0: any free port. Default: {DASHBOARD_PORT}, or any free port if it is in use.",
)
@click.option(
    "--watch",
    type=click.Path(path_type=Path, exists=True),
    metavar="PATH",
    multiple=True,
    help="File, or directory all of whose files, that restart the worker when they change (repeatable). Python "
    "files below the current directory and below that of TARGET always do.",
)
@selection_options
@dsn_option
@settings_options(defaults=_DEFAULTS)
def dev(
    target: str,
    port: int | None,
    watch: tuple[Path, ...],
    selection: Selection,
    dsn: str | None,
    settings_file: Path | None,
    **given: Any,
) -> None:
    """Run everything that development needs: a database, a worker for TARGET, and the dashboard.

    TARGET is the same as for `worker`. Without --dsn, it uses the embedded server of the current directory. It installs
    and upgrades the tables, and prints the URL of the dashboard, with a one-time token.

    When a Python file changes, a new process replaces the worker: running steps get --drain-timeout, and then run
    again. If TARGET cannot be imported, the next change starts it again. A worker that crashes is restarted, and its
    instances continue at once.

    Exit code 0: stopped by a signal; 2: usage error, the address is in use, or database unreachable.
    """
    settings = load_settings(settings_file, given, _DEFAULTS)
    if is_supervised():
        _work(target, selection, dsn, settings, given)
        return
    require_dashboard("dev")
    _check_file(target)
    set_up_log()
    sources = Sources(_directories(target), [*watch, *([settings_file] if settings_file else [])])
    with _listen(port) as listening:
        asyncio.run(_run(dsn, settings, listening, sources))


async def _run(dsn: str | None, settings: Settings, listening: socket.socket, sources: Sources) -> None:
    from ..dashboard.serve import Server as DashboardServer
    from ..dashboard.serve import local_dashboard, url_of

    client = AsyncClient(dsn, settings=settings)
    app, token = local_dashboard(client, environment="dev")
    app.on_new_token = lambda token: click.echo(f"Open: {url_of(listening, token)}")

    def announce() -> None:
        where = f"{described_server(client.dsn)}, schema {settings.schema}"
        click.echo(f"gen-durable {__version__} dev on {where}")
        click.echo(f"Open: {url_of(listening, token)}")

    await _migrate(dsn, settings)
    async with client, app.opened():
        crashed = CrashedWorkers(settings, client._database, Telemetry())  # noqa: SLF001 - as a supervisor does
        worker = ReloadingWorker(sources, crashed, settings.drain_timeout.total_seconds())
        server = DashboardServer(app, announce)

        def stop() -> None:
            worker.stop()
            server.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listening]))
            group.create_task(worker.run())


async def _migrate(dsn: str | None, settings: Settings) -> None:
    before = await schema_status(dsn, settings.schema, settings.pooler)
    if before.is_current:
        return
    after = await migrate_schema(dsn, settings.schema, None, settings.pooler)
    if before.version is not None:
        click.echo(f"upgraded schema '{after.name}' from version {before.version} to {after.version}")


def _work(
    target: str, selection: Selection, dsn: str | None, settings: Settings, given: dict[str, Any]
) -> None:
    """Run the worker, in the process that `ReloadingWorker` has started."""
    try:
        ready = _loaded(target, selection, dsn, settings, given)
    except (click.ClickException, GenDurableError) as error:
        shown = error if isinstance(error, click.ClickException) else Failure(str(error))
        shown.show()
        raise SystemExit(BROKEN) from None
    set_up_log()

    def announce(_: PickStop) -> None:
        unsubscribe()
        warn_of_idle(ready, target)
        click.echo("worker runs {}, {}".format(*served(ready)))

    unsubscribe = ready.telemetry.subscribe(announce, PickStop)
    ready.run()


def _loaded(
    target: str, selection: Selection, dsn: str | None, settings: Settings, given: dict[str, Any]
) -> Worker:
    loaded = load(target, to_run=True)
    if not isinstance(loaded, Worker):
        return make(loaded, selection, dsn, settings)
    refuse_options(target, selection, {**given, "schema": None, "pooler": None})
    ours = (Server.choose(dsn).dsn, settings.schema)
    if (loaded.dsn, loaded.settings.schema) != ours:
        here = f"{described_server(str(ours[0]))}, schema {ours[1]}"
        raise Failure(
            f"{target} is a Worker on another database or schema than dev, which uses {here}. Give --dsn and --schema "
            "of the Worker, or a list of machines."
        )
    return loaded


def _check_file(target: str) -> None:
    """Fail now if there is no such file: a misspelt name will not appear."""
    place = target.partition(":")[0]
    if place.endswith(".py") and not Path(place).is_file():
        raise Failure(f"file {Path(place).resolve()} does not exist")


def _directories(target: str) -> Iterator[Path]:
    """Return the current directory, and that of a target that is elsewhere."""
    here = Path.cwd()
    yield here
    place = target.partition(":")[0]
    if place.endswith(".py"):
        directory = Path(place).resolve().parent
        while (directory / "__init__.py").is_file():
            directory = directory.parent
        if not directory.is_relative_to(here):
            yield directory


def _listen(port: int | None) -> socket.socket:
    from ..dashboard.serve import bind_default

    if port is not None:
        return listen(_HOST, port)
    try:
        return bind_default()
    except OSError as error:
        raise no_address(_HOST, DASHBOARD_PORT, error) from None
