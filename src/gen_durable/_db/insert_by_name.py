"""Insert instances of machines that are known by name only."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from shlex import quote

import msgspec

from ..errors import KeyTakenError, LimitError, UsageError
from .failures import StatementError, is_data
from .plan import Plan, statements
from .sqlstates import KEY_OF_ANOTHER_MACHINE, LIMIT_REFUSED

__all__ = ["NamedInsert", "insert", "known_versions"]

_SQL = statements("insert_by_name.sql")


class NamedInsert(msgspec.Struct, frozen=True, kw_only=True):
    """What to insert. `None`: the default that workers have registered for the machine, or unset.

    The fields are the parameters of the statement.
    """

    fsm: str
    state: str
    step: str | None = None
    queue: str | None = None
    priority: int | None = None
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
    """Insert one instance; return its id and whether it is new. If the key is taken: the id of the one that has it."""
    try:
        rows = yield _SQL["insert"](**msgspec.structs.asdict(new))
    except StatementError as error:
        if (translated := _translated(error, new)) is None:
            raise
        raise translated from error
    return rows[0]["id"], rows[0]["inserted"]


def known_versions() -> Plan[Mapping[str, list[int]]]:
    """The machines that workers have registered, with their versions."""
    known: dict[str, list[int]] = {}
    for row in (yield _SQL["machines"]()):
        known.setdefault(row["fsm"], []).append(row["fsm_version"])
    return known


def _translated(error: StatementError, new: NamedInsert) -> Exception | None:
    """The public error for this one, or `None`."""
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
        if facts["burst"] is None:
            name = facts["name"]
            return UsageError(
                f"there is no rate limit '{name}'", f"set it: gen-durable limits set {quote(name)}=100/1m"
            )
        return LimitError(facts["name"], facts["weight"], facts["burst"])
    if is_data(error):
        problem = error.message.removeprefix("nothing was inserted: element 1: ")
        return UsageError(f"cannot insert {new.fsm}: {problem}", "nothing was inserted")
    return None
