"""Making a database that a test has used as good as new, in a fifth of the time that a new one takes."""

from __future__ import annotations

from typing import Any, Self

from .._db.failures import StatementError
from .._db.plan import Plan, Row, Rows, Script
from .._db.pool import connect, only
from .._db.runner import run_asyncpg
from ._sql import statements

__all__ = ["Recycler"]

_SQL = statements("databases.sql")


class Recycler:
    """Empties one database after every test, on a connection that is kept.

    Only rows are undone. Whatever else a test has done, to tables, rights or settings, is noticed: then the database is
    not used again.
    """

    def __init__(self, conn: Any, schema: str) -> None:
        self._conn = conn
        self._schema = schema
        self._new: Row = {}
        self._delete = ""

    @classmethod
    async def open(cls, dsn: str, schema: str) -> Self:
        """See what a database looks like that nobody has used yet."""
        made = cls(await connect(dsn), schema)
        await made._run(only(Script("set application_name = 'gen_durable recycler'")))
        made._new = await made._look()
        tables = await made._run(only(_SQL["tables"](schema=schema)))
        made._delete = "".join(f'delete from "{schema}"."{row["name"]}";' for row in tables)  # noqa: S608 - our own
        return made

    async def empty(self) -> bool:
        """Throw everybody out and remove all rows; whether it is as good as new now."""
        try:
            if not (await self._run(only(_SQL["leave"]())))[0]["are_gone"] or await self._look() != self._new:
                return False
            await self._run(only(Script(self._delete)))
            await self._run(only(_SQL["rewind"]()))
        except StatementError:
            return False
        return True

    async def close(self) -> None:
        """The database can be dropped now."""
        await self._conn.close()

    async def _look(self) -> Row:
        return dict((await self._run(only(_SQL["shape"]())))[0])

    async def _run(self, plan: Plan[Rows]) -> Rows:
        return await run_asyncpg(self._conn, plan, self._schema)
