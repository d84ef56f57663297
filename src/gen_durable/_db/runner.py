"""Run plans on asyncpg, psycopg and async psycopg connections, and translate what these drivers raise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from .failures import NoReplyError, StatementError
from .plan import Call, Plan, Rows, Script, in_schema
from .sqlstates import INVALID_DATA

__all__ = [
    "asyncpg_failures",
    "drive",
    "drive_blocking",
    "from_asyncpg",
    "from_psycopg",
    "run_asyncpg",
    "run_psycopg",
    "run_psycopg_async",
]

T = TypeVar("T")
# asyncpg raises this if the server has closed an idle connection and asyncpg has not yet read that.
_CLOSED_WHILE_IDLE: Final = "cannot switch to state"


async def drive(plan: Plan[T], execute: Callable[[Call | Script], Awaitable[Rows]]) -> T:
    """Run a plan: execute its statements one after the other, and give it the rows or the error of each.

    A cancellation is given to the plan too, so that it can undo what it has done to the session.
    """
    try:
        call = next(plan)
        while True:
            try:
                rows = await execute(call)
            except BaseException as error:  # noqa: BLE001 - raised again by the plan
                call = plan.throw(error)
            else:
                call = plan.send(rows)
    except StopIteration as finished:
        result: T = finished.value
        return result


def drive_blocking(plan: Plan[T], execute: Callable[[Call | Script], Rows]) -> T:
    """`drive` for a blocking `execute`."""
    try:
        call = next(plan)
        while True:
            try:
                rows = execute(call)
            except BaseException as error:  # noqa: BLE001 - raised again by the plan
                call = plan.throw(error)
            else:
                call = plan.send(rows)
    except StopIteration as finished:
        result: T = finished.value
        return result


async def run_asyncpg(conn: Any, plan: Plan[T], schema: str) -> T:
    """Run a plan on an asyncpg connection."""
    failures = asyncpg_failures()

    async def execute(call: Call | Script) -> Rows:
        try:
            if isinstance(call, Script):
                await conn.execute(call.text)
                return []
            rows: Rows = await conn.fetch(in_schema(call.statement.text, schema), *call.values)
            return rows
        except failures as error:
            raise from_asyncpg(error, call) from error

    return await drive(plan, execute)


# psycopg fetches rows in binary: the session of a caller may have any DateStyle. Every statement is asked for its rows,
# because in a pipeline the cursor does not know before whether it has any.


def run_psycopg(conn: Any, plan: Plan[T], schema: str) -> T:
    """Run a plan on a psycopg connection, blocking."""
    import psycopg
    from psycopg.rows import dict_row

    def execute(call: Call | Script) -> Rows:
        try:
            with psycopg.RawCursor(conn, row_factory=dict_row) as cursor:
                if isinstance(call, Script):
                    cursor.execute(call.text)
                    return []
                cursor.execute(in_schema(call.statement.text, schema), call.values, binary=True)
                return cursor.fetchall()
        except psycopg.Error as error:
            return _no_rows(error, call)

    return drive_blocking(plan, execute)


async def run_psycopg_async(conn: Any, plan: Plan[T], schema: str) -> T:
    """Run a plan on an async connection of psycopg."""
    import psycopg
    from psycopg.rows import dict_row

    async def execute(call: Call | Script) -> Rows:
        try:
            async with psycopg.AsyncRawCursor(conn, row_factory=dict_row) as cursor:
                if isinstance(call, Script):
                    await cursor.execute(call.text)
                    return []
                await cursor.execute(in_schema(call.statement.text, schema), call.values, binary=True)
                return await cursor.fetchall()
        except psycopg.Error as error:
            return _no_rows(error, call)

    return await drive(plan, execute)


def _no_rows(error: Any, call: Call | Script) -> Rows:
    """Return no rows if the statement has none to fetch; raise any other error as a `StatementError`."""
    import psycopg

    if type(error) is psycopg.ProgrammingError and error.sqlstate is None:
        return []
    raise from_psycopg(error, call) from error


def asyncpg_failures() -> tuple[type[Exception], ...]:
    """Everything that asyncpg raises when a statement or a connection fails."""
    # Imported on first use: a producer with its own psycopg connection does not load asyncpg.
    import asyncpg

    return (
        TimeoutError,
        OSError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
    )


def from_asyncpg(error: BaseException, call: Call | Script | None = None) -> StatementError:
    """Translate an error of asyncpg."""
    import asyncpg

    if isinstance(error, TimeoutError):
        failure: StatementError = NoReplyError(f"{str(error) or 'no reply in time'}{_statement(call)}")
    elif isinstance(error, asyncpg.PostgresError):
        # Also connection errors that asyncpg raises itself, with SQLSTATE 08…. str() would append detail and hint.
        message = str(error.args[0]) if error.args else str(error)
        failure = StatementError(error.sqlstate or "", message, getattr(error, "detail", None) or "")
    elif isinstance(error, ValueError):
        # asyncpg.DataError: the protocol cannot carry the value.
        failure = StatementError(INVALID_DATA, str(error))
    elif isinstance(error, asyncpg.InternalClientError) and str(error).startswith(_CLOSED_WHILE_IDLE):
        failure = StatementError("", "the connection was lost")
    else:
        failure = StatementError("", str(error) or type(error).__name__)
    failure.__cause__ = error
    return failure


def from_psycopg(error: Any, call: Call | Script | None = None) -> StatementError:
    """Translate an error of psycopg."""
    import psycopg

    if isinstance(error, psycopg.errors.ConnectionTimeout):
        failure: StatementError = NoReplyError(f"{error}{_statement(call)}")
    else:
        failure = StatementError(
            error.sqlstate or "", str(error).split("\n")[0], error.diag.message_detail or ""
        )
    failure.__cause__ = error
    return failure


def _statement(call: Call | Script | None) -> str:
    return f" to statement {call.statement.name}" if isinstance(call, Call) else ""
