"""Append items to streams, and read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from .failures import StatementError
from .plan import Plan, Row, statements
from .sqlstates import UNIQUE_VIOLATION

__all__ = ["Appended", "Chunk", "Followed", "append", "delete", "read"]

_SQL = statements("streams.sql")
# Bytes of JSON that one query reads of all streams together, and the most and the least of each.
_PAGE: Final = 8 * 2**20
_MOST: Final = 2**20
_LEAST: Final = 2**16


class Chunk(msgspec.Struct):
    """Items of one execution for one stream."""

    id: int
    lease_token: int
    step_seq: int
    """The number of transitions before that of the execution, as in the row."""
    stream: str
    first: int
    """The number of the first item within the execution, from 1."""
    values: list[str | None]
    """JSON; `None` closes the stream."""


class Appended(NamedTuple):
    """The chunks of an append that were not appended, by their places."""

    lost: set[int]
    """The execution has lost its lease, or has committed."""
    locked: set[int]
    """Another transaction has locked the row: append these again."""


class Followed(Protocol):
    """A stream that is read."""

    @property
    def id(self) -> int: ...
    @property
    def stream(self) -> str: ...
    @property
    def after(self) -> int:
        """The position that was read last."""
        ...

    @property
    def closing(self) -> int | None:
        """The transition that closes the stream after that position; `None`: none does."""
        ...


def append(chunks: Sequence[Chunk]) -> Plan[Appended]:
    """Append items, all of a chunk or none. May be sent again if the reply is lost."""
    items = [
        (place, number, value)
        for place, chunk in enumerate(chunks, 1)
        for number, value in enumerate(chunk.values, chunk.first)
    ]
    call = _SQL["append_items"](
        ids=[chunk.id for chunk in chunks],
        lease_tokens=[chunk.lease_token for chunk in chunks],
        step_seqs=[chunk.step_seq for chunk in chunks],
        streams=[chunk.stream for chunk in chunks],
        places=[place for place, _, _ in items],
        numbers=[number for _, number, _ in items],
        values=[value for _, _, value in items],
    )
    try:
        rows = yield call
    except StatementError as error:
        if error.sqlstate != UNIQUE_VIOLATION:
            raise
        # An earlier try of these items has committed in the meantime. The next statement sees them.
        rows = yield call
    missing = {row["place"] - 1: row["is_locked"] for row in rows}
    return Appended(
        {place for place, is_locked in missing.items() if not is_locked},
        {place for place, is_locked in missing.items() if is_locked},
    )


def read(followed: Sequence[Followed], most: int) -> Plan[list[tuple[int, Row]]]:
    """Read the next items of streams, at most `most` of each, and at most 1 MiB of JSON unless one item is larger.

    Returns:
        Pairs of the place of a stream and a row, by place and position. A row without a position says that the instance
        has ended, that it does not exist, or that the stream is closed.
    """
    rows = yield _SQL["read_items"](
        ids=[one.id for one in followed],
        streams=[one.stream for one in followed],
        afters=[one.after for one in followed],
        closings=[one.closing for one in followed],
        most=most,
        budget=max(_LEAST, min(_MOST, _PAGE // max(1, len(followed)))),
    )
    return [(row["place"] - 1, row) for row in rows]


def delete(ids: Sequence[int]) -> Plan[None]:
    """Delete the items of deleted instances."""
    yield _SQL["delete_items"](ids=ids)
