"""Outcomes with an effect: each is committed in a transaction of its own, with the effect inside it.

The lease is checked first, under a lock that is held to the end; then the effect runs; then the outcome is written.
All of it commits or nothing does, so the effect happens exactly once, and never for an execution that lost its lease
or was cancelled. A slow effect holds its own row and nobody else's.
"""

from __future__ import annotations

from typing import Any

from .._core.model import CommitEntry
from .._db import commit as commits
from .._db.failures import RACES, StatementError
from .._db.pool import Database
from ..outcome import Effect, Sql

__all__ = ["EffectError", "commit_with_effect"]


class EffectError(Exception):
    """What an effect raised, on its way out of the transaction that it spoilt."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


async def commit_with_effect(
    database: Database, entry: CommitEntry, recorder: commits.Recorder
) -> commits.CommitReport:
    """Run the effect and commit the outcome, in one transaction.

    Raises:
        EffectError: the effect raised; nothing of the outcome was written.
    """
    effect = entry.effect
    assert effect is not None  # noqa: S101 - the flusher sends only such entries here

    async def inside(conn: Any) -> None:
        try:
            await _apply(effect, _Transaction(conn))
        except Exception as error:
            # Not the effect's fault: the connection broke, or another transaction was in the way. It is run again.
            if conn.is_closed():
                raise StatementError("", str(error)) from error
            if getattr(error, "sqlstate", None) in RACES:
                raise StatementError(str(getattr(error, "sqlstate", "")), str(error)) from error
            raise EffectError(error) from error

    return await database.run_around(commits.hold(entry), inside, commits.commit([entry], recorder))


async def _apply(effect: Effect, transaction: _Transaction) -> None:
    try:
        if isinstance(effect, Sql):
            await transaction.execute(effect.query, *effect.args)
        else:
            await effect(transaction)
    finally:
        transaction.close()


class _Transaction:
    """What an effect may do with the connection: run statements, as long as it lasts."""

    def __init__(self, conn: Any) -> None:
        self._conn: Any = conn

    def close(self) -> None:
        """The effect is over; whoever kept this may not use it any more."""
        self._conn = None

    async def execute(self, query: str, *args: Any) -> str:
        return str(await self._open.execute(query, *args))

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        return list(await self._open.fetch(query, *args))

    async def fetchrow(self, query: str, *args: Any) -> Any:
        return await self._open.fetchrow(query, *args)

    async def fetchval(self, query: str, *args: Any) -> Any:
        return await self._open.fetchval(query, *args)

    @property
    def _open(self) -> Any:
        if self._conn is None:
            raise RuntimeError("this transaction is over; an effect may use it only while it runs")
        return self._conn
