"""Inserting instances of machines of which only the name is known."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from ..errors import KeyTakenError, LimitError, UsageError
from .failures import StatementError, is_data
from .plan import Plan, statements
from .sqlstates import KEY_OF_ANOTHER_MACHINE, LIMIT_REFUSED

__all__ = ["NamedInsert", "insert", "known_versions"]

_SQL = statements("insert_by_name.sql")


class NamedInsert(msgspec.Struct, frozen=True, kw_only=True):
    """What to insert. A field that is `None` is left to the machine as its workers registered it, or is not wanted.

    The fields are the parameters of the statement.
    """

    fsm: str
    state: str
    step: str | None = None
    queue: str | None = None
    priority: int = 0
    version: int | None = None
    eligible_at: datetime | None = None
    delay: timedelta | None = None
    correlation_key: str | None = None
    unique_key: str | None = None
    idempotency_key: str | None = None
    concurrency_key: str | None = None
    rate_limit: str | None = None
    weight: int | None = None
    max_attempts: int | None = None


def insert(new: NamedInsert) -> Plan[tuple[int, bool]]:
    """Insert one instance: its id, and whether it is new; else the id is that of the instance that has the key."""
    try:
        rows = yield _SQL["insert"](**msgspec.structs.asdict(new))
    except StatementError as error:
        if (translated := _translated(error, new)) is None:
            raise
        raise translated from error
    return rows[0]["id"], rows[0]["inserted"]


def known_versions() -> Plan[Mapping[str, list[int]]]:
    """The machines that workers have registered, and their versions."""
    known: dict[str, list[int]] = {}
    for row in (yield _SQL["machines"]()):
        known.setdefault(row["fsm"], []).append(row["fsm_version"])
    return known


def _translated(error: StatementError, new: NamedInsert) -> Exception | None:
    """The error of our own that it stands for, if it does."""
    if error.sqlstate == KEY_OF_ANOTHER_MACHINE:
        facts = error.facts()
        key = (
            new.correlation_key
            if facts["key"] == "correlation_key"
            else new.unique_key or new.idempotency_key
        )
        return KeyTakenError(key or "", new.fsm, facts["fsm"], facts["id"])
    if error.sqlstate == LIMIT_REFUSED:
        facts = error.facts()
        return LimitError(facts["name"], facts["weight"], facts["burst"])
    if is_data(error):
        problem = error.message.removeprefix("nothing was inserted: element 1: ")
        return UsageError(f"cannot insert {new.fsm}: {problem}", "nothing was inserted")
    return None
