"""Read the committed transitions of an instance."""

from __future__ import annotations

from collections.abc import Sequence

from .plan import Plan, Row, statements

__all__ = ["children", "initial_state", "state_version", "states_within", "transitions"]

_SQL = statements("history.sql")


def transitions(id: int, first: int, most: int, states_from: int = 0) -> Plan[Sequence[Row]]:
    """Read the transitions of one instance from number `first` on, at most `most`; states from `states_from` on."""
    return (yield _SQL["transitions"](id=id, first=first, most=most, states_from=states_from))


def states_within(id: int, first: int, most: int, most_bytes: int) -> Plan[int]:
    """Return from which of these transitions on the states need at most `most_bytes` of storage."""
    rows = yield _SQL["state_sizes"](id=id, first=first, most=most)
    left = most_bytes
    for row in reversed(rows):
        left -= row["bytes"]
        if left < 0:
            first_of_them: int = row["step_seq"] + 1
            return first_of_them
    return 0


def initial_state(id: int) -> Plan[Row | None]:
    """Read the state with which an instance was inserted, and its version; `None` if it was not kept."""
    rows = yield _SQL["initial_state"](id=id)
    return rows[0] if rows else None


def state_version(id: int, at: int) -> Plan[int | None]:
    """Read the version of the state after transition `at`; `None` if it was not kept."""
    if at == 0:
        made = yield from initial_state(id)
    else:
        rows = yield from transitions(id, at, 1)
        made = rows[0] if rows and rows[0]["step_seq"] == at else None
    version: int | None = None if made is None else made["state_version"]
    return version


def children(id: int) -> Plan[Sequence[Row]]:
    """Read the ids of the children of one instance, with their rounds."""
    return (yield _SQL["children"](id=id))
