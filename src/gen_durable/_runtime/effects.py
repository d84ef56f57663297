"""Outcomes with an effect: each is committed in a transaction of its own, with the effect inside it.

The effect runs first; then the row is locked, if this execution still has its lease and nobody wants the instance
cancelled, and if the effect left its transaction as it was; then the outcome is written. All of it commits or nothing
does, so the effect happens exactly once, and never for an execution that lost its lease or was cancelled. While the
effect runs, nothing of ours is locked: a slow one delays nobody.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any, Final

from .._core.model import CommitEntry
from .._db import commit as commits
from .._db.connector import PINNED
from .._db.failures import StatementError, is_outage, is_race, is_repairable
from .._db.plan import Plan
from .._db.pool import Database
from .._db.sqlstates import IDLE_IN_TRANSACTION_SESSION_TIMEOUT, RACES, READ_ONLY, TRANSACTION_TIMEOUT
from ..errors import UsageError
from ..outcome import Effect, Sql
from .user_exceptions import as_exception, current_task, is_task_cancelled

__all__ = ["BrokenOffError", "EffectError", "RaceLostError", "commit_with_effect"]

_ISOLATION: Final = PINNED["default_transaction_isolation"]
# The server ended the session because of what the effect did, and would again: 25P03 it left its transaction
# idle, 25P04 that took too long.
_TOO_LONG: Final = frozenset({IDLE_IN_TRANSACTION_SESSION_TIMEOUT, TRANSACTION_TIMEOUT})
# After so long without a statement the server has done so, even if it is too late to hear it say why.
_IDLE_SECONDS: Final = float(PINNED["idle_in_transaction_session_timeout"].removesuffix("s"))
# Where a word is not one of SQL: comments, of which those in /* */ nest, texts, quoted names, and bodies of functions.
# E and $ mean that only where no name goes on. A text after E may go on in the next line, and is one of its kind there.
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
    """What an effect raised, on its way out of the transaction that it spoilt."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class BrokenOffError(StatementError):
    """The connection broke while the effect ran."""


class RaceLostError(StatementError):
    """Another transaction was in the way of the effect; or so it was told."""


async def commit_with_effect(
    database: Database, entry: CommitEntry, recorder: commits.Recorder
) -> commits.CommitReport | None:
    """Run the effect and commit the outcome, in one transaction.

    Returns:
        `None` if the execution had lost its lease, or its instance is to be cancelled: then nothing has happened.

    Raises:
        EffectError: the effect failed; nothing of the outcome was written.
    """
    effect = entry.effect
    assert effect is not None  # noqa: S101 - the flusher sends only such entries here
    has_run = False

    async def inside(conn: Any) -> None:
        nonlocal has_run
        await _apply(effect, conn)
        has_run = True

    try:
        report = await database.run_effect(inside, _hold(entry), commits.commit([entry], recorder))
        if report is None and await database.run(commits.still_owns_lease(entry)):
            raise EffectError(_in_its_own_way())
        return report
    except StatementError as error:
        # Not a standby: on such a one the transaction would not have begun.
        if has_run and error.sqlstate == READ_ONLY:
            raise EffectError(_changed("read only")) from error
        # The effect left a transaction in which nothing can be written, or one that a deferred constraint refuses.
        if has_run and not (is_outage(error) or is_race(error)):
            if is_repairable(error):
                # Raises the same if the database refuses it without the effect, too.
                await database.run_in_transaction(commits.lock_for_effect(entry))
            raise EffectError(error) from error
        raise


def _hold(entry: CommitEntry) -> Plan[bool]:
    """Lock the row; and see that it is done in the transaction that the outcome needs."""
    held = yield from commits.lock_for_effect(entry)
    if not held.in_effect_transaction:
        raise EffectError(_has_ended())
    if held.isolation != _ISOLATION:
        raise EffectError(_changed(held.isolation))
    return held.still_owns_lease


async def _apply(effect: Effect, conn: Any) -> None:
    """Run what a user wrote. Whatever it does, it harms nobody but its own outcome."""
    transaction, task = _Transaction(conn), current_task()
    try:
        await _run(effect, transaction)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if is_task_cancelled(error, task):
            raise
        # Not its fault: the connection broke, or somebody was in the way. It is run again.
        if conn.is_closed():
            raise _broken_off(transaction, error) from error
        if getattr(error, "sqlstate", None) in RACES:
            raise RaceLostError(str(getattr(error, "sqlstate", "")), str(error)) from error
        raise EffectError(as_exception(error)) from error
    if conn.is_closed():
        raise _broken_off(transaction, None)
    if not conn.is_in_transaction():
        raise EffectError(_has_ended())


async def _run(effect: Effect, transaction: _Transaction) -> None:
    try:
        if isinstance(effect, Sql):
            await transaction.execute(effect.query, *effect.args)
        else:
            await effect(transaction)
    finally:
        if left := transaction.close():
            # Cancelled, not just left: on the server such a statement would hold its locks until it ends.
            for task in left:
                task.cancel()
            await asyncio.wait(left)
    if left:
        raise UsageError("the effect ended before a statement of its own did", "await each of them")


def _broken_off(transaction: _Transaction, error: BaseException | None) -> Exception:
    """The connection is gone. Through no fault of the effect: then it is run again. Or the server had enough of it."""
    if error is not None and getattr(error, "sqlstate", None) in _TOO_LONG:
        return EffectError(as_exception(error))
    if transaction.longest_pause >= _IDLE_SECONDS:
        return EffectError(_idle())
    return BrokenOffError("", str(error or "the connection broke, and the effect did not mind"))


def _idle() -> UsageError:
    return UsageError(
        f"the effect left its transaction idle for {_IDLE_SECONDS:.0f} s, and the server ended it",
        "do slow things in the step, and only the SQL in its effect",
    )


def _in_its_own_way() -> UsageError:
    return UsageError(
        "the effect cancels, deletes or changes the very instance whose outcome it belongs to",
        "leave that out: to end as cancelled, raise Cancel in the step",
    )


def _ended() -> UsageError:
    return UsageError("the effect ends the transaction that it runs in", "leave COMMIT and ROLLBACK out")


def _has_ended() -> UsageError:
    return UsageError(
        "the effect has ended the transaction that it was given, or reset all of its settings",
        "leave COMMIT, ROLLBACK and RESET ALL out, and see what of it has been committed",
    )


def _changed(mode: str) -> UsageError:
    return UsageError(
        f"the effect made its transaction {mode.upper()}, and no outcome can be written in such a one",
        "do that in the step, in a transaction of your own",
    )


def _bare(query: str) -> str:
    """The words of SQL in it."""
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
    """What an effect may do with the connection: run statements, as long as it lasts."""

    def __init__(self, conn: Any) -> None:
        self._conn: Any = conn
        # Who waits for a statement at this moment. On one event loop.
        self._waiting: set[asyncio.Task[Any]] = set()
        self._idle_since = time.monotonic()
        self._longest_pause = 0.0

    @property
    def longest_pause(self) -> float:
        """For how many seconds at most there was no statement."""
        return max(self._longest_pause, time.monotonic() - self._idle_since)

    def close(self) -> set[asyncio.Task[Any]]:
        """The effect is over; whoever kept this may not use it any more. Returns who is still using it."""
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
            raise UsageError("this transaction is over", "an effect may use it only while it runs")
        # Refused before it is sent: what has been committed cannot be taken back.
        if _ENDS_TRANSACTION.search(_bare(query)):
            raise _ended()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - whatever is awaited is awaited by one
        self._longest_pause = self.longest_pause
        self._waiting.add(task)
        try:
            return await getattr(self._conn, verb)(query, *args)
        finally:
            self._waiting.discard(task)
            self._idle_since = time.monotonic()
