"""Drives plans: over asyncpg, over psycopg, and over psycopg's async connections."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from .failures import NoAnswerError, StatementError
from .plan import Call, Plan, Rows, Script, in_schema
from .sqlstates import INVALID_DATA

__all__ = ["asyncpg_failures", "run_asyncpg", "run_psycopg", "run_psycopg_async"]

T = TypeVar("T")
# A connection that the server has ended while nobody used it answers so to its next use, if that comes before asyncpg
# has heard the last of it.
_DYING: Final = "cannot switch to state"


async def run_asyncpg(conn: Any, plan: Plan[T], schema: str) -> T:
    """Run a plan on an asyncpg connection."""
    try:
        call = next(plan)
        while True:
            try:
                if isinstance(call, Script):
                    rows: Rows = []
                    await conn.execute(call.text)
                else:
                    rows = await conn.fetch(in_schema(call.statement.text, schema), *call.values)
            except asyncpg_failures() as error:
                call = plan.throw(from_asyncpg(error, call))
            else:
                call = plan.send(rows)
    except StopIteration as finished:
        result: T = finished.value
        return result


# psycopg: rows in binary, because a caller's session may write times as it likes (DateStyle); and fetched whatever the
# cursor says of them, because in a pipeline it cannot say anything before.


def run_psycopg(conn: Any, plan: Plan[T], schema: str) -> T:
    """Run a plan on a psycopg connection, blocking."""
    import psycopg
    from psycopg.rows import dict_row

    try:
        call = next(plan)
        while True:
            try:
                with psycopg.RawCursor(conn, row_factory=dict_row) as cursor:
                    rows: Rows = []
                    if isinstance(call, Script):
                        cursor.execute(call.text)
                    else:
                        cursor.execute(in_schema(call.statement.text, schema), call.values, binary=True)
                        rows = cursor.fetchall()
            except psycopg.Error as error:
                call = plan.send([]) if _has_no_rows(error) else plan.throw(from_psycopg(error, call))
            else:
                call = plan.send(rows)
    except StopIteration as finished:
        result: T = finished.value
        return result


async def run_psycopg_async(conn: Any, plan: Plan[T], schema: str) -> T:
    """Run a plan on an async connection of psycopg."""
    import psycopg
    from psycopg.rows import dict_row

    try:
        call = next(plan)
        while True:
            try:
                async with psycopg.AsyncRawCursor(conn, row_factory=dict_row) as cursor:
                    rows: Rows = []
                    if isinstance(call, Script):
                        await cursor.execute(call.text)
                    else:
                        await cursor.execute(in_schema(call.statement.text, schema), call.values, binary=True)
                        rows = await cursor.fetchall()
            except psycopg.Error as error:
                call = plan.send([]) if _has_no_rows(error) else plan.throw(from_psycopg(error, call))
            else:
                call = plan.send(rows)
    except StopIteration as finished:
        result: T = finished.value
        return result


def _has_no_rows(error: Any) -> bool:
    """Whether nothing is wrong but that a statement without rows was asked for them."""
    import psycopg

    return type(error) is psycopg.ProgrammingError and error.sqlstate is None


def asyncpg_failures() -> tuple[type[Exception], ...]:
    """Everything that asyncpg raises when a statement or a connection fails.

    The internal error is among it: see `_DYING`.
    """
    # Imported at the first use: a producer that brings its own psycopg connection never pays for asyncpg.
    import asyncpg

    return (
        TimeoutError,
        OSError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
    )


def from_asyncpg(error: BaseException, call: Call | Script | None = None) -> StatementError:
    """What asyncpg raised, as one of ours."""
    import asyncpg

    if isinstance(error, TimeoutError):
        failure: StatementError = NoAnswerError(f"{str(error) or 'no answer in time'}{_statement(call)}")
    elif isinstance(error, asyncpg.PostgresError):
        # asyncpg raises its own connection errors as PostgresError without an answer of the server: sqlstate 08….
        # Its str() would repeat the detail and the hint after the message.
        message = str(error.args[0]) if error.args else str(error)
        failure = StatementError(error.sqlstate or "", message, getattr(error, "detail", None) or "")
    elif isinstance(error, ValueError):
        failure = StatementError(
            INVALID_DATA, str(error)
        )  # asyncpg.DataError: a value that the wire cannot carry
    elif isinstance(error, asyncpg.InternalClientError) and str(error).startswith(_DYING):
        failure = StatementError("", "the connection was lost")
    else:
        failure = StatementError("", str(error) or type(error).__name__)
    failure.__cause__ = error
    return failure


def from_psycopg(error: Any, call: Call | Script | None = None) -> StatementError:
    """What psycopg raised, as one of ours."""
    import psycopg

    if isinstance(error, psycopg.errors.ConnectionTimeout):
        failure: StatementError = NoAnswerError(f"{error}{_statement(call)}")
    else:
        failure = StatementError(
            error.sqlstate or "", str(error).split("\n")[0], error.diag.message_detail or ""
        )
    failure.__cause__ = error
    return failure


def _statement(call: Call | Script | None) -> str:
    return f" to statement {call.statement.name}" if isinstance(call, Call) else ""
