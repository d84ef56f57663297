"""Watch an instance: its changes, one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from .._core.change_cursor import ChangeCursor
from .._core.records import record_of
from .._db import changes
from .._db.plan import Plan
from ..errors import NoTargetError, UsageError
from ..instance import Change
from ..refs import Target
from .common import definition_of_target, read, resolve

__all__ = ["WatchFollow", "change_of", "open_watch"]

_POSITION: Final = re.compile(r"(\d{1,18}):(\d{1,9})", re.ASCII)


def open_watch(target: Target, after: Change[Any, Any] | str | None) -> Plan[ChangeCursor]:
    """Return a cursor of the changes of an instance."""
    position = (
        None if after is None else _read_position(after.position if isinstance(after, Change) else after)
    )
    return ChangeCursor((yield from resolve(target, "watch")), position)


def _read_position(text: object) -> tuple[int, int]:
    found = _POSITION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise UsageError(f"after is {text!r}, which is not a position", "give a Change or its position")
    return int(found[1]), int(found[2])


def change_of(
    row: Mapping[str, Any], executions: Sequence[Mapping[str, Any]], cursor: ChangeCursor, target: Target
) -> Change[Any, Any]:
    """Build a change from what a cursor has just taken."""
    assert cursor.position is not None  # noqa: S101 - it has taken a row
    return Change(
        instance=read(row, definition_of_target(target)),
        executions=tuple(record_of(one) for one in executions),
        position=f"{cursor.position[0]}:{cursor.position[1]}",
    )


class WatchFollow:
    """Reads the changes of one instance, for clients without an event loop."""

    name = "watch"

    def __init__(self, target: Target, cursor: ChangeCursor) -> None:
        self._target = target
        self._cursor = cursor

    @property
    def is_over(self) -> bool:
        return self._cursor.is_over

    def plan(self) -> Plan[Iterator[Change[Any, Any]]]:
        cursor, found = self._cursor, list[Change[Any, Any]]()
        for one in (yield from changes.read([cursor], 1)):
            if one.row is None:
                raise NoTargetError(cursor.id, "watch")
            if cursor.take(one.row, one.executions, most=changes.MOST_EXECUTIONS):
                found.append(change_of(one.row, one.executions, cursor, self._target))
        return iter(found)
