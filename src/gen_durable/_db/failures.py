"""What drivers raise, as the few kinds that the engine tells apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import DatabaseError

__all__ = [
    "LIMIT_REFUSED",
    "RACES",
    "READ_ONLY",
    "NoAnswerError",
    "StatementError",
    "is_break",
    "is_data",
    "is_outage",
    "is_race",
    "is_repairable",
    "is_silence",
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
_COMPARE = (
    "restore what was renamed or dropped, or compare the schema with this version: gen-durable db status"
)
_ADVICE = {
    "3D000": "create that database, or name another in the DSN",
    "3F000": _COMPARE,
    "42703": _COMPARE,
    "42704": _COMPARE,
    "42883": _COMPARE,
    "42P01": _COMPARE,
    "42P10": _COMPARE,
    "53100": "free space on the disk of the server",
}


class StatementError(DatabaseError):
    """PostgreSQL refused a statement, or the connection to it broke.

    `sqlstate` is empty when there was no answer at all.
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
        found = _DENIED.search(self.message) if self.sqlstate == "42501" else None
        if found is None:
            return ""
        right = _GRANTS[found["kind"]].format(found["name"])
        return f"; grant {right} to the role that connects (docs/reference/sql.md lists all rights)"

    def facts(self) -> Mapping[str, Any]:
        """The detail of an error that our own SQL raised: it is JSON."""
        facts: Mapping[str, Any] = msgspec.json.decode(self.detail)
        return facts


class NoAnswerError(StatementError):
    """The server did not answer in time. Whether it ran the statement is not known."""

    def __init__(self, message: str) -> None:
        super().__init__("", message)


READ_ONLY = "25006"
# 40001 serialization_failure, 40P01 deadlock_detected, 55P03 lock_not_available: run the transaction again.
RACES = frozenset({"40001", "40P01", "55P03"})
# Of our own, in the class of data exceptions: there is no such rate limit, or it is too small.
LIMIT_REFUSED = "22GD5"
# Classes: 08 connection, 28 credentials (a password that is being changed, a token that has run out), 53 resources,
# 57 operator intervention (shutdown, cancelled), 58 system. 25006: a standby that has yet to be promoted, or a primary
# that is none any more; 25P03, 25P04: the session was ended, idle or busy for too long.
_OUTAGES = ("08", "28", "53", "57", "58", READ_ONLY, "25P03", "25P04")
# What an administrator took away and can give back: rights (42501), a database, a schema, a table, a column, a type, a
# function, a unique index (42P10). 55000: a database closed to connections, a published table without replica identity.
_REPAIRABLE = frozenset({"42501", "3D000", "3F000", "42P01", "42703", "42704", "42883", "42P10", "55000"})
# 57P01, 57P02: the session or the server was ended by somebody.
_BREAKS = ("08", "57P01", "57P02")
# Classes: 22 data exception, 23 integrity constraint violation, 54 program limit exceeded: a row is to blame.
_DATA = ("22", "23", "54")


def is_race(error: StatementError) -> bool:
    """Whether another transaction was in the way, so that the same statement may work at the next try."""
    return error.sqlstate in RACES


def is_outage(error: StatementError) -> bool:
    """Whether the database is away or about to go: wait, and connect again."""
    return not error.sqlstate or error.sqlstate.startswith(_OUTAGES)


def is_repairable(error: StatementError) -> bool:
    """Whether an administrator can undo what makes the database refuse the statement."""
    return error.sqlstate in _REPAIRABLE


def is_silence(error: BaseException | None) -> bool:
    """Whether a statement was given up because no answer came."""
    return isinstance(error, NoAnswerError)


def is_break(error: StatementError) -> bool:
    """Whether the connection is gone, which may be because of what went over it."""
    return error.sqlstate.startswith(_BREAKS) or not error.sqlstate


def is_data(error: StatementError) -> bool:
    """Whether a value is to blame, and would be again."""
    return error.sqlstate.startswith(_DATA)
