"""One database per test: a copy of a template that is migrated once.

The next copy is created while a test runs, and used databases are emptied or dropped in the background, so tests do not
wait for either.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import secrets
from collections import defaultdict
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from .._db import migrate, sqlstates
from .._db.address import unreachable
from .._db.connector import connect
from .._db.failures import StatementError
from .._db.plan import Plan, Script
from .._db.pool import Database
from .._db.runner import run_asyncpg
from ..errors import UsageError
from ._loop_thread import LoopThread
from ._recycling import Recycler
from ._server import ScratchServer
from ._sql import statements

__all__ = ["Databases"]

T = TypeVar("T")
_SQL = statements("databases.sql")


class Databases:
    """Creates and drops test databases on one server; a context manager."""

    def __init__(self, dsn: str | None = None) -> None:
        """Choose the server; default: that of `GEN_DURABLE_DSN`, or the embedded server for tests."""
        self._given_dsn = dsn
        # Part of every database name of this session and of the application_name of its connection. A database without
        # such a connection is orphaned, and another session drops it.
        self._token = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        # Schema → the next copy. Used by the thread of the tests only.
        self._ready: dict[str, Future[str]] = {}
        self._dropping: list[Future[None]] = []
        # Schema → returned databases, and whether they can be used again.
        self._returned: defaultdict[str, dict[str, Future[bool]]] = defaultdict(dict)
        # Of databases that are not dropped. Used on the loop thread only.
        self._recyclers: dict[str, Recycler] = {}
        # Used on the loop thread only, by one statement at a time.
        self._conn: Any = None
        self._lock = asyncio.Lock()

    def __enter__(self) -> Self:
        self._server = ScratchServer.find(self._given_dsn)
        self._loop_thread = LoopThread()
        try:
            self._conn = self._loop_thread.call(self._connect())
            self._loop_thread.call(self._prepare())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for copy in self._ready.values():
                if copy.exception() is None:  # not taken by any test
                    self.drop(copy.result())
            for returned in self._returned.values():
                for name in returned:
                    self.drop(name)
            for dropping in self._dropping:
                dropping.result()
        finally:
            self._stop()

    @contextmanager
    def fresh(self, schema: str = "gen_durable") -> Generator[str]:
        """Yield the DSN of a new, migrated database, which is dropped afterwards."""
        name = self.take(schema)
        try:
            yield self.dsn_of(name)
        finally:
            self.drop(name)

    @contextmanager
    def clean(self, schema: str = "gen_durable") -> Generator[str]:
        """Yield the DSN of an empty, migrated database, which may have been used before."""
        name = self._usable(schema) or self.take(schema)
        try:
            yield self.dsn_of(name)
        finally:
            # Emptying needs superuser rights, which only the embedded server surely grants.
            if self._server.is_ours:
                self._returned[schema][name] = self._loop_thread.begin(self._empty(name))
            else:
                self.drop(name)

    def _usable(self, schema: str) -> str | None:
        """Return a returned database that has been emptied, if there is one."""
        for name, emptied in list(self._returned[schema].items()):
            if emptied.done():
                del self._returned[schema][name]
                if emptied.result():
                    return name
                self.drop(name)
        return None

    def take(self, schema: str) -> str:
        """Return the name of a new database; the caller drops it."""
        ready = self._ready.pop(schema, None) or self._loop_thread.begin(self._copy(schema))
        name = ready.result()
        self._ready[schema] = self._loop_thread.begin(self._copy(schema))
        return name

    def drop(self, name: str) -> None:
        """Drop a database in the background, with all its connections."""
        self._dropping.append(self._loop_thread.begin(self._drop(name)))

    def dsn_of(self, name: str) -> str:
        """Return the DSN of a database on this server."""
        parts = urlsplit(self._server.dsn)
        query = "&".join(
            pair for pair in parts.query.split("&") if pair.partition("=")[0] not in ("dbname", "database")
        )
        return f"{parts.scheme}://{parts.netloc}/{name}{'?' + query if query else ''}"

    async def _connect(self) -> Any:
        try:
            return await connect(self._server.dsn)
        except StatementError as error:
            raise unreachable(self._server.dsn, error, self._server.advice) from error

    async def _prepare(self) -> None:
        await self._execute(f"set application_name = 'gen_durable test {self._token}'")
        # file_copy also copies the catalog caches, so a first connection is faster. Its checkpoint is cheap with
        # fsync=off. Servers before 15 always copy files.
        is_fast = self._server.is_ours and self._conn.get_server_version().major >= 15
        self._strategy = " strategy file_copy" if is_fast else ""
        for row in await self._run(_rows("orphans")):
            await self._drop(row["name"])

    def _stop(self) -> None:
        if self._conn is not None:
            self._loop_thread.call(self._conn.close())
        self._loop_thread.close()
        self._server.close()

    async def _copy(self, schema: str) -> str:
        template = _template_name(schema)
        name = f"gen_durable_test_{self._token}_{next(self._numbers)}"
        statement = f"create database {name} template {template}{self._strategy}"
        try:
            await self._execute(statement)
        except StatementError as error:
            if error.sqlstate != sqlstates.INVALID_CATALOG_NAME:
                raise self._explained(error) from error
            await self._make_template(template, schema)
            await self._execute(statement)
        if self._server.is_ours:
            with suppress(StatementError):  # without a recycler it is used once
                self._recyclers[name] = await Recycler.open(self.dsn_of(name), schema)
        return name

    async def _make_template(self, template: str, schema: str) -> None:
        await self._run(_rows("lock", name=template))
        try:
            if not (await self._run(_rows("exists", name=template)))[0]["found"]:
                await self._migrate(template, schema)
                for row in await self._run(_rows("old_templates")):
                    await self._drop(row["name"])
        finally:
            await self._run(_rows("unlock", name=template))

    async def _migrate(self, template: str, schema: str) -> None:
        """Create the template under another name and rename it when complete, so no partial template is copied."""
        name = f"gen_durable_test_{self._token}_{next(self._numbers)}"
        try:
            await self._execute(f"create database {name} template template0")
        except StatementError as error:
            raise self._explained(error) from error
        async with await Database.open(self.dsn_of(name), schema, size=1) as database:
            await database.run_in_transaction(migrate.migrate(schema))
        # A template with connections cannot be copied.
        await self._execute(f"alter database {name} allow_connections false")
        try:
            await self._execute(f"alter database {name} rename to {template}")
        except StatementError as error:
            if error.sqlstate != sqlstates.DUPLICATE_DATABASE:
                raise
            await self._drop(name)  # another session created it first

    async def _empty(self, name: str) -> bool:
        return name in self._recyclers and await self._recyclers[name].empty()

    async def _drop(self, name: str) -> None:
        if (recycler := self._recyclers.pop(name, None)) is not None:
            recycler.close()
        await self._execute(f"drop database if exists {name} with (force)")

    async def _execute(self, text: str) -> None:
        await self._run(_script(text))

    async def _run(self, plan: Plan[T]) -> T:
        async with self._lock:
            return await run_asyncpg(self._conn, plan, "gen_durable")

    def _explained(self, error: StatementError) -> Exception:
        if error.sqlstate == sqlstates.INSUFFICIENT_PRIVILEGE:
            return UsageError(
                f"the role of GEN_DURABLE_DSN cannot create databases for tests ({error.message})",
                "run `alter role … createdb`, or unset GEN_DURABLE_DSN to use an embedded server",
            )
        return error


def _template_name(schema: str) -> str:
    """Return a name derived from the migrations, so every schema version has its own template."""
    return f"gen_durable_template_{hashlib.sha256(migrate.script(schema).encode()).hexdigest()[:12]}"


def _rows(statement: str, **values: Any) -> Plan[Any]:
    return (yield _SQL[statement](**values))


def _script(text: str) -> Plan[None]:
    yield Script(text)
