"""`gen-durable db start`, `stop` and `status`: the embedded server of a directory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .._db.address import shown
from .._db.dsn import DsnError, without_password
from .._schema import Schema, schema_on
from .._server import Server
from ..config import environment_dsn
from ..embedded import EmbeddedPostgres
from .failure import Failure
from .json_text import json_option, print_json
from .options import dsn_option, load_settings, settings_options
from .rows import clean, print_columns

if TYPE_CHECKING:
    from .._db.sessions import SessionCount
    from ..embedded.control import Client, Status, Stopped

__all__ = ["described", "start", "status", "stop"]


@click.command()
@json_option
def start(as_json: bool) -> None:
    """Start the embedded server, keep it running, and print its DSN.

    It runs until `db stop`, also without workers and clients: export GEN_DURABLE_DSN=$(gen-durable db start). It is the
    server of GEN_DURABLE_HOME, or of the current directory; --dsn and GEN_DURABLE_DSN are ignored. Its data is
    created if it does not exist. Safe to repeat. Only the DSN is on stdout.

    After a restart of the machine, it starts with the next worker or client, or with `db start`.
    """
    server = EmbeddedPostgres()
    was_running = server.status().is_running
    try:
        dsn = server.keep()
    finally:
        server.close()
    found = server.status()
    if as_json:
        print_json({"dsn": dsn, "was_running": was_running, **_json(found)})
        return
    verb = "already runs" if was_running else "started"
    click.echo(
        f"embedded PostgreSQL {found.major} {verb} in {found.home}; it runs until: gen-durable db stop",
        err=True,
    )
    _warn_of_other_dsn(server)
    click.echo(dsn)


@click.command()
@click.option("--force", is_flag=True, help="Stop it with clients connected. They do not restart it.")
@json_option
def stop(force: bool, as_json: bool) -> None:
    """Stop the embedded server of GEN_DURABLE_HOME, or of the current directory.

    Without --force, it stops only if no worker, client or other program is connected. With --force, their connections
    break; they continue when it runs again. Workers and clients that open later start it, as always.

    Exit code 0: stopped, or was not running; 1: clients are connected, and nothing was changed; 2: it does not stop,
    or belongs to another account.
    """
    server = EmbeddedPostgres()
    result = server.stop(force=force)
    if as_json:
        print_json(
            {
                "home": str(server.home),
                "stopped": result.has_stopped,
                "was_running": result.was_running,
                **_connected_json(result),
            }
        )
    else:
        click.echo(_stop_text(result, server.home), err=True)
        _print_connected(result, err=True)
        _warn_of_other_dsn(server)
    if not result.has_stopped:
        raise SystemExit(1)


@click.command()
@json_option
@dsn_option
@settings_options(only=["schema"])
def status(dsn: str | None, settings_file: Path | None, as_json: bool, **given: Any) -> None:
    """Show the server that workers and clients use here, and the installed schema version.

    For an embedded server: whether it runs, its DSN, data directory and size, and who is connected. Starts nothing.

    Exit code 0: the server runs, and gen_durable works with the schema; 1: the embedded server does not run, or there
    are no tables, or they have a version that this gen_durable does not work with; 2: the database is unreachable.
    """
    settings = load_settings(settings_file, given)
    given_dsn, dsn = dsn, dsn or environment_dsn()
    embedded = EmbeddedPostgres() if dsn is None else EmbeddedPostgres.at(dsn)
    server = None if embedded is None else embedded.status()
    schema = None
    if server is None or server.is_running:
        schema = asyncio.run(schema_on(Server.choose(given_dsn), settings.schema, settings.pooler))
    if as_json:
        print_json(
            {
                "dsn": _public(dsn) if dsn is not None else server and server.dsn,
                "embedded": server and _json(server),
                "schema": schema and _schema_json(schema),
            }
        )
    else:
        if server is not None:
            _print_server(server)
        if schema is not None:
            click.echo(described(schema))
    if schema is None or not schema.is_usable:
        raise SystemExit(1)


def described(found: Schema) -> str:
    """Describe the installed schema version."""
    if found.version is None:
        return f"schema '{found.name}' has no gen_durable tables (latest version: {found.latest})"
    age = "the latest" if found.is_current else f"latest is {found.latest}"
    if found.is_usable and not found.is_current:
        age = f"this gen_durable has version {found.latest} and works with it"
    return f"schema '{found.name}' is at version {found.version} ({age})"


def _warn_of_other_dsn(server: EmbeddedPostgres) -> None:
    dsn = environment_dsn()
    if dsn is None:
        return
    named = EmbeddedPostgres.at(dsn)
    if named is None or named.home != server.home:
        click.echo(
            f"GEN_DURABLE_DSN names another server, which workers and clients use: {clean(shown(dsn))}",
            err=True,
        )


def _stop_text(result: Stopped, home: Path) -> str:
    if not result.has_stopped:
        return f"nothing was changed: the embedded server in {home} has clients. To stop it anyway: --force"
    if not result.was_running:
        return f"the embedded server in {home} is not running"
    lost = "; it had clients" if result.clients or result.sessions else ""
    return f"stopped the embedded server in {home}{lost}"


def _print_server(server: Status) -> None:
    if server.major is None:
        click.echo(f"no embedded server in {server.home}. Create it: gen-durable db start")
        return
    if not server.is_running:
        state = "not running; a worker, a client or `gen-durable db start` starts it"
    elif server.is_kept:
        state = "running until `gen-durable db stop`"
    else:
        state = "running; stops when its last worker or client has left"
    click.echo(f"embedded PostgreSQL {server.major}: {state}")
    print_columns(
        [
            ("  dsn", server.dsn),
            ("  home", clean(str(server.home))),
            ("  size", f"{server.size / 2**20:.0f} MB"),
        ]
    )
    _print_connected(server)


def _print_connected(found: Status | Stopped, *, err: bool = False) -> None:
    for line in _connected(found.clients, found.sessions):
        click.echo(f"  {line}", err=err)


def _connected(clients: Sequence[Client], sessions: Sequence[SessionCount]) -> Iterator[str]:
    for each in clients:
        yield f"client pid {each.pid}: {clean(each.command) or 'a process of another container'}"
    for application, count in sessions:
        name = clean(application) or "an application without a name"
        yield f"{count} session{'s' * (count != 1)} of {name}"


def _json(server: Status) -> dict[str, Any]:
    return {
        "home": str(server.home),
        "log": str(server.log),
        "running": server.is_running,
        "kept": server.is_kept,
        "postgres": server.major,
        "size": server.size,
        **_connected_json(server),
    }


def _connected_json(found: Status | Stopped) -> dict[str, Any]:
    return {
        "clients": [each._asdict() for each in found.clients],
        "sessions": [each._asdict() for each in found.sessions],
    }


def _schema_json(found: Schema) -> dict[str, Any]:
    return {
        "name": found.name,
        "version": found.version,
        "latest": found.latest,
        "usable": found.is_usable,
    }


def _public(dsn: str) -> str:
    try:
        return without_password(dsn)
    except DsnError as error:
        raise Failure(str(error)) from None
