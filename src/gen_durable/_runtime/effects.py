"""Commit an outcome and its effect in one transaction.

The effect runs first. Then the row is locked, if the execution still owns its lease, no cancel was requested and the
effect left its transaction as it was. Then the outcome is written. Effect and outcome commit together or not at all, so
the effect happens exactly once, and never for an execution that lost its lease or was cancelled. The engine locks no
row while the effect runs.
"""

from __future__ import annotations

import asyncio
import re
import time
from textwrap import shorten
from typing import Any, Final

from .._core.model import CommitEntry
from .._db import commit as commits
from .._db.connector import PINNED
from .._db.failures import StatementError, is_outage, is_race, is_repairable
from .._db.plan import Plan
from .._db.pool import Database
from .._db.sqlstates import (
    IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
    QUERY_CANCELED,
    RACES,
    READ_ONLY,
    TRANSACTION_TIMEOUT,
)
from ..errors import UsageError
from ..outcome import Effect, Sql
from .user_exceptions import as_exception, current_task, is_task_cancelled

__all__ = ["ConnectionBrokenError", "EffectError", "EffectRetries", "RaceLostError", "commit_with_effect"]

_ISOLATION: Final = PINNED["default_transaction_isolation"]
# The server ended the session because the effect took too long; it would do so again.
_TOO_LONG: Final = frozenset({IDLE_IN_TRANSACTION_SESSION_TIMEOUT, TRANSACTION_TIMEOUT})
# After this long without a statement the server has ended the session, even if its message does not arrive.
_IDLE_SECONDS: Final = float(PINNED["idle_in_transaction_session_timeout"].removesuffix("s"))
# An effect fails after this many broken connections while other connections worked, ...
_MAX_BREAKS: Final = 3
# ... or this many in all: the effect may crash the whole server.
_MAX_OUTAGES: Final = 20
# An effect fails after this many lost races, a minute or more of them; likewise after as many timeouts.
_MAX_RACES: Final = 20
# Parts of a query that are not SQL keywords: comments (/* */ nests), string constants, quoted names, dollar-quoted
# bodies. E and $ start a constant only where they do not continue a name. E'' may continue on the next line.
_QUOTED: Final = re.compile(
    r"""
    --[^\n\r]* | /\*
    | (?<![\w$])[eE]'(?: [^'\\] | \\. | '' | '[^\S\n\r]*[\n\r]\s*' )*+'
    | '[^']*' | "[^"]*"
    | (?<![\w$])\$((?:[^\W\d]\w*)?)\$.*?\$\1\$
    """,
    re.DOTALL | re.VERBOSE,
)
_COMMENT: Final = re.compile(r"/\*|\*/")
_ENDS_TRANSACTION: Final = re.compile(
    r"(?:^|;)\s*(?:commit|end|abort|prepare\s+transaction|rollback(?!\s+(?:(?:work|transaction)\s+)?to\b))\b",
    re.IGNORECASE,
)


class EffectError(Exception):
    """The effect failed; its transaction is rolled back."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class ConnectionBrokenError(StatementError):
    """The connection broke while the effect ran."""


class RaceLostError(StatementError):
    """The effect raised a deadlock, a serialization failure or a lock timeout."""


async def commit_with_effect(
    database: Database, entry: CommitEntry, recorder: commits.Recorder
) -> commits.CommitReport | None:
    """Run the effect and commit the outcome, in one transaction.

    Returns:
        `None` if the execution has lost its lease or its instance is to be cancelled; all is rolled back then.

    Raises:
        EffectError: the effect failed; the outcome was not written.
        StatementError: the database failed; the effect is to be run again.
    """
    effect = entry.effect
    assert effect is not None  # noqa: S101 - the flusher sends only such entries here
    has_run = False

    async def run_effect(conn: Any) -> None:
        nonlocal has_run
        await _apply(effect, conn)
        has_run = True

    try:
        report = await database.run_effect(run_effect, _lock_row(entry), commits.commit([entry], recorder))
        if report is None and await database.run(commits.still_owns_lease(entry)):
            raise EffectError(_changed_own_instance())
        return report
    except StatementError as error:
        # The effect made it read-only. On a standby the transaction would not have begun.
        if has_run and error.sqlstate == READ_ONLY:
            raise EffectError(_changed_mode("read only")) from error
        # The effect left a transaction in which nothing can be written, or that a deferred constraint refuses.
        if has_run and not (is_outage(error) or is_race(error)):
            if is_repairable(error):
                # Raises the same error if the database refuses the lock without the effect, too.
                await database.run_in_transaction(commits.lock_for_effect(entry))
            raise EffectError(error) from error
        raise


class EffectRetries:
    """Counts why one effect was run again, and decides when it has failed."""

    def __init__(self) -> None:
        self._breaks = self._outages = self._races = self._timeouts = 0

    def count(self, error: StatementError, *, others_work: bool) -> UsageError | None:
        """Count an error. Returns the failure of the effect, if this was one too many.

        `others_work`: whether other connections of this worker survived.
        """
        if isinstance(error, RaceLostError):
            self._races += 1
            return _lost_too_many_races(self._races, error) if self._races == _MAX_RACES else None
        # Of the engine's statements: an effect that raises it has failed.
        if error.sqlstate == QUERY_CANCELED:
            self._timeouts += 1
            return _timed_out_too_often(self._timeouts, error) if self._timeouts == _MAX_RACES else None
        if isinstance(error, ConnectionBrokenError):
            self._breaks, self._outages = self._breaks + others_work, self._outages + 1
            if self._breaks == _MAX_BREAKS or self._outages == _MAX_OUTAGES:
                return _broke_too_often(self._outages, self._breaks, error)
        return None


def _lock_row(entry: CommitEntry) -> Plan[bool]:
    """Lock the row of the outcome, and check that the effect left its transaction as it was."""
    lock = yield from commits.lock_for_effect(entry)
    if not lock.in_effect_transaction:
        raise EffectError(_ended_transaction())
    if lock.isolation != _ISOLATION:
        raise EffectError(_changed_mode(lock.isolation))
    return lock.still_owns_lease


async def _apply(effect: Effect, conn: Any) -> None:
    """Run an effect, and classify what it raises: its own failure, a lost race, or a broken connection."""
    transaction, task = _Transaction(conn), current_task()
    try:
        await _run(effect, transaction)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if is_task_cancelled(error, task):
            raise
        if conn.is_closed():
            raise _connection_broken(transaction, error) from error
        if getattr(error, "sqlstate", None) in RACES:
            raise RaceLostError(str(getattr(error, "sqlstate", "")), str(error)) from error
        if isinstance(effect, Sql):
            # The traceback has no frame of the caller: a statement is run by the engine, after the step.
            error.add_note(f"The effect of the step raised this: {shorten(effect.query, 200)}")
        raise EffectError(as_exception(error)) from error
    if conn.is_closed():
        raise _connection_broken(transaction, None)
    if not conn.is_in_transaction():
        raise EffectError(_ended_transaction())


async def _run(effect: Effect, transaction: _Transaction) -> None:
    try:
        if isinstance(effect, Sql):
            await transaction.execute(effect.query, *effect.args)
        else:
            await effect(transaction)
    finally:
        if unfinished := transaction.close():
            # Cancel them: otherwise the statements hold their locks on the server until they end.
            for task in unfinished:
                task.cancel()
            await asyncio.wait(unfinished)
    if unfinished:
        raise UsageError("the effect returned while its statements were running", "await each of them")


def _connection_broken(transaction: _Transaction, error: BaseException | None) -> Exception:
    """Tell a connection that the server ended because of the effect from one that broke for another reason."""
    if error is not None and getattr(error, "sqlstate", None) in _TOO_LONG:
        return EffectError(as_exception(error))
    if transaction.longest_pause >= _IDLE_SECONDS:
        return EffectError(_left_idle())
    return ConnectionBrokenError("", str(error or "the connection broke, and the effect ignored the error"))


def _left_idle() -> UsageError:
    return UsageError(
        f"the effect left its transaction idle for {_IDLE_SECONDS:.0f} s, and the server ended it",
        "do slow work in the step, and only SQL in its effect",
    )


def _changed_own_instance() -> UsageError:
    return UsageError(
        "the effect cancels, deletes or changes the instance of its own outcome",
        "remove that; to end as cancelled, raise Cancel in the step",
    )


def _ends_transaction() -> UsageError:
    return UsageError("the effect ends the transaction that it runs in", "remove COMMIT and ROLLBACK")


def _ended_transaction() -> UsageError:
    return UsageError(
        "the effect has ended its transaction, or reset all of its settings",
        "remove COMMIT, ROLLBACK and RESET ALL, and check what was committed",
    )


def _changed_mode(mode: str) -> UsageError:
    return UsageError(
        f"the effect made its transaction {mode.upper()}, so the outcome cannot be written",
        "do that in the step, in your own transaction",
    )


def _lost_too_many_races(times: int, error: StatementError) -> UsageError:
    return UsageError(
        f"the effect lost {times} races against other transactions ({error})",
        "another transaction holds a lock that the effect needs: look for long transactions in pg_stat_activity",
    )


def _timed_out_too_often(times: int, error: StatementError) -> UsageError:
    return UsageError(
        f"writing the outcome after the effect timed out {times} times ({error})",
        "remove timeouts that the effect sets, and reduce its deferred constraints and triggers",
    )


def _broke_too_often(times: int, alone: int, error: StatementError) -> UsageError:
    return UsageError(
        f"the connection broke {times} times while the effect ran, {alone} times when others did not ({error})",
        "check server limits (memory, statement_timeout) and whether something terminates backends",
    )


def _bare(query: str) -> str:
    """Return the query without comments, constants and quoted names."""
    words, place = [], 0
    while found := _QUOTED.search(query, place):
        words.append(query[place : found.start()])
        place = _end_of_comment(query, found.end()) if found[0] == "/*" else found.end()
    return " ".join([*words, query[place:]])


def _end_of_comment(query: str, place: int) -> int:
    depth = 1
    while depth and (found := _COMMENT.search(query, place)):
        depth += 1 if found[0] == "/*" else -1
        place = found.end()
    return place


class _Transaction:
    """The transaction that an effect gets: it runs statements until the effect returns."""

    def __init__(self, conn: Any) -> None:
        self._conn: Any = conn
        # Tasks that wait for a statement. Used on one event loop.
        self._waiting: set[asyncio.Task[Any]] = set()
        self._idle_since = time.monotonic()
        self._longest_pause = 0.0

    @property
    def longest_pause(self) -> float:
        """The longest time without a statement, in seconds."""
        return max(self._longest_pause, time.monotonic() - self._idle_since)

    def close(self) -> set[asyncio.Task[Any]]:
        """Refuse further statements. Returns the tasks whose statements are running."""
        self._conn = None
        return set(self._waiting)

    async def execute(self, query: str, *args: Any) -> str:
        return str(await self._do("execute", query, args))

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        return list(await self._do("fetch", query, args))

    async def fetchrow(self, query: str, *args: Any) -> Any:
        return await self._do("fetchrow", query, args)

    async def fetchval(self, query: str, *args: Any) -> Any:
        return await self._do("fetchval", query, args)

    async def _do(self, verb: str, query: str, args: tuple[Any, ...]) -> Any:
        if self._conn is None:
            raise UsageError("this transaction is over", "use it only while the effect runs")
        # Refuse it before it is sent: a commit cannot be undone.
        if _ENDS_TRANSACTION.search(_bare(query)):
            raise _ends_transaction()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine is awaited in a task
        self._longest_pause = self.longest_pause
        self._waiting.add(task)
        try:
            return await getattr(self._conn, verb)(query, *args)
        finally:
            self._waiting.discard(task)
            self._idle_since = time.monotonic()
