"""What the readers of an instance wait for, and what they have seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from ..instance import Status

__all__ = ["ChangeCursor", "Condition", "EndCursor", "wait_cursor"]

_Row: TypeAlias = Mapping[str, Any]

_PARKED: Final = (Status.AWAITING_SIGNAL, Status.AWAITING_CHILDREN)
# Columns of a read that may differ although the instance has not changed.
_INVISIBLE: Final = frozenset({"lease_expires_at", "read_place", "read_version", "updated_at"})


class Condition(msgspec.Struct, frozen=True):
    """What a wait waits for. The end of the instance ends every wait."""

    parked: bool = False
    statuses: frozenset[str] = frozenset()
    steps: frozenset[str] = frozenset()

    @property
    def is_end(self) -> bool:
        """Whether only an end or an await ends the wait: the changes in between are not read."""
        return not self.statuses and not self.steps

    def holds(self, row: _Row, executions: Sequence[_Row]) -> bool:
        """Whether an instance that has made these executions since the last look ends the wait."""
        return (
            row["finished_at"] is not None
            or (self.parked and row["status"] in _PARKED)
            or row["status"] in self.statuses
            or row["step"] in self.steps
            or any(one["step"] in self.steps for one in executions)
        )


class EndCursor:
    """Reads the end of an instance or, with `parked`, also that it waits for a signal or for children."""

    row_version = None
    position = None

    def __init__(self, id: int, *, parked: bool) -> None:
        self.id = id
        self.parked = parked
        self.is_over = False
        """Whether it has read the end."""

    def forget(self) -> None:
        """It has seen no row version."""

    def take(self, row: _Row, executions: Sequence[_Row], *, most: int) -> bool:
        """The statement returns nothing else, so any row is the answer."""
        self.is_over = row["finished_at"] is not None
        return True


class ChangeCursor:
    """The place of one reader in the changes of an instance.

    Args:
        id: the instance.
        position: the transitions and ended executions that the reader has seen; `None`: it begins now.
        condition: what the reader waits for; `None`: any visible change.
    """

    parked = False

    def __init__(
        self, id: int, position: tuple[int, int] | None = None, condition: Condition | None = None
    ) -> None:
        self.id = id
        self.row_version = ""
        self.position = position
        self.is_over = False
        """Whether nothing follows: the instance has ended, and all its executions are read."""
        self._condition = condition
        self._seen: int | None = None

    def forget(self) -> None:
        """Read the row again, whatever its version; it counts only if it differs."""
        self.row_version = ""

    def take(self, row: _Row, executions: Sequence[_Row], *, most: int) -> bool:
        """Move behind a row and its executions. Returns whether the reader gets them: they are news for it."""
        is_rest = len(executions) == most
        if is_rest:
            # There may be more: the next read returns the row again.
            last = executions[-1]
            self.row_version, self.position = "", (last["step_seq"] - 1, last["attempt"])
        else:
            self.row_version, self.position = row["read_version"], (row["step_seq"], row["read_ended"])
        self.is_over = row["finished_at"] is not None and not is_rest
        if self._condition is not None:
            return self._condition.holds(row, executions)
        content = hash(str([value for name, value in row.items() if name not in _INVISIBLE]))
        is_same, self._seen = content == self._seen, content
        return bool(executions) or not is_same


def wait_cursor(id: int, condition: Condition) -> EndCursor | ChangeCursor:
    """Return the cursor of a wait."""
    if condition.is_end:
        return EndCursor(id, parked=condition.parked)
    return ChangeCursor(id, condition=condition)
