"""Read what has changed in instances that clients wait for and watch, and find those that have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from . import search
from .failures import StatementError
from .plan import Plan, Row, Statement, fill, parts, statements

__all__ = ["ENDS", "MOST_EXECUTIONS", "News", "Reader", "discover", "read"]

_SQL = statements("changes.sql")
_PARTS = parts("changes.sql")
ENDS: Final = ("done", "failed", "cancelled")
# Executions of one instance that one read returns.
MOST_EXECUTIONS: Final = 100


class Reader(Protocol):
    """A reader of one instance, and what it has seen."""

    @property
    def id(self) -> int:
        """The instance."""
        ...

    @property
    def parked(self) -> bool:
        """Without a row version: whether it also waits for a parked row."""
        ...

    @property
    def row_version(self) -> str | None:
        """The row version that it has seen, empty if none; `None`: it reads only the end."""
        ...

    @property
    def position(self) -> tuple[int, int] | None:
        """Transitions, and ended executions, that it has seen; `None`: it reads no executions."""
        ...

    def forget(self) -> None:
        """It has seen no row version."""
        ...


class News(NamedTuple):
    """What a reader has not seen."""

    place: int
    """The place of the reader in the list."""
    row: Row | None
    """`None`: the instance does not exist."""
    executions: Sequence[Row]
    """What has ended since, oldest first, at most `MOST_EXECUTIONS`."""


def read(readers: Sequence[Reader], most: int) -> Plan[list[News]]:
    """Read the news of at most `most` readers."""
    try:
        rows = yield _SQL["changed"](
            ids=[one.id for one in readers],
            parked=[one.parked for one in readers],
            versions=[one.row_version for one in readers],
            most=most,
        )
    except StatementError:
        # After a failover that has lost commits, another row may have the version that a reader has seen.
        for one in readers:
            one.forget()
        raise
    found = {row["read_place"] - 1: None if row["read_id"] is None else row for row in rows}
    executions = yield from _ended_executions(readers, found)
    return [News(place, row, executions.get(place, ())) for place, row in found.items()]


def _ended_executions(readers: Sequence[Reader], found: dict[int, Row | None]) -> Plan[dict[int, list[Row]]]:
    wanted = [
        (place, row["id"], *position, row["read_ended"])
        for place, row in found.items()
        if row is not None
        and (position := readers[place].position) is not None
        and position[1] < row["read_ended"]
    ]
    executions: dict[int, list[Row]] = {}
    if wanted:
        places, ids, step_seqs, seen, untils = map(list, zip(*wanted, strict=True))
        rows = yield _SQL["ended_executions"](
            ids=ids, step_seqs=step_seqs, executions=seen, untils=untils, most=MOST_EXECUTIONS
        )
        for row in rows:
            executions.setdefault(places[row["place"] - 1], []).append(row)
    return executions


def discover(wanted: search.Filter, places: Mapping[str, object], most: int) -> Plan[Sequence[Row]]:
    """Read the next ids of each source behind these places, at most `most` of each."""
    shape = search.Shape.of(wanted)
    return (yield _discover_statement(shape)(**search.values_of(wanted), **places, most=most))


@lru_cache(maxsize=100)
def _discover_statement(shape: search.Shape) -> Statement:
    conditions = search.conditions(shape)
    ended = "".join(fill(_PARTS["ended"], {"status": status, "conditions": conditions}) for status in ENDS)
    return Statement("discover", fill(_PARTS["discover"], {"conditions": conditions, "ended": ended}))
