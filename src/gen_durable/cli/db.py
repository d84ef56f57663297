"""`gen-durable db …`: install, upgrade and remove the tables."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from .._db.dsn import DsnError, without_password
from .._db.migrate import script
from .._schema import LATEST, migrate_schema, schema_status, server_dsn
from .failure import Failure
from .groups import action_options
from .options import dsn_option, load_settings, settings_options
from .server import described, start, status, stop

__all__ = ["db"]

schema_options = settings_options(only=["schema"])


@click.group()
def db() -> None:
    """Run the embedded server; install, upgrade and remove the tables."""


for command in (start, stop, status):
    db.add_command(command)


@db.command()
@click.option(
    "--to",
    type=click.IntRange(min=1),
    metavar="N",
    default=LATEST,
    show_default="the latest",
    help="Target version.",
)
@action_options
@dsn_option
@schema_options
def migrate(
    to: int,
    dsn: str | None,
    settings_file: Path | None,
    reason: str | None,
    actor: str | None,
    **given: Any,
) -> None:
    """Install or upgrade the tables. Safe to repeat."""
    settings = load_settings(settings_file, given)
    found = asyncio.run(schema_status(dsn, settings.schema, settings.pooler))
    if to < (found.version or 0) <= LATEST:
        raise Failure(f"{described(found)}. To downgrade: gen-durable db down --to {to}")
    migration = migrate_schema(dsn, settings.schema, to, settings.pooler, reason=reason, actor=actor)
    click.echo(described(asyncio.run(migration)))


@db.command()
@click.option(
    "--to",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    show_default="0: drop everything",
    help="Target version.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@action_options
@dsn_option
@schema_options
def down(
    to: int,
    yes: bool,
    dsn: str | None,
    settings_file: Path | None,
    reason: str | None,
    actor: str | None,
    **given: Any,
) -> None:
    """Downgrade or drop the tables, with their data.

    Version 0 drops the audit log as well, so the reason is kept only for other versions.

    Exit code 1: the confirmation was declined.
    """
    settings = load_settings(settings_file, given)
    found = asyncio.run(schema_status(dsn, settings.schema, settings.pooler))
    if (found.version or 0) <= to:
        click.echo(described(found))
        return
    if not yes and not _agrees(settings.schema):
        click.echo("nothing was changed", err=True)
        raise SystemExit(1)
    migration = migrate_schema(dsn, settings.schema, to, settings.pooler, reason=reason, actor=actor)
    click.echo(described(asyncio.run(migration)))


@db.command()
@click.option(
    "--from",
    "current",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    show_default=True,
    help="Installed version.",
)
@click.option(
    "--to",
    type=click.IntRange(min=0),
    metavar="N",
    default=LATEST,
    show_default="the latest",
    help="Target version.",
)
@schema_options
def sql(current: int, to: int, settings_file: Path | None, **given: Any) -> None:
    """Print the SQL of an upgrade or downgrade, for a migration tool. Needs no database."""
    settings = load_settings(settings_file, given)
    click.echo(script(settings.schema, current, to).rstrip())


@db.command()
@click.option("--password", is_flag=True, help="Include the password.")
@dsn_option
def url(dsn: str | None, password: bool) -> None:
    """Print the URL of PostgreSQL: psql "$(gen-durable db url)".

    Starts the embedded server if necessary. It stops 10 seconds after its last worker or Python client; psql does not
    count. To keep it running: gen-durable db start.
    """
    found = server_dsn(dsn)
    try:
        click.echo(found if password else without_password(found))
    except DsnError as error:
        raise Failure(str(error)) from None


def _agrees(schema: str) -> bool:
    try:
        return click.confirm(f"Drop tables of schema '{schema}' with all their instances?", err=True)
    except click.Abort:
        click.echo(err=True)
        raise Failure("nothing was changed: no confirmation. Add --yes.") from None
