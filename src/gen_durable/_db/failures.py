"""Errors of the database, and the kinds that the engine tells apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import DatabaseError
from . import sqlstates

__all__ = [
    "NoReplyError",
    "StatementError",
    "is_break",
    "is_data",
    "is_no_reply",
    "is_outage",
    "is_race",
    "is_repairable",
]


_DENIED = re.compile(
    r"permission denied for (?P<kind>database|schema|table|view|sequence|function) (?P<name>\S+)"
)
_GRANTS = {
    "database": "create on database {}",
    "schema": "usage on schema {}",
    "table": "select, insert, update, delete on {}",
    "view": "select on {}",
    "sequence": "usage on sequence {}",
    "function": "execute on function {}",
}
_COMPARE = "restore what was renamed or dropped; compare the schema with this version: gen-durable db status"
_ADVICE = {
    sqlstates.INVALID_CATALOG_NAME: "create the database, or change the DSN",
    sqlstates.INVALID_SCHEMA_NAME: _COMPARE,
    sqlstates.UNDEFINED_COLUMN: _COMPARE,
    sqlstates.UNDEFINED_OBJECT: _COMPARE,
    sqlstates.UNDEFINED_FUNCTION: _COMPARE,
    sqlstates.UNDEFINED_TABLE: _COMPARE,
    sqlstates.INVALID_COLUMN_REFERENCE: _COMPARE,
    sqlstates.DISK_FULL: "free disk space on the server",
}


class StatementError(DatabaseError):
    """PostgreSQL refused a statement, or the connection to it broke.

    `sqlstate` is empty if the server sent no reply.
    """

    sqlstate: str
    message: str
    detail: str

    def __init__(self, sqlstate: str, message: str, detail: str = "") -> None:
        super().__init__(sqlstate, message, detail)
        self.sqlstate, self.message, self.detail = sqlstate, message, detail

    def __str__(self) -> str:
        code = f" (SQLSTATE {self.sqlstate})" if self.sqlstate else ""
        return f"{self.message}{code}{': ' + self.detail if self.detail else ''}{self._advice()}"

    def _advice(self) -> str:
        if self.sqlstate in _ADVICE:
            return f"; {_ADVICE[self.sqlstate]}"
        found = _DENIED.search(self.message) if self.sqlstate == sqlstates.INSUFFICIENT_PRIVILEGE else None
        if found is None:
            return ""
        right = _GRANTS[found["kind"]].format(found["name"])
        return f"; grant {right} to this role (docs/reference/sql.md lists all privileges)"

    def facts(self) -> Mapping[str, Any]:
        """The JSON in the detail of an error that a function of the schema raised."""
        facts: Mapping[str, Any] = msgspec.json.decode(self.detail)
        return facts


class NoReplyError(StatementError):
    """The server did not reply in time. It may have run the statement."""

    def __init__(self, message: str) -> None:
        super().__init__("", message)


# READ_ONLY: a standby before its promotion, or a former primary. The two timeouts have ended the session.
_OUTAGES = (
    sqlstates.CONNECTION_EXCEPTION,
    sqlstates.INVALID_AUTHORIZATION,  # a password that is being changed, or a token that has expired
    sqlstates.INSUFFICIENT_RESOURCES,
    sqlstates.OPERATOR_INTERVENTION,
    sqlstates.SYSTEM_ERROR,
    sqlstates.READ_ONLY,
    sqlstates.IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
    sqlstates.TRANSACTION_TIMEOUT,
)
# An administrator has revoked, renamed or dropped something and can restore it.
_REPAIRABLE = frozenset(
    {
        sqlstates.INSUFFICIENT_PRIVILEGE,
        sqlstates.INVALID_CATALOG_NAME,
        sqlstates.INVALID_SCHEMA_NAME,
        sqlstates.UNDEFINED_TABLE,
        sqlstates.UNDEFINED_COLUMN,
        sqlstates.UNDEFINED_OBJECT,
        sqlstates.UNDEFINED_FUNCTION,
        sqlstates.INVALID_COLUMN_REFERENCE,
        # A database that allows no connections, or a published table without a replica identity.
        sqlstates.OBJECT_NOT_IN_PREREQUISITE_STATE,
    }
)
_BREAKS = (sqlstates.CONNECTION_EXCEPTION, sqlstates.ADMIN_SHUTDOWN, sqlstates.CRASH_SHUTDOWN)
_DATA = (sqlstates.DATA_EXCEPTION, sqlstates.INTEGRITY_CONSTRAINT_VIOLATION, sqlstates.PROGRAM_LIMIT_EXCEEDED)


def is_race(error: StatementError) -> bool:
    """Whether a concurrent transaction caused the failure, so that a retry may succeed."""
    return error.sqlstate in sqlstates.RACES


def is_outage(error: StatementError) -> bool:
    """Whether the database is unavailable or shutting down: wait, and connect again."""
    return not error.sqlstate or error.sqlstate.startswith(_OUTAGES)


def is_repairable(error: StatementError) -> bool:
    """Whether an administrator can fix the cause: a missing privilege, or a dropped or renamed object."""
    return error.sqlstate in _REPAIRABLE


def is_no_reply(error: BaseException | None) -> bool:
    """Whether a statement failed because the server did not reply in time."""
    return isinstance(error, NoReplyError)


def is_break(error: StatementError) -> bool:
    """Whether the connection was lost. What was sent may be the cause."""
    return error.sqlstate.startswith(_BREAKS) or not error.sqlstate


def is_data(error: StatementError) -> bool:
    """Whether a value caused the failure, so that a retry fails again."""
    return error.sqlstate.startswith(_DATA)
