"""`gen-durable dash`: serve the dashboard."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from .. import __version__
from ..async_client import AsyncClient
from ..config import DASHBOARD_PORT, dashboard_token
from .connection import DatabaseOptions, database_options, described_server
from .extras import require_dashboard
from .failure import Failure

if TYPE_CHECKING:
    from ..dashboard import Dashboard, Role, User

__all__ = ["dash", "listen", "no_address"]

# Workers on the same machine go first.
_NICE: Final = 5


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=DASHBOARD_PORT,
    show_default=True,
    help="0: any free port.",
)
@click.option(
    "--users",
    "users_file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File of users, a line each: NAME:ROLE:PASSWORD. Roles: read, operate, admin.",
)
@click.option(
    "--allow-host",
    "allowed",
    metavar="NAME",
    multiple=True,
    help="Name under which browsers may reach it, beside loopback names and --host (repeatable). Default: any if "
    "--host is 0.0.0.0 or ::.",
)
@click.option(
    "--root-path",
    default="",
    metavar="PATH",
    help="Path under which a proxy serves it, such as /durable. The proxy removes it from requests.",
)
@click.option(
    "--proxy",
    "proxies",
    metavar="ADDRESS",
    multiple=True,
    help="Address or network of a proxy whose X-Forwarded-For and X-Forwarded-Proto are believed, such as 127.0.0.1 or "
    "10.0.0.0/8 (repeatable). Default: none.",
)
@click.option("--read-only", is_flag=True, help="Allow no changes.")
@click.option("--show-secrets", is_flag=True, help="Show values of keys like password. Default: hidden.")
@click.option(
    "--environment", default="", metavar="WORD", help="Word beside the logo, for example production."
)
@database_options()
def dash(
    db: DatabaseOptions,
    host: str,
    port: int,
    users_file: Path | None,
    allowed: tuple[str, ...],
    root_path: str,
    proxies: tuple[str, ...],
    read_only: bool,
    show_secrets: bool,
    environment: str,
) -> None:
    """Serve the dashboard until Ctrl-C.

    It authenticates by --users, or by a bearer token in GEN_DURABLE_DASH_TOKEN (TOKEN, or ROLE:TOKEN). Without these,
    it listens on loopback only, and prints a URL with a one-time token, which logs in one browser as admin.

    Exit code 0: stopped by a signal; 2: no authentication, the address is in use, or database unreachable.
    """
    require_dashboard("dash")
    if root_path:
        root_path = f"/{root_path.strip('/')}"
    from ..dashboard import User, create_app, hide_secrets
    from ..dashboard.guard import LOOPBACK
    from ..dashboard.serve import url_of

    tokens = _tokens()
    users = {} if users_file is None else _users(users_file)
    if host not in LOOPBACK and not tokens and not users:
        raise Failure(
            f"--host {host} is reachable from other machines, and there is no authentication. "
            "Set GEN_DURABLE_DASH_TOKEN, or give --users FILE."
        )
    # With other users, it may be printed to a log that several people read.
    one_time = "" if tokens or users else secrets.token_urlsafe(24)
    is_any = host in ("", "0.0.0.0", "::")  # noqa: S104 - compared only
    hosts = {*LOOPBACK, *allowed, *([] if is_any else [host])}
    client = AsyncClient(db.dsn, settings=db.settings)
    app = create_app(
        client,
        tokens=tokens,
        users=users,
        one_time={one_time: User("local", "admin")} if one_time else None,
        allowed_hosts=None if is_any and not allowed else hosts,
        read_only=read_only,
        redact=(lambda value: value) if show_secrets else hide_secrets,
        environment=environment,
    )
    if is_any and not allowed:
        click.echo(
            f"warning: --host {host} without --allow-host: requests for any host name are answered. "
            "Give the names under which browsers reach it: --allow-host NAME",
            err=True,
        )
    with listen(host, port) as listening:

        def announce() -> None:
            where = f"{described_server(client.dsn)}, schema {db.settings.schema}"
            click.echo(f"gen-durable {__version__} dashboard on {where}")
            click.echo(f"Open: {url_of(listening, one_time)}")

        app.on_new_token = lambda token: click.echo(f"Open: {url_of(listening, token)}")

        asyncio.run(_serve(db, client, app, listening, announce, root_path, proxies))


async def _serve(
    db: DatabaseOptions,
    client: AsyncClient,
    app: Dashboard,
    listening: socket.socket,
    announce: Callable[[], None],
    root_path: str,
    proxies: tuple[str, ...],
) -> None:
    from ..dashboard.serve import serve

    async with db.open():
        pass  # fails if there are no tables; a client would create them
    async with client, app.opened():
        # Not earlier: an embedded server that this process has started must not inherit it.
        os.nice(_NICE)
        await serve(app, listening, announce, root_path, proxies)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there."""
    from ..dashboard.serve import bind

    try:
        return bind(host, port)
    except OSError as error:
        raise no_address(host, port, error) from None


def no_address(host: str, port: int, error: OSError) -> Failure:
    """Return the failure to listen on an address."""
    advice = " Give another one: --port N, or --port 0 for any." if error.errno == errno.EADDRINUSE else ""
    return Failure(f"cannot listen on {host}, port {port}: {error.strerror or error}.{advice}")


def _tokens() -> dict[str, User]:
    from ..dashboard import User
    from ..dashboard.access import ROLES

    given = dashboard_token()
    if given is None:
        return {}
    role, colon, token = given.partition(":")
    if not colon:
        return {given: User("token", "admin")}
    found = next((one for one in ROLES if one == role), None)
    if found is None:
        # What precedes the colon may be a part of the token, so it is not shown.
        raise Failure(
            f"GEN_DURABLE_DASH_TOKEN does not begin with one of the roles {', '.join(ROLES)}; "
            "write ROLE:TOKEN, or a token without a colon"
        )
    return {token: User(f"token ({role})", found)}


def _users(file: Path) -> dict[str, tuple[str, Role]]:
    from ..dashboard.access import ROLES

    try:
        if file.stat().st_mode & 0o007:
            raise Failure(
                f"--users {file}: other accounts of this machine can access the file. Run: chmod o= {file}"
            )
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"cannot read {file}: {error}") from None
    found: dict[str, tuple[str, Role]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        role_name, _, password = rest.partition(":")
        role = next((one for one in ROLES if one == role_name), None)
        if not name or role is None or not password:
            raise Failure(
                f"{file}, line {number}: write NAME:ROLE:PASSWORD with a role of {', '.join(ROLES)}"
            )
        if name in found:
            raise Failure(f"{file}, line {number}: {name} is there twice")
        found[name] = password, role
    if not found:
        raise Failure(f"{file} has no users")
    return found
