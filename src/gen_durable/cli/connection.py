"""Options that select a database, and the connection to it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from .._db import migrate
from .._db.address import shown
from .._db.plan import Plan
from .._db.pool import Database
from .._server import Server
from ..config import Settings
from ..embedded import EmbeddedPostgres
from .failure import Failure
from .options import dsn_option, load_settings, settings_options

__all__ = ["DatabaseOptions", "database_options", "described_server"]

T = TypeVar("T")
Command: TypeAlias = Callable[..., Any]


class DatabaseOptions(msgspec.Struct, frozen=True):
    """The database that the options select."""

    dsn: str | None
    settings: Settings

    @asynccontextmanager
    async def open(self, *, check_schema: bool = True) -> AsyncGenerator[Database]:
        """Connect. Fails if the tables are missing or do not suit this version; never creates or upgrades them."""
        server = await Server.find_async(self.dsn, creates=False)
        schema = self.settings.schema
        try:
            async with await Database.open(
                server.dsn, schema, size=1, advice=server.advice, pooler=self.settings.pooler
            ) as database:
                found = await database.run(migrate.status(schema))
                if check_schema and not found.is_usable:
                    where = f"the embedded server in {server.home}" if server.home else shown(server.dsn)
                    raise Failure(f"{where}: {found.refusal()}")
                yield database
        finally:
            await server.close_async()

    def run(self, plan: Plan[T]) -> T:
        """Connect, run a plan, and disconnect."""

        async def run() -> T:
            async with self.open() as database:
                return await database.run(plan)

        return asyncio.run(run())


def database_options(*more: str) -> Callable[[Command], Command]:
    """Add `--dsn`, `--schema`, `--pooler` and `--settings`, and an option for each setting in `more`.

    The command gets a `db`.
    """
    names = ("schema", "pooler", *more)

    def decorate(command: Command) -> Command:
        @dsn_option
        @settings_options(only=names)
        @functools.wraps(command)
        def decorated(*, dsn: str | None, settings_file: Path | None, **given: Any) -> Any:
            settings = load_settings(settings_file, {name: given.pop(name) for name in names})
            return command(db=DatabaseOptions(dsn, settings), **given)

        return decorated

    return decorate


def described_server(dsn: str) -> str:
    """Name a server, without its password."""
    embedded = EmbeddedPostgres.at(dsn)
    return f"the embedded PostgreSQL in {embedded.home}" if embedded else shown(dsn)
