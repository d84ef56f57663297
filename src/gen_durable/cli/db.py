"""`gen-durable db …`: install, upgrade and remove the tables."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from .._db.dsn import DsnError, without_password
from .._db.migrate import script
from .._schema import LATEST, Schema, migrate_schema, schema_status, server_dsn
from .failure import Failure
from .groups import action_options
from .options import dsn_option, load_settings, settings_options

__all__ = ["db"]

schema_options = settings_options(only=["schema"])


@click.group()
def db() -> None:
    """Install, upgrade, inspect and remove the tables."""


@db.command()
@dsn_option
@schema_options
def status(dsn: str | None, settings_file: Path | None, **given: Any) -> None:
    """Show the installed schema version.

    Exit code 1: no tables, or a version that this gen_durable does not work with.
    """
    settings = load_settings(settings_file, given)
    found = asyncio.run(schema_status(dsn, settings.schema, settings.pooler))
    click.echo(_described(found))
    if not found.is_usable:
        raise SystemExit(1)


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
        raise Failure(f"{_described(found)}. To downgrade: gen-durable db down --to {to}")
    migration = migrate_schema(dsn, settings.schema, to, settings.pooler, reason=reason, actor=actor)
    click.echo(_described(asyncio.run(migration)))


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
        click.echo(_described(found))
        return
    if not yes and not _agrees(settings.schema):
        click.echo("nothing was changed", err=True)
        raise SystemExit(1)
    migration = migrate_schema(dsn, settings.schema, to, settings.pooler, reason=reason, actor=actor)
    click.echo(_described(asyncio.run(migration)))


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
    count, so keep one running.
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


def _described(found: Schema) -> str:
    if found.version is None:
        return f"schema '{found.name}' has no gen_durable tables (latest version: {found.latest})"
    age = "the latest" if found.is_current else f"latest is {found.latest}"
    if found.is_usable and not found.is_current:
        age = f"this gen_durable has version {found.latest} and works with it"
    return f"schema '{found.name}' is at version {found.version} ({age})"
